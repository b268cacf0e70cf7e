"""Chat, streaming and half duplex over scripted parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from core.audio import FloatArray, encode_wire_audio
from core.cascade.language import Line
from core.cascade.parts import Parts
from core.cascade.predefined import SEES_LITTLE
from core.cascade.prompts import CONTEXT_TOKENS, EXAMPLES, fit_context, prompt_of
from core.cascade.synthesis import Sentences
from core.cascade.turn_based import (
    NOT_HEARD,
    SILENCE_BEFORE_S,
    SPOKEN_TOKENS_MAX,
    CascadeChatView,
    CascadeStreamingView,
)
from core.errors import ContextFullError, OneVoiceError
from core.schemas import streaming
from core.schemas.chat import ChatRequest
from core.schemas.common import (
    AudioContent,
    GenerationConfig,
    ImageContent,
    Message,
    Role,
    TextContent,
    TTSConfig,
)
from core.schemas.half_duplex import HalfDuplexConfig
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ
from core.schemas.streaming import ReplyRequest, StreamingChunk, StreamingRequest
from core.serving.transcribers import LoopThreads
from core.transcription import Transcript
from tests.fakes.cascade_parts import (
    BEGAN,
    WORD_S,
    ScriptedLanguageModel,
    ScriptedTranscriber,
    scripted,
)
from tests.service.workers import jpeg

SECOND = np.zeros(16_000, np.float32)


async def all_of(reply: AsyncGenerator[StreamingChunk, None]) -> list[StreamingChunk]:
    return [chunk async for chunk in reply]


def language_of(parts: Parts) -> ScriptedLanguageModel:
    assert isinstance(parts.language_model, ScriptedLanguageModel)
    return parts.language_model


async def voice_chat(parts: Parts) -> CascadeStreamingView:
    view = CascadeStreamingView(parts, LoopThreads())
    await view.begin("Be kind.", voice=None, config=HalfDuplexConfig())
    return view


class SlowToEnd(ScriptedLanguageModel):
    """Prefetches until cancelled, and ends that in more than one turn of the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []

    async def prefetch(self, lines: Sequence[Line]) -> None:
        self.order.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.order.append("ended")


async def test_a_prompt_is_prefetched_after_the_one_before_it_has_ended() -> None:
    language_model = SlowToEnd()
    view = await voice_chat(replace(scripted(), language_model=language_model))
    await asyncio.sleep(0)
    await view.begin("Be brief.", voice=None, config=HalfDuplexConfig())
    await asyncio.sleep(0)
    assert language_model.order == ["begun", "ended", "begun"]


async def test_a_voice_chat_speaks_sentence_by_sentence_and_remembers() -> None:
    parts = scripted("Hello Anna. Nice to meet you!", "I see.", heard=["My name is Anna.", "And?"])

    view = await voice_chat(parts)
    await view.feed_segment(SECOND)
    *chunks, last = await all_of(view.answer(sets_rollback_point=False))
    assert [chunk.text_delta for chunk in chunks] == ["Hello Anna. ", "Nice to meet you!"]
    lengths = [len(chunk.audio_data or b"") // 4 for chunk in chunks]
    assert lengths == [int(words * WORD_S * OUTPUT_SAMPLE_RATE_HZ) for words in (2, 4)]
    assert last.is_final and view.reply_end is not None
    assert view.reply_end.text == "Hello Anna. Nice to meet you!"
    await view.feed_segment(SECOND)
    await all_of(view.answer(sets_rollback_point=False))
    asked = language_of(parts).asked[-1]
    assert [line.content for line in asked[-3:]] == [
        "My name is Anna.",
        "Hello Anna. Nice to meet you!",
        "And?",
    ]
    assert asked[0].role == "system" and asked[0].content.endswith("Be kind.")


async def test_speech_is_transcribed_behind_some_silence() -> None:
    heard: list[FloatArray] = []

    class Keeping(ScriptedTranscriber):
        async def transcribe(self, samples: FloatArray, *options: Any) -> Transcript:
            heard.append(samples)
            return await super().transcribe(samples, *options)

    view = await voice_chat(replace(scripted(), transcriber=Keeping("Hello, who are you?")))
    await view.feed_segment(np.ones_like(SECOND))
    [padded] = heard
    assert not padded[: -len(SECOND)].any() and padded[-len(SECOND) :].all()
    assert len(padded) / INPUT_SAMPLE_RATE_HZ == pytest.approx(1 + SILENCE_BEFORE_S)


async def test_what_was_not_understood_is_asked_again() -> None:
    parts = scripted(heard=["[noise]"])

    view = await voice_chat(parts)
    await view.feed_segment(SECOND)
    await all_of(view.answer(sets_rollback_point=False))
    assert view.reply_end is not None and view.reply_end.text == NOT_HEARD
    assert language_of(parts).asked == []


async def test_a_stopped_reply_keeps_what_was_handed_out_and_ends_the_drawing() -> None:
    parts = scripted("One is done. Two is done. Three is done.", heard=["Count."])

    view = await voice_chat(parts)
    await view.feed_segment(SECOND)
    reply = view.answer(sets_rollback_point=False)
    first = await anext(reply)
    view.stop()
    rest = [chunk async for chunk in reply]
    assert first.text_delta == "One is done. " and [chunk.is_final for chunk in rest] == [True]
    assert view.reply_end is not None and view.reply_end.stopped
    assert view.reply_end.text == "One is done. " and language_of(parts).ended == 1


async def test_a_spoken_reply_at_its_limit_ends_with_a_whole_sentence() -> None:
    words = " ".join(["word"] * (SPOKEN_TOKENS_MAX + 50))
    parts = scripted(f"This is short. And {words}", heard=["Tell me."])

    view = await voice_chat(parts)
    await view.feed_segment(SECOND)
    await all_of(view.answer(sets_rollback_point=False))
    assert view.reply_end is not None and view.reply_end.text.startswith("This is short. And")
    assert len(view.reply_end.text) < len(words)
    assert language_of(parts).samplings[0].max_tokens == SPOKEN_TOKENS_MAX


async def test_a_rolled_back_turn_was_never_said() -> None:
    parts = scripted("Yes.", heard=["First."])

    view = await voice_chat(parts)
    before = view.kv_cache_length
    await view.mark()
    await view.feed_segment(SECOND)
    await all_of(view.answer(sets_rollback_point=False))
    assert view.kv_cache_length > before and view.can_rollback()
    await view.roll_back()
    assert view.kv_cache_length == before and not view.can_rollback()


async def test_chat_hears_sound_and_is_told_of_pictures_it_cannot_read() -> None:
    parts = scripted("I cannot see it.", heard=["What is this?"])
    content = [
        AudioContent(data=encode_wire_audio(SECOND)),
        ImageContent(data=jpeg(64, 64)),
        TextContent(text="Please."),
    ]
    request = ChatRequest(
        messages=[Message(role=Role.USER, content=content)],
        generation=GenerationConfig(do_sample=False),
        seed=7,
        return_prompt=True,
    )

    view = CascadeChatView(parts, LoopThreads())
    answer = await view.respond(request)
    assert answer.text == "I cannot see it." and answer.audio_data is None
    [asked], [sampling] = language_of(parts).asked, language_of(parts).samplings
    assert "What is this?" in asked[-1].content and "Please." in asked[-1].content
    assert "cannot make out" in asked[-1].content
    assert (sampling.temperature, sampling.seed) == (0.0, 7)
    assert answer.prompt and answer.token_stats and answer.token_stats.input_tokens > 0


async def test_eyes_tell_what_is_on_a_picture() -> None:
    async def describe(picture: Any, question: str, threads: Any) -> str:
        return f"{picture.size} for {question!r}"

    parts = scripted("A circle.", describe=describe)
    language_of(parts).is_small = False
    content = [ImageContent(data=jpeg(64, 32)), TextContent(text="What shape is it?")]
    request = ChatRequest(messages=[Message(role=Role.USER, content=content)])

    await CascadeChatView(parts, LoopThreads()).respond(request)
    asked = language_of(parts).asked[0][-1].content
    assert "(64, 32) for 'What shape is it?'" in asked


@pytest.mark.parametrize("in_pieces", [True, False])
async def test_a_chat_reply_begins_as_it_was_told_to(in_pieces: bool) -> None:
    parts = scripted(" and so on.")
    request = ChatRequest(
        messages=[Message(role=Role.USER, content="Go.")],
        tts=TTSConfig(enabled=True),
        reply_start="First,",
    )

    view = CascadeChatView(parts, LoopThreads())
    await view.feed_request(request)
    chunks = await all_of(view.reply(in_pieces=in_pieces))
    assert "".join(chunk.text_delta or "" for chunk in chunks) == "First, and so on."
    assert any(chunk.audio_data for chunk in chunks)
    assert language_of(parts).asked[0][-1] == Line("assistant", "First,")


async def test_what_a_reply_begins_with_counts_towards_its_limit() -> None:
    parts = scripted("and so on.")
    view = CascadeStreamingView(parts, LoopThreads())
    await view.feed_request(
        StreamingRequest(session_id="s", messages=[Message(role=Role.USER, content="Go.")])
    )
    wanted = ReplyRequest(max_new_tokens=4, reply_start="First, ", generate_audio=False)
    await all_of(view.reply(wanted))
    assert view.reply_end is not None and view.reply_end.text == "First, and"
    assert [asked.max_tokens for asked in language_of(parts).samplings] == [1]


async def test_a_reply_with_a_given_beginning_is_never_predefined() -> None:
    request = ChatRequest(
        messages=[Message(role=Role.USER, content="What is 2 + 2?")],
        reply_start='<tool_call>\n{"name": "add", "arguments":',
    )
    answer = await CascadeChatView(scripted(" {}}"), LoopThreads()).respond(request)
    assert answer.text == '<tool_call>\n{"name": "add", "arguments": {}}'


async def test_a_reply_of_one_token_is_what_it_begins_with() -> None:
    view = CascadeStreamingView(scripted(), LoopThreads())
    messages = [Message(role=Role.USER, content="Go.")]
    await view.feed_request(StreamingRequest(session_id="s", messages=messages))
    wanted = ReplyRequest(max_new_tokens=1, reply_start="Done.", generate_audio=False)
    await all_of(view.reply(wanted))
    assert view.reply_end is not None and view.reply_end.text == "Done."


async def test_streaming_hands_out_words_and_goes_on_from_what_was_said() -> None:
    parts = scripted("One two", "Three")

    view = CascadeStreamingView(parts, LoopThreads())
    for text in ("Hi.", "And?"):
        messages = [Message(role=Role.USER, content=text)]
        await view.feed_request(StreamingRequest(session_id="s", messages=messages))
        chunks = await all_of(view.reply(streaming.Generate(generate_audio=False)))
        assert all(chunk.audio_data is None for chunk in chunks)
    assert [line.content for line in language_of(parts).asked[1][-3:]] == ["Hi.", "One two", "And?"]


async def test_a_voice_sample_is_not_used_unless_it_is_the_own_one() -> None:
    own = np.linspace(-1, 1, 16_000, dtype=np.float32)

    view = CascadeStreamingView(scripted(default_voice=own), LoopThreads())
    for voice, notices in ((own, 0), (-own, 1)):
        await view.begin("", voice=voice, config=HalfDuplexConfig())
        assert [type(each) for each in view.take_notices()] == [OneVoiceError] * notices


def test_the_prompt_holds_the_date_and_keeps_its_beginning() -> None:
    lines = [Line("system", "Be brief."), Line("user", "Hi."), Line("user", "There.")]
    prompt = prompt_of(lines, BEGAN)
    assert "Monday, 4 May 2026, 9:07 AM." in prompt[0].content and "Be brief." in prompt[0].content
    assert tuple(prompt[1 : len(EXAMPLES) + 1]) == EXAMPLES
    assert prompt[len(EXAMPLES) + 1 :] == [Line("user", "Hi. There.")]


def test_a_long_conversation_forgets_its_beginning_and_never_its_instructions() -> None:
    system = Line("system", "Be brief.")
    said = [Line("user", f"{number} {'word ' * 200}") for number in range(40)]
    kept = fit_context([system, *said])
    assert kept[0] == system and kept[-1] == said[-1] and len(kept) < 20
    with pytest.raises(ContextFullError, match=str(CONTEXT_TOKENS)):
        fit_context([system, Line("user", "x" * 20_000)])


async def test_only_the_bundled_model_gets_its_examples() -> None:
    for is_small in (True, False):
        parts = scripted("Fine.")
        language_of(parts).is_small = is_small
        request = ChatRequest(messages=[Message(role=Role.USER, content="How are you?")])
        await CascadeChatView(parts, LoopThreads()).respond(request)
        [asked] = language_of(parts).asked
        assert (len(asked) > 2) is is_small


async def test_a_chosen_model_answers_everything_itself() -> None:
    parts = scripted("I am Large.")
    language_of(parts).is_small = False
    request = ChatRequest(messages=[Message(role=Role.USER, content="Who are you?")])
    assert (await CascadeChatView(parts, LoopThreads()).respond(request)).text == "I am Large."


@pytest.mark.parametrize(
    "text",
    [
        "Dr. Smith lives here. He is 3.5 years old! Really? Yes",
        "Well, I would say so, and then, perhaps, not. Bye.",
        "One line\nand another\n\nand more",
        "word " * 200,
        "",
    ],
)
def test_pieces_joined_are_the_reply(text: str) -> None:
    sentences, pieces = Sentences(), []
    for letter in text:
        pieces += sentences.add(letter)
    assert "".join([*pieces, sentences.rest]) == text
    assert all(len(piece) < 260 for piece in pieces)


def test_the_first_piece_may_be_a_clause_and_titles_end_no_sentence() -> None:
    sentences = Sentences()
    found = sentences.add("Oh, I think that Dr. Smith knows it, but I do not, really. And so on")
    assert found == ["Oh, I think that Dr. Smith knows it, ", "but I do not, really. "]


def test_the_first_piece_may_end_in_front_of_a_verb_or_a_preposition() -> None:
    sentences = Sentences()
    assert sentences.add("The capital of France is") == ["The capital of France "]
    assert sentences.add(" Paris, which lies on the Seine in the north.") == []


def test_the_first_piece_waits_for_no_token_behind_its_mark() -> None:
    sentences = Sentences()
    assert sentences.add("It is Rome.") == []  # shorter than what takes its place can be made in
    assert Sentences().add("The capital is Rome.") == ["The capital is Rome."]
    assert Sentences().add("I would ask for Dr.") == Sentences().add("It is worth about 3.") == []


@pytest.mark.parametrize("question", ["[noise]", " "])
async def test_a_message_without_words_is_asked_for_again(question: str) -> None:
    parts = scripted("I'm tired.", heard=[question])
    sound = AudioContent(data=encode_wire_audio(SECOND))
    content = [sound] if question.strip() else question
    request = ChatRequest(messages=[Message(role=Role.USER, content=content)])

    answer = await CascadeChatView(parts, LoopThreads()).respond(request)
    assert answer.text == NOT_HEARD and language_of(parts).asked == []


@pytest.mark.parametrize(
    ("question", "limit", "is_cut"),
    [("Go.", 6, False), ("Go.", 5, True), ("What's 7+5?", 2, False)],
)
async def test_a_reply_has_as_many_tokens_as_its_limit_only_if_it_was_cut_off(
    question: str, limit: int, is_cut: bool
) -> None:
    request = ChatRequest(
        messages=[Message(role=Role.USER, content=question)],
        generation=GenerationConfig(max_new_tokens=limit),
    )
    parts = scripted("Cats undoubtedly demonstrate remarkable individuality.")
    answer = await CascadeChatView(parts, LoopThreads()).respond(request)
    assert (answer.tokens_generated >= limit) is is_cut


async def test_an_earlier_picture_is_remembered() -> None:
    async def describe(picture: Any, question: str, threads: Any) -> str:
        return "I see a red circle."

    view = CascadeStreamingView(scripted("Sure.", describe=describe), LoopThreads())
    texts = []
    for content in (
        [ImageContent(data=jpeg(64, 32)), TextContent(text="Here you are.")],
        "And what color is it?",
    ):
        messages = [Message(role=Role.USER, content=content)]
        await view.feed_request(StreamingRequest(session_id="s", messages=messages))
        await all_of(view.reply(ReplyRequest(generate_audio=False)))
        texts.append(view.reply_end and view.reply_end.text)
    assert texts == ["Sure.", f"I see a red circle. {SEES_LITTLE}"]
