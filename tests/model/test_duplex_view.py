"""The documented methods of full duplex."""

from __future__ import annotations

import asyncio
import base64
import io
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from core.audio import from_pcm, write_wav
from core.engine.engine import Engine, run_inline
from core.errors import (
    AudioError,
    BadPayloadError,
    ContextFullError,
    NotPreparedError,
    OutOfOrderError,
    PictureError,
)
from core.processors import DuplexView, UnifiedProcessor
from core.schemas.duplex_calls import DuplexConfig, DuplexGenerateResult
from MiniCPMO45.engine.steps import Collect, OpenVoice
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast
from tests.model.toy import picture, speech

SECOND = (speech(1.0, 5) * 0.001).astype(np.float32)
EAGER = DuplexConfig(force_listen_count=0, listen_prob_scale=0.0)


@pytest.fixture
def view(processor: UnifiedProcessor) -> DuplexView:
    return processor.set_duplex_mode()


def run_unit(view: DuplexView, *, force_listen: bool = False) -> DuplexGenerateResult:
    assert view.prefill(SECOND).success
    result = view.generate(force_listen)
    view.finalize()
    return result


def test_units_need_a_prepared_conversation_and_their_order(view: DuplexView) -> None:
    for call in (lambda: view.prefill(SECOND), view.generate, view.finalize, view.set_break):
        with pytest.raises(NotPreparedError):
            call()
    view.prepare()
    assert view.prefill(SECOND).success
    with pytest.raises(OutOfOrderError):
        view.prefill(SECOND)
    view.generate()
    with pytest.raises(OutOfOrderError):
        view.prefill(SECOND)
    view.finalize()
    view.finalize()
    assert view.prefill(SECOND).success


def test_the_prompt_surrounds_the_voice(view: DuplexView) -> None:
    prompt = view.prepare()
    assert prompt == (
        "<|im_start|>system\nStreaming Omni Conversation.\n<|audio_start|><|audio_end|><|im_end|>"
    )
    default = view.session.window.preserved
    assert view.kv_cache_length == default
    prompt = view.prepare("Be kind.", ref_audio=speech(2.0), suffix_text="Always.")
    assert prompt == ("<|im_start|>system\nBe kind.\n<|audio_start|><|audio_end|>Always.<|im_end|>")
    tokens = len(view.context.model.processor.tokenizer.encode(prompt))
    assert view.session.window.preserved == tokens + 20


def test_speaking_unit_has_text_audio_and_costs(view: DuplexView) -> None:
    view.prepare(config=EAGER)
    units = [run_unit(view) for _ in range(6)]
    spoken = [unit for unit in units if not unit.is_listen]
    assert spoken
    for unit in spoken:
        assert unit.audio_data is not None
        assert len(from_pcm(unit.audio_data))
        assert unit.cost_all_ms >= unit.cost_llm_ms > 0
        assert unit.cost_tts_ms > 0 and unit.cost_token2wav_ms is not None
    assert any(unit.text for unit in spoken)
    assert [unit.current_time for unit in units] == [1_000 * n for n in range(1, 7)]


def test_a_listening_unit_is_silent(view: DuplexView) -> None:
    view.prepare(config=DuplexConfig(force_listen_count=2))
    for _ in range(2):
        unit = run_unit(view)
        assert (unit.is_listen, unit.text, unit.audio_data) == (True, "", None)


def test_a_text_only_conversation_has_no_sound(view: DuplexView) -> None:
    view.prepare(config=EAGER.model_copy(update={"generate_audio": False}))
    units = [run_unit(view) for _ in range(4)]
    assert any(unit.text for unit in units)
    assert not any(unit.audio_data for unit in units)


def test_settings_belong_to_the_conversation(processor: UnifiedProcessor) -> None:
    view = processor.duplex
    view.prepare(config=DuplexConfig(force_listen_count=9, temperature=0.1))
    assert view.session.settings.force_listen_count == 9
    view.prepare(config=DuplexConfig(temperature=0.2))
    settings = view.session.settings
    assert (settings.force_listen_count, settings.temperature) == (3, 0.2)
    view.prepare()
    assert view.session.settings == processor.model.duplex.defaults


def test_a_break_makes_the_next_unit_listen(view: DuplexView) -> None:
    view.prepare(config=EAGER)
    assert not run_unit(view).is_listen
    view.set_break()
    assert run_unit(view).is_listen
    view.set_break()
    view.clear_break()
    assert not run_unit(view).is_listen
    assert run_unit(view, force_listen=True).is_listen


def test_stop_and_cleanup_end_a_conversation(view: DuplexView) -> None:
    view.prepare()
    view.stop()
    assert view.session.stop.is_set()
    refused = view.prefill(SECOND)
    assert (refused.success, refused.reason) == (False, "stopped")
    assert view.generate().is_listen
    view.cleanup()
    assert view.kv_cache_length == 0
    view.prepare()
    assert not view.session.stop.is_set()
    assert run_unit(view) is not None


def test_pictures_come_decoded_or_not(view: DuplexView) -> None:
    view.prepare()
    fed = view.prefill(SECOND, [picture(1), picture(2)])  # the documented positions
    assert fed.success and fed.vision_slices == 2
    unit = view.generate_unit()
    assert (unit.vision_slices, unit.vision_tokens) == (2, 128)
    view.finalize()
    with pytest.raises(PictureError):
        view.prefill(SECOND, frame_list=["?"])
    out = io.BytesIO()
    picture(3).save(out, "PNG")
    wire = base64.b64encode(out.getvalue()).decode()
    assert view.prefill(SECOND, [wire, picture(1)]).vision_slices == 2
    view.generate()
    view.finalize()
    alone = view.prefill(frame_list=[Image.new("RGB", (40, 40))])
    assert alone.success


def test_a_unit_may_come_from_a_file(view: DuplexView, tmp_path: Path) -> None:
    path = tmp_path / "unit.wav"
    write_wav(path, speech(1.1), 16_000)
    view.prepare(system_prompt="Hi.", ref_audio_path=path, prompt_wav_path=path)
    assert view.prefill(audio_path=path).success
    with pytest.raises(AudioError):
        view.prepare(ref_audio_path=tmp_path / "no.wav")


def test_a_prompt_is_encoded_beside_the_engine(
    processor: UnifiedProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client's long prompt would delay the calls of all others."""
    plain, threads = MiniCPMOTokenizerFast.encode, {}

    def watched(tokenizer: MiniCPMOTokenizerFast, text: str, **options: Any) -> Any:
        threads[text] = threading.current_thread().name
        return plain(tokenizer, text, **options)

    monkeypatch.setattr(MiniCPMOTokenizerFast, "encode", watched)

    async def begin() -> str:
        engine, context = Engine(), processor.duplex.context
        engine.run_pass = context.engine.run_pass
        view = DuplexView(replace(context, engine=engine))
        prompt = await view.begin("Be kind.", suffix_text="Always.")
        await view.close()
        engine.close()
        return prompt

    prompt = asyncio.run(begin())
    encoded = [text for text in threads if text and text in prompt]
    assert "".join(encoded) == prompt
    assert {threads[text] for text in encoded} == {"MainThread"}


def test_an_unusable_voice_prepares_nothing(view: DuplexView) -> None:
    view.prepare()
    with pytest.raises(AudioError, match="at least 0.5 s"):
        view.prepare(tts_audio=speech(0.1))
    with pytest.raises(NotPreparedError):
        _ = view.session


def test_the_vocoder_may_have_a_separate_voice(
    view: DuplexView, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[np.ndarray] = []
    handlers = view.context.model.executor._handlers
    submit = handlers[OpenVoice]

    def remember(requests: Sequence[OpenVoice]) -> Collect:
        opened.extend(request.audio for request in requests)
        return submit(requests)

    monkeypatch.setitem(handlers, OpenVoice, remember)
    prompted, spoken = speech(1.0, 1), speech(1.0, 2)
    view.prepare(ref_audio=prompted, tts_audio=spoken)
    view.prepare(ref_audio=prompted)
    view.prepare()
    default = view.context.default_voice
    assert default is not None
    assert [id(audio) for audio in opened] == [id(spoken), id(prompted), id(default)]


def test_second_conversation_starts_without_audio_of_the_first(view: DuplexView) -> None:
    view.prepare()
    for _ in range(2):
        run_unit(view)
    assert view.session.audio_input.cache.length == 100
    view.prepare()
    assert view.session.audio_input.cache.length == 0


def test_a_full_context_is_an_error(processor: UnifiedProcessor) -> None:
    processor.duplex.prepare()
    kv = processor.duplex.session.kv
    kv.length = kv.store.shape.max_position_embeddings
    with pytest.raises(ContextFullError):
        processor.duplex.prefill(SECOND)


@pytest.mark.parametrize("convert", [torch.from_numpy, list])
def test_audio_may_be_a_tensor_or_a_list(view: DuplexView, convert: Callable[..., Any]) -> None:
    view.prepare()
    assert view.prefill(convert(SECOND)).success


@pytest.mark.parametrize(
    "audio",
    [
        np.stack((SECOND, SECOND)),
        (SECOND * 32_767).astype(np.int16),
        np.full(16_000, np.nan, np.float32),
    ],
    ids=["stereo", "int16", "nan"],
)
def test_unusable_audio_is_refused_and_the_conversation_goes_on(
    view: DuplexView, audio: np.ndarray
) -> None:
    view.prepare()
    with pytest.raises(BadPayloadError, match="a sound|A sound"):
        view.prefill(audio)
    with pytest.raises(BadPayloadError, match="a sound|A sound"):
        run_inline(view.unit(audio))
    assert run_unit(view).kv_cache_length > 0


def test_a_frame_that_is_no_picture_is_refused(view: DuplexView) -> None:
    view.prepare()
    frame: Any = np.zeros((48, 64, 3), np.uint8)  # as OpenCV returns it
    with pytest.raises(PictureError, match="not ndarray"):
        view.prefill(SECOND, [frame])
