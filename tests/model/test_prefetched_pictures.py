"""Prefetched pictures: the same results, and no other change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.machine import session_bytes
from core.engine.engine import run_inline
from core.processors import DuplexView, UnifiedProcessor
from core.schemas.duplex_calls import DuplexConfig
from MiniCPMO45.engine.session import Session
from MiniCPMO45.engine.steps import Collect, EncodeImages
from MiniCPMO45.modes.prompt_input import EncodedPicture
from tests.model.toy import picture, speech
from tests.model.views import clean

SECOND = (speech(1.0, 5) * 0.001).astype(np.float32)
SMALL, LARGE = picture(1), picture(2, 900, 600)
LIMIT = 4


@pytest.fixture
def view(loaded: UnifiedProcessor) -> Iterator[DuplexView]:
    """A prepared view; pictures may have several slices."""
    view = loaded.set_duplex_mode()
    prepare(view)
    yield view
    clean(loaded)


def prepare(view: DuplexView) -> None:
    view.prepare(config=DuplexConfig(max_slice_nums=LIMIT, force_listen_count=0))


def state_after_prefill(
    view: DuplexView, frames: Sequence[Image.Image | EncodedPicture]
) -> tuple[torch.Tensor, int, int]:
    """Return logits, cache length and number of slices after the input of a first unit."""
    prepare(view)
    session, model = view.session, view.context.model
    sliced = run_inline(view._sliced(frames, LIMIT))
    run_inline(view.context.run(model.duplex.streaming_prefill(session, SECOND, sliced)))
    logits = session.turn.logits
    assert logits is not None
    return logits, session.kv.length, session.turn.vision_slices


@pytest.mark.parametrize("ahead", [(True,), (True, True), (False, True), (True, False)])
def test_a_unit_is_the_same_with_prefetched_pictures(
    view: DuplexView, ahead: tuple[bool, ...]
) -> None:
    pictures = (LARGE, SMALL)[: len(ahead)]
    frames = [
        run_inline(view.encode_ahead(each, LIMIT)) if is_ahead else each
        for each, is_ahead in zip(pictures, ahead, strict=True)
    ]
    logits, length, slices = state_after_prefill(view, frames)
    expected, usual_length, usual_slices = state_after_prefill(view, pictures)
    assert (length, slices) == (usual_length, usual_slices)
    assert slices > len(pictures), "one of them has parts"
    # Pictures of different sizes share a padded pass: the last bits of a row depend on the batch.
    is_same_pass = len(pictures) == 1
    torch.testing.assert_close(logits, expected, rtol=0, atol=0 if is_same_pass else 1e-5)


def state_of(session: Session) -> list[object]:
    """Return the state that prefetching must not change."""
    audio_input, random = session.audio_input, session.sampler.generator.get_state().tolist()
    return [
        session.cached_tokens,
        session_bytes(session),
        vars(session.turn).copy(),
        vars(session.window).copy(),
        (audio_input.units, audio_input.audio_units, audio_input.pending.tolist()),
        (list(session.sampler.history), random),
    ]


def test_prefetching_does_not_change_the_conversation(view: DuplexView) -> None:
    assert view.prefill(SECOND).success
    before = state_of(view.session)
    encoded = run_inline(view.encode_ahead(SMALL, LIMIT))
    assert state_of(view.session) == before, "in the middle of a unit"
    assert encoded.max_slices == LIMIT
    view.generate()
    view.finalize()
    fed, _ = run(view, [encoded])
    assert fed == 1


def run(view: DuplexView, frames: Sequence[Image.Image | EncodedPicture]) -> tuple[int, bool]:
    """Run a unit; return its slices, and whether the model listened."""
    done = run_inline(view.unit(SECOND, frames))
    assert done is not None
    return done.vision_slices, done.is_listen


def test_prefetched_pictures_are_not_encoded_again(
    view: DuplexView, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = view.context.model.executor
    encode, asked = executor._handlers[EncodeImages], 0

    def count(requests: Sequence[EncodeImages]) -> Collect:
        nonlocal asked
        asked += sum(len(request.slices) for request in requests)
        return encode(requests)

    monkeypatch.setitem(executor._handlers, EncodeImages, count)
    encoded = run_inline(view.encode_ahead(LARGE, LIMIT))
    slices, _ = run(view, [encoded])
    assert asked == slices == len(encoded.rows) > 1


def test_a_picture_can_be_prefetched_with_another_slice_limit(view: DuplexView) -> None:
    encoded = run_inline(view.encode_ahead(LARGE, 1))
    assert (encoded.max_slices, len(encoded.rows)) == (1, 1)
