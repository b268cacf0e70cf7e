"""The documented methods of every mode over one loaded checkpoint."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch

from config import Settings
from core.audio import encode_wire_audio, write_wav
from core.engine.engine import Engine, run_inline
from core.errors import AudioError, ContextFullError, ModelError, OutOfOrderError
from core.processors import ChatView, HalfDuplexView, StreamingView, UnifiedProcessor
from core.processors.backend import RealBackend, model_facts
from core.processors.view import TRANSLATIONS, iterate_inline, translate
from core.schemas.chat import ChatRequest
from core.schemas.common import (
    AudioContent,
    GenerationConfig,
    Message,
    Role,
    TTSConfig,
    TTSSamplingParams,
)
from core.schemas.streaming import StreamingChunk, StreamingRequest
from core.schemas.worker import ModelKind
from MiniCPMO45.modes import prompt_input
from MiniCPMO45.processing.processor import MiniCPMOProcessor
from tests.model.toy import speech
from tests.model.views import load, prefill, user
from worker import real_backend

SHORT = GenerationConfig(max_new_tokens=12)
OUTPUT_RATE_HZ = 24_000


# The processor


def test_a_mode_selects_a_view(processor: UnifiedProcessor) -> None:
    assert processor.set_duplex_mode() is processor.duplex
    assert processor.set_chat_mode() is processor.chat
    assert processor.set_half_duplex_mode() is processor.half_duplex is processor.streaming
    assert isinstance(processor.half_duplex, HalfDuplexView)


def test_conversations_of_all_modes_coexist(processor: UnifiedProcessor) -> None:
    streaming, duplex = processor.streaming, processor.duplex
    prefill(streaming, "a", "hello")
    duplex.prepare()
    duplex.prefill(speech(1.2))
    before = streaming.kv_cache_length, duplex.kv_cache_length
    assert processor.chat.chat(ChatRequest(messages=[user("hi")], generation=SHORT)).success
    assert (streaming.kv_cache_length, duplex.kv_cache_length) == before


def test_a_conversation_whose_opening_was_cancelled_can_be_closed(
    processor: UnifiedProcessor,
) -> None:
    async def cancel_the_opening() -> None:
        engine, may_open = Engine(), threading.Event()
        view = StreamingView(replace(processor.chat.context, engine=engine))
        engine.submit(may_open.wait)
        opening = asyncio.create_task(view.reset("a"))
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        may_open.set()
        session = await engine.call(lambda: view.session)
        await view.close()
        assert opening.cancelled() and session.stop.is_set()
        engine.close()

    asyncio.run(cancel_the_opening())


@pytest.mark.parametrize("mode", ["chat", "reply", "streaming"])
def test_messages_are_prepared_beside_the_engine(
    processor: UnifiedProcessor, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """One client's long message would delay the calls of all others."""
    threads: dict[str, str] = {}

    def watch(owner: Any, name: str) -> None:
        plain = getattr(owner, name)

        def watched(*inputs: Any, **options: Any) -> Any:
            threads[name] = threading.current_thread().name
            return plain(*inputs, **options)

        monkeypatch.setattr(owner, name, watched)

    watch(MiniCPMOProcessor, "_prompt")
    watch(prompt_input, "clip_mels")
    sound = AudioContent(data=encode_wire_audio(speech(1.0)))
    message = Message(role=Role.USER, content=[sound])

    async def talk() -> None:
        engine = Engine()
        context = processor.chat.context
        engine.run_pass = context.engine.run_pass
        context = replace(context, engine=engine)
        view = StreamingView(context) if mode == "streaming" else ChatView(context)
        if isinstance(view, StreamingView):
            await view.feed_request(StreamingRequest(session_id="a", messages=[message]))
        elif mode == "chat":
            await view.feed_request(ChatRequest(messages=[message]))
        else:
            await view.respond(ChatRequest(messages=[message], generation=SHORT))
        await view.close()
        engine.close()

    asyncio.run(talk())
    assert threads == dict.fromkeys(("_prompt", "clip_mels"), "MainThread")


def test_a_setting_chooses_the_cache_format(checkpoint: Path) -> None:
    model = {"model_path": str(checkpoint), "cache": "int8"}
    settings = Settings.model_validate({"model": model, "duplex": {"max_kv_tokens": 1_000}})
    backend, engine = real_backend(settings, None), Engine()
    try:
        assert isinstance(backend, RealBackend)
        asyncio.run(engine.call(lambda: backend.load(engine, lambda _stage, _share: None)))
        executor = backend.context.model.executor
        store, speech_store = executor.llm_store, executor.tts_store
        assert store.pool.dtype is torch.int8 and store.scales is not None
        assert speech_store.scales is None, "the speech decoder's are as computed"
        assert executor.options.tokens_each == 500
    finally:
        backend.close()
        engine.close()


def test_the_device_map_is_logged_by_component(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        processor = UnifiedProcessor(checkpoint, device="cpu", show_progress=False)
    parts = "llm vpm resampler apm audio_projection_layer tts token2wav".split()
    assert processor.model.device_map == dict.fromkeys(parts, "cpu")
    assert f"device map: {processor.model.device_map}" in caplog.text


def test_a_released_processor_holds_nothing(checkpoint: Path) -> None:
    processor = UnifiedProcessor(checkpoint, device="cpu", show_progress=False)
    processor.duplex.prepare()
    store = processor.model.executor.llm_store
    processor.release()
    processor.release()
    assert not store.handles
    with pytest.raises(ModelError, match="released"):
        processor.set_chat_mode()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model_path": "/nowhere"}, "no folder"),
        ({"device": "gpu7"}, "not a device"),
        ({"pt_path": "/nowhere.pt"}, "nowhere.pt"),
    ],
)
def test_a_load_failure_is_one_clear_error(
    checkpoint: Path, changes: dict[str, Any], sentence: str
) -> None:
    options: dict[str, Any] = {
        "model_path": checkpoint,
        "device": "cpu",
        "show_progress": False,
    } | changes
    with pytest.raises(ModelError, match=sentence):
        UnifiedProcessor(**options)


def test_the_default_voice_is_the_operators_or_the_checkpoints(
    checkpoint: Path, tmp_path: Path, loaded: UnifiedProcessor
) -> None:
    own = loaded.chat.context.default_voice
    assert own is not None and len(own) > 8_000
    path = tmp_path / "voice.wav"
    write_wav(path, speech(1.5), 16_000)
    other = UnifiedProcessor(checkpoint, device="cpu", ref_audio_path=path, show_progress=False)
    chosen = other.chat.context.default_voice
    assert chosen is not None and len(chosen) == 24_000


def test_an_unusable_default_voice_is_refused_before_the_weights_are_loaded(
    checkpoint: Path, tmp_path: Path
) -> None:
    stages: list[str] = []
    with pytest.raises(AudioError):
        UnifiedProcessor(
            checkpoint,
            device="cpu",
            ref_audio_path=tmp_path / "no.wav",
            on_progress=lambda stage, _share: stages.append(stage),
        )
    assert stages == ["reading the checkpoint"]


def test_a_hub_id_is_resolved_once(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def download(source: str, **_options: object) -> str:
        asked.append(source)
        return str(checkpoint)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    processor = UnifiedProcessor("owner/name", device="cpu", show_progress=False)
    facts = model_facts(processor.model, processor.folder)
    assert facts.kind is ModelKind.TINY_RANDOM and processor.chat.context.default_voice is not None
    assert asked == ["owner/name"] * 2, "the configuration, then the files"


@pytest.mark.parametrize(("theirs", "ours"), TRANSLATIONS)
def test_every_model_error_is_translated(theirs: type[Exception], ours: type[Exception]) -> None:
    error = theirs("it broke")
    found = translate(error)
    assert type(found) is ours
    assert found.message.endswith(".") and found.message[0].isupper()


# Chat


def test_chat_answers_a_request(processor: UnifiedProcessor) -> None:
    request = ChatRequest(messages=[user("hello")], generation=SHORT, return_prompt=True)
    reply = processor.chat.chat(request)
    assert reply.success and reply.error is None
    assert reply.text and reply.audio_data is None
    assert reply.prompt is not None and "user\nhello<|im_end|>" in reply.prompt
    assert "tts_bos" not in reply.prompt
    assert reply.tokens_generated == 12
    assert reply.token_stats is not None
    assert reply.token_stats.total_tokens == reply.token_stats.input_tokens + 12
    assert reply.duration_ms > 0
    assert processor.chat.chat(request).text == reply.text, "the same seed"
    short = GenerationConfig(max_new_tokens=3)
    shorter = request.model_copy(update={"generation": short})
    assert processor.chat.chat(shorter).tokens_generated == 3
    plain = SHORT.model_copy(update={"do_sample": False})
    greedy_request = request.model_copy(update={"generation": plain})
    greedy = [processor.chat.chat(greedy_request).text for _ in range(2)]
    assert greedy[0] == greedy[1] != reply.text


def test_chat_speaks_in_the_callers_voice(processor: UnifiedProcessor, tmp_path: Path) -> None:
    path = tmp_path / "reply.wav"
    voice = encode_wire_audio(speech(1.5))
    tts = TTSConfig(enabled=True, ref_audio_data=voice, output_path=str(path))
    request = ChatRequest(messages=[user("hello")], generation=SHORT, tts=tts, return_prompt=True)
    reply = processor.chat.chat(request)
    assert reply.success, reply.error
    assert reply.prompt is not None and reply.prompt.endswith("<|tts_bos|>")
    assert reply.prompt.startswith("<|im_start|>system\nUse the voice in the audio prompt")
    assert reply.audio_data is not None and reply.audio_path == str(path)
    assert path.stat().st_size > 44
    silent = request.model_copy(update={"tts": tts.model_copy(update={"enabled": False})})
    assert processor.chat.chat(silent).audio_data is None


def test_a_seed_makes_a_reply_repeatable(processor: UnifiedProcessor) -> None:
    seeds = (1, 2, 1)
    requests = [ChatRequest(messages=[user("hello")], generation=SHORT, seed=n) for n in seeds]
    one, two, again = [processor.chat.chat(request).text for request in requests]
    assert one == again != two
    streamed = [fed_and_streamed(processor, request) for request in requests]
    assert streamed[0] == streamed[2] != streamed[1]


@pytest.mark.parametrize("most", [1, 12])
def test_a_reply_begins_with_the_text_that_is_given(processor: UnifiedProcessor, most: int) -> None:
    request = ChatRequest(
        messages=[user("hello")],
        generation=GenerationConfig(max_new_tokens=most),
        tts=TTSConfig(enabled=True, ref_audio_data=encode_wire_audio(speech(1.5))),
        reply_start="Good morning",
    )
    replies = processor.chat.chat(request), fed_and_streamed(processor, request)
    for text, sound in ((replies[0].text, replies[0].audio_data), replies[1]):
        assert sound
        assert text.startswith("Good morning") and (text == "Good morning") == (most == 1)


def fed_and_streamed(processor: UnifiedProcessor, request: ChatRequest) -> tuple[str, bytes]:
    """Return text and audio of the reply as sent over a socket."""
    view = processor.chat

    async def reply() -> list[StreamingChunk]:
        await view.feed_request(request)
        return [chunk async for chunk in view.reply()]

    chunks = run_inline(reply())
    return (
        "".join(chunk.text_delta or "" for chunk in chunks),
        b"".join(chunk.audio_data or b"" for chunk in chunks),
    )


def test_chat_errors_are_in_the_response(processor: UnifiedProcessor) -> None:
    short = encode_wire_audio(speech(0.1))
    for request, words in (
        (
            ChatRequest(messages=[user("a " * 100)], generation=GenerationConfig(max_inp_length=9)),
            "at most 9 are allowed",
        ),
        (
            ChatRequest(messages=[user("a")], tts=TTSConfig(enabled=True, ref_audio_data=short)),
            "at least 0.5 s",
        ),
        (
            ChatRequest(messages=[Message(role=Role.USER, content=[AudioContent(data="?")])]),
            "Base64",
        ),
    ):
        reply = processor.chat.chat(request)
        assert not reply.success
        assert reply.error is not None and words in reply.error
        assert reply.text == ""


def whole_reply(view: ChatView) -> list[StreamingChunk]:
    return list(iterate_inline(view.reply(in_pieces=False)))


def test_a_history_that_was_fed_can_be_answered_in_three_ways(processor: UnifiedProcessor) -> None:
    chat, short = processor.chat, GenerationConfig(max_new_tokens=5)
    request = ChatRequest(messages=[user("hello")], generation=short)
    prompt = run_inline(chat.feed_request(request))
    assert prompt == "<|im_start|>user\nhello<|im_end|>\n"
    assert chat.kv_cache_length > 0
    [whole] = whole_reply(chat)
    assert whole.text_delta and whole.audio_data is None
    speaking = TTSConfig(enabled=True, sampling=TTSSamplingParams())
    run_inline(chat.feed_request(request.model_copy(update={"tts": speaking})))
    [spoken] = whole_reply(chat)
    assert spoken.text_delta and spoken.audio_data
    run_inline(chat.feed_request(request))
    chunks = list(iterate_inline(chat.reply()))
    assert chat.reply_end is not None
    assert "".join(chunk.text_delta or "" for chunk in chunks) == chat.reply_end.text
    assert chunks[-1].is_final
    with pytest.raises(OutOfOrderError):
        whole_reply(ChatView(chat.context))
    long = ChatRequest(messages=[user("a " * 50)], generation=GenerationConfig(max_inp_length=20))
    with pytest.raises(ContextFullError):
        run_inline(chat.feed_request(long))


def test_speech_needs_no_parameters(checkpoint: Path) -> None:
    processor = load(checkpoint)
    tts, short = TTSConfig(enabled=True), GenerationConfig(max_new_tokens=5)
    request = ChatRequest(messages=[user("hello")], tts=tts, generation=short)
    run_inline(processor.chat.feed_request(request))
    [reply] = whole_reply(processor.chat)
    assert reply.audio_data
    processor.release()
