"""The documented methods of streaming and half duplex."""

from __future__ import annotations

import pytest

from core.audio import FloatArray, encode_wire_audio, from_pcm
from core.engine.engine import run_inline
from core.errors import AudioError, NotPreparedError, OutOfOrderError
from core.processors import HalfDuplexView, UnifiedProcessor
from core.processors.view import iterate_inline
from core.schemas.common import AudioContent, GenerationConfig, Message, Role, TextContent
from core.schemas.half_duplex import HalfDuplexConfig, TurnSpeechConfig
from core.schemas.streaming import ReplyEnd, StreamingChunk, StreamingConfig, StreamingRequest
from MiniCPMO45.settings import GenerationSettings
from tests.fakes.batching import collect
from tests.model.toy import speech
from tests.model.views import finish, prefill

# Streaming


def test_a_retained_session_feeds_only_new_messages(processor: UnifiedProcessor) -> None:
    view = processor.set_half_duplex_mode()
    assert prefill(view, "a", "hello").endswith("user\nhello")
    fed = view.kv_cache_length
    _, result = finish(view, view.generate("a", max_new_tokens=8))
    replied = view.kv_cache_length
    assert replied > fed > 0 and result.generated_tokens == 8
    assert prefill(view, "a", "go on").endswith("user\ngo on")
    assert 0 < view.kv_cache_length - replied < replied


def test_another_session_starts_empty(processor: UnifiedProcessor) -> None:
    view = processor.streaming
    prefill(view, "a", "hello, how are you?")
    with pytest.raises(OutOfOrderError):
        finish(view, view.generate("b"))
    prefill(view, "b", "hello")
    fresh = view.kv_cache_length
    view.reset_session("b")
    assert view.kv_cache_length == 0
    prefill(view, "b", "hello")
    assert view.kv_cache_length == fresh
    assert len(processor.model.executor.llm_store.handles) == 1


def test_chunks_have_text_and_audio(processor: UnifiedProcessor) -> None:
    view = processor.streaming
    prefill(view, "a", "tell me")
    chunks, result = finish(view, view.generate("a", max_new_tokens=16))
    *spoken, last = chunks
    assert [chunk.chunk_index for chunk in chunks] == list(range(len(chunks)))
    assert (last.is_final, last.text_delta, last.audio_data) == (True, None, None)
    assert not any(chunk.is_final for chunk in spoken)
    assert "".join(chunk.text_delta or "" for chunk in spoken) == result.text
    sounds = [chunk.audio_data for chunk in spoken if chunk.audio_data]
    assert sounds and all(len(from_pcm(sound)) for sound in sounds)
    prefill(view, "a", "again")
    silent, _ = finish(view, view.generate("a", generate_audio=False, max_new_tokens=8))
    assert not any(chunk.audio_data for chunk in silent)


def test_prefill_settings_apply_to_the_reply(processor: UnifiedProcessor) -> None:
    view, texts = processor.streaming, []
    for temperature, given in ((0.0, None), (2.0, 0.0), (2.0, None)):
        view.reset_session("a")
        generation = GenerationConfig(temperature=temperature, top_p=1.0)
        prefill(view, "a", "tell me", generation=generation)
        steps = view.generate("a", generate_audio=False, max_new_tokens=10, temperature=given)
        texts.append(finish(view, steps)[1].text)
    assert texts[0] == texts[1] != texts[2]


def test_the_requests_settings_are_those_of_the_reply(processor: UnifiedProcessor) -> None:
    view = processor.streaming
    for speaks in (False, True):
        view.reset_session("a")
        config = StreamingConfig(generate_audio=speaks)
        generation = GenerationConfig(max_new_tokens=6, min_new_tokens=6)
        prefill(view, "a", "tell me", generation=generation, streaming=config)
        chunks, result = finish(view, iterate_inline(view.reply()))
        assert result.generated_tokens == 6
        assert any(chunk.audio_data for chunk in chunks) is speaks


def test_a_speculative_reply_can_be_rolled_back_once(processor: UnifiedProcessor) -> None:
    view = processor.streaming
    assert not view.can_rollback()
    assert not view.rollback().success
    prefill(view, "a", "hello")
    before = view.kv_cache_length
    finish(view, view.generate("a", max_new_tokens=5, enable_speculative_snapshot=True))
    assert view.can_rollback()
    done = view.rollback()
    assert (done.success, done.restored_position) == (True, before)
    again = view.rollback()
    assert not again.success and again.reason
    finish(view, view.generate("a", max_new_tokens=5, enable_speculative_snapshot=True))
    view.clear_rollback_point()
    assert not view.can_rollback()


def test_a_reply_is_drawn_as_its_request_says(processor: UnifiedProcessor) -> None:
    view = processor.streaming
    drawing = GenerationConfig(max_new_tokens=5, min_new_tokens=5, do_sample=False)
    silent = StreamingConfig(generate_audio=False)
    prefill(view, "a", "tell me", generation=drawing, streaming=silent)
    chunks, result = finish(view, view.generate("a"))
    assert result.generated_tokens == 5
    assert not any(chunk.audio_data for chunk in chunks)


def test_a_stop_ends_this_reply_and_not_the_next(processor: UnifiedProcessor) -> None:
    view = processor.streaming
    prefill(view, "a", "hello")
    stream = view.generate("a", generate_audio=False)  # each token is a chunk
    next(stream)
    view.stop()
    assert view.session.stop.is_set()
    _, result = finish(view, stream)
    assert result.stopped and not view.session.stop.is_set()
    prefill(view, "a", "go on")
    assert finish(view, view.generate("a", max_new_tokens=4, do_sample=False))[1].generated_tokens


def test_abandoned_reply_is_stopped(processor: UnifiedProcessor) -> None:
    view = processor.streaming
    prefill(view, "a", "hello")
    stream = view.generate("a")
    next(stream)
    stream.close()
    session = view.session
    assert not view.session.stop.is_set()
    assert sum(each.length for each in session.window.rounds) == session.kv.length
    assert prefill(view, "a", "go on").startswith("<|tts_eos|><|im_end|>")


def test_an_unusable_voice_leaves_the_previous_one(processor: UnifiedProcessor) -> None:
    view = processor.streaming
    view.init_ref_audio_from_data(speech(1.0))
    with pytest.raises(AudioError, match="voice sample lasts"):
        view.init_ref_audio_from_data(speech(0.2))
    with pytest.raises(AudioError):
        view.init_ref_audio("/nowhere.wav")
    config = StreamingConfig(ref_audio_data=encode_wire_audio(speech(0.1)))
    with pytest.raises(AudioError):
        prefill(view, "a", "hello", streaming=config)
    prefill(view, "a", "hello")
    finish(view, view.generate("a", max_new_tokens=3))
    assert len(processor.model.executor.voices or ()) >= 1


def test_voice_affects_audio_and_not_text(processor: UnifiedProcessor) -> None:
    view, found = processor.streaming, []
    for voice in (speech(1.0, 1), speech(1.0, 2), None):
        view.reset_session("a")
        if voice is None:
            view.init_ref_audio()
        else:
            view.init_ref_audio_from_data(voice)
        prefill(view, "a", "hello")
        chunks, result = finish(view, view.generate("a", max_new_tokens=6))
        found.append((result.text, [chunk.audio_data for chunk in chunks]))
    assert len({text for text, _ in found}) == 1
    assert found[0][1] != found[1][1] != found[2][1]


def test_the_voice_that_one_client_sent_does_not_speak_to_another(
    processor: UnifiedProcessor,
) -> None:
    """Both have the same history, so the second continues over the first one's cache."""
    view, found = processor.streaming, []
    for voice in (None, speech(1.0, 1)):
        view.reset_session("a")
        run_inline(view.choose_voice(voice))
        prefill(view, "a", "hello")
        view.use_threads(view.context.threads)
        chunks, _ = finish(view, view.generate("a", max_new_tokens=6))
        found.append([chunk.audio_data for chunk in chunks])
    assert any(found[0]) and found[0] == found[1]


# Half duplex


def take_turn(view: HalfDuplexView, segment: FloatArray) -> tuple[list[StreamingChunk], ReplyEnd]:
    """Prefill a segment and answer it."""
    run_inline(view.feed_segment(segment))
    return finish(view, iterate_inline(view.answer()))


def test_segment_is_a_user_turn(processor: UnifiedProcessor) -> None:
    view = processor.set_half_duplex_mode()
    with pytest.raises(NotPreparedError):
        run_inline(view.feed_segment(speech(1.0)))
    prompt = run_inline(view.begin(["You are kind. Speak so:", speech(1.0, 1), "Always."]))
    assert prompt.count("<audio>./</audio>") == 1
    for _ in range(2):
        before = view.kv_cache_length
        run_inline(view.feed_segment(speech(1.4, 2)))
        fed = view.kv_cache_length - before
        pieces, result = finish(view, iterate_inline(view.answer()))
        assert "".join(piece.text_delta or "" for piece in pieces) == result.text
        assert view.can_rollback()
        view.clear_rollback_point()
    marks = "<|tts_eos|><|im_end|>\n<|im_start|>user\n<|audio_start|><|audio_end|>"
    assert fed == len(processor.model.processor.tokenizer.encode(marks)) + 14


def test_text_only_half_duplex_has_no_speech_template(processor: UnifiedProcessor) -> None:
    view = processor.half_duplex
    config = HalfDuplexConfig(tts=TurnSpeechConfig(enabled=False))
    run_inline(view.begin("Be brief.", config=config))
    run_inline(view.feed_segment(speech(1.4, 2)))
    fed = view.kv_cache_length
    pieces, result = finish(view, iterate_inline(view.answer()))
    assert not any(piece.audio_data is not None for piece in pieces)
    prefix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    tokens = len(processor.model.processor.tokenizer.encode(prefix)) + result.generated_tokens
    assert view.kv_cache_length == fed + tokens


def test_messages_can_mix_text_and_audio(processor: UnifiedProcessor) -> None:
    sound = AudioContent(data=encode_wire_audio(speech(2.0)))
    message = Message(role=Role.USER, content=[TextContent(text="hear"), sound])
    request = StreamingRequest(session_id="a", messages=[message], omni_mode=False)
    prompt = processor.streaming.prefill(request)
    assert prompt.endswith("user\nhear\n<audio>./</audio>")


def test_half_duplex_prefill_takes_a_snapshot(processor: UnifiedProcessor) -> None:
    view = processor.half_duplex
    told = Message(role=Role.SYSTEM, content="Be brief.")
    view.prefill(StreamingRequest(session_id="h", messages=[told]))
    prompt = view.kv_cache_length
    assert view.can_rollback()
    prefill(view, "h", "Hello")
    prefill(view, "h", "there")
    assert view.rollback().restored_position == prompt, "the turn is undone, the prompt kept"


def test_text_without_speech_is_streamed_by_token(processor: UnifiedProcessor) -> None:
    view = processor.streaming
    prefill(view, "t", "Tell me")
    settings = GenerationSettings(generate_audio=False, max_new_tokens=30, do_sample=False)
    model = view.context.model
    chunks, reply = collect(model.streaming.generate(view.session, settings), model.executor)
    texts = [chunk.text for chunk in chunks if chunk.text]
    assert "".join(texts) == reply.text
    decode = model.processor.tokenizer.decode
    whole = [token for token in reply.ids if "\ufffd" not in (decode([token]) or "\ufffd")]
    assert len(texts) >= len(whole) - 1 > 1, "the limit hands out the last two together"
