"""A factory loads each checkpoint once and hands out the right view."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from core.capabilities import ProcessorMode
from core.errors import BadConfigError, ModelError
from core.factory import ProcessorFactory, create_processor
from core.processors import ChatView, DuplexView, HalfDuplexView, UnifiedProcessor


class _Builder:
    """Loads slowly and counts."""

    def __init__(self, processor: UnifiedProcessor) -> None:
        self.processor = processor
        self.calls: list[tuple[Any, ...]] = []
        self.lock = threading.Lock()

    def __call__(self, *args: Any, **options: Any) -> UnifiedProcessor:
        with self.lock:
            self.calls.append((*args, options))
        time.sleep(0.05)  # long enough for others to arrive
        return self.processor


@pytest.fixture(scope="module")
def processor(checkpoint: Path) -> UnifiedProcessor:
    """A loaded checkpoint."""
    return UnifiedProcessor(checkpoint, device="cpu", show_progress=False)


def test_many_threads_load_a_checkpoint_once(processor: UnifiedProcessor) -> None:
    build = _Builder(processor)
    factory = ProcessorFactory(build)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: factory.get_processor("here", device="cpu"), range(8)))
    assert found == [processor] * 8
    assert build.calls == [("here", None, {"device": "cpu"})]


def test_checkpoint_and_overlay_make_the_key(processor: UnifiedProcessor) -> None:
    build = _Builder(processor)
    factory = ProcessorFactory(build)
    for pt_path in (None, "a.pt", None, "a.pt", "b.pt"):
        factory.get_processor("here", pt_path)
    ProcessorFactory(build).get_processor("here")
    assert [call[1] for call in build.calls] == [None, "a.pt", "b.pt", None]


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("chat", ChatView),
        ("streaming", HalfDuplexView),
        ("half_duplex", HalfDuplexView),
        (ProcessorMode.DUPLEX, DuplexView),
    ],
)
def test_a_mode_gives_its_view(
    processor: UnifiedProcessor, mode: ProcessorMode | str, kind: type
) -> None:
    factory = ProcessorFactory(_Builder(processor))
    view = factory.create(mode, "here")
    assert isinstance(view, kind)
    assert processor.mode is ProcessorMode(mode)
    assert factory.from_config({"mode": mode, "model_path": "here"}) is view


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"mode": "chat"}, "model_path"),
        ({"mode": "song", "model_path": "here"}, "mode"),
        ({"model_path": "here", "colour": "red"}, "colour"),
        ({"model_path": "here", "duplex_config": {"top_k": -1}}, "duplex_config.top_k"),
    ],
)
def test_a_configuration_that_says_nonsense_is_refused(
    processor: UnifiedProcessor, config: dict[str, Any], words: str
) -> None:
    build = _Builder(processor)
    with pytest.raises(BadConfigError, match=words):
        ProcessorFactory(build).from_config(config)
    assert not build.calls


def test_an_unknown_mode_loads_nothing(processor: UnifiedProcessor) -> None:
    build = _Builder(processor)
    with pytest.raises(BadConfigError, match="song"):
        ProcessorFactory(build).create("song", "here")
    assert not build.calls


def test_a_released_processor_is_loaded_again(checkpoint: Path) -> None:
    factory = ProcessorFactory()
    first = factory.get_processor(checkpoint, device="cpu", show_progress=False)
    assert factory.get_processor(checkpoint) is first
    factory.release()
    assert not first.is_ready()
    second = factory.get_processor(checkpoint, device="cpu", show_progress=False)
    assert second is not first and second.is_ready()
    second.release()
    third = factory.get_processor(checkpoint, device="cpu", show_progress=False)
    assert third is not second
    factory.release()


def test_without_a_factory_nothing_is_shared(checkpoint: Path) -> None:
    view = create_processor("duplex", checkpoint, device="cpu", show_progress=False)
    assert isinstance(view, DuplexView)
    assert view.prepare()
    view.cleanup()
    with pytest.raises(ModelError):
        create_processor("chat", "/nowhere", device="cpu")
