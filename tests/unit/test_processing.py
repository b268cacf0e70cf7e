"""Messages into ids and spans: markers, joiners, slices, limits, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from MiniCPMO45.processing import prompts
from MiniCPMO45.processing.mel import MIN_CLIP_SAMPLES, ProcessingError
from MiniCPMO45.processing.processor import (
    PIECE_CHARACTERS,
    Content,
    Message,
    MiniCPMOProcessor,
    Prompt,
    PromptOptions,
    PromptTooLongError,
)
from tests.fakes.words import tiny_tokenizer

SECOND = np.zeros(16_000, np.float32)
WHOLE = Image.new("RGB", (448, 448))
WIDE = Image.new("RGB", (1280, 720))  # 3 x 2 slices at most 9


@pytest.fixture(scope="module")
def processor() -> MiniCPMOProcessor:
    return MiniCPMOProcessor.of(tiny_tokenizer())


def piece(
    processor: MiniCPMOProcessor, content: Content, options: PromptOptions | None = None
) -> Prompt:
    return processor.render_content(content, lambda text: text, options)


def decoded(processor: MiniCPMOProcessor, prompt: Prompt) -> str:
    """The prompt's ids as text, every run of slots as its length."""
    special = processor.tokenizer.special
    for start, stop in sorted((*prompt.image_spans, *prompt.audio_spans), reverse=True):
        assert set(prompt.ids[start:stop]) <= {special.unk}
    text = processor.tokenizer.decode(prompt.ids)
    for count in (64, 10):
        text = text.replace("<unk>" * count, f"{{{count}}}")
    return text


@pytest.mark.parametrize(
    ("omni_mode", "expected"),
    [
        (False, "a\n<image>{64}</image>\n<|audio_start|>{10}<|audio_end|>\nb"),
        (True, "a<image>{64}</image><|audio_start|>{10}<|audio_end|>b"),
    ],
)
def test_parts_are_joined_by_mode(
    processor: MiniCPMOProcessor, omni_mode: bool, expected: str
) -> None:
    options = PromptOptions(omni_mode=omni_mode, use_image_id=False)
    prompt = piece(processor, ["a", WHOLE, SECOND, "b"], options)
    assert decoded(processor, prompt) == expected
    joiner = "" if omni_mode else "\n"
    assert prompt.text == joiner.join(["a", prompts.IMAGE_MARKER, prompts.AUDIO_MARKER, "b"])


def test_a_film_clip_is_joined_with_nothing(processor: MiniCPMOProcessor) -> None:
    prompt = piece(
        processor, [[WHOLE, SECOND, WHOLE, SECOND], "What?"], PromptOptions(use_image_id=False)
    )
    one = "<image>{64}</image><|audio_start|>{10}<|audio_end|>"
    assert decoded(processor, prompt) == f"{one}{one}\nWhat?"


def test_slices_stand_in_rows(processor: MiniCPMOProcessor) -> None:
    prompt = piece(processor, [WIDE], PromptOptions(max_slice_nums=9, use_image_id=False))
    row = "<slice>{64}</slice>" * 3
    assert decoded(processor, prompt) == f"<image>{{64}}</image>{row}\n{row}"
    assert len(prompt.image_spans) == len(prompt.pictures[0].slices) == 7


def test_pictures_are_numbered_over_the_whole_prompt(processor: MiniCPMOProcessor) -> None:
    messages = [Message("user", [WHOLE, "a"]), Message("assistant", "b"), Message("user", [WHOLE])]
    text = decoded(processor, processor.render(messages, PromptOptions(use_image_id=True)))
    assert "<image_id>0</image_id><image>" in text
    assert "<image_id>1</image_id><image>" in text


def test_spans_hold_exactly_the_slots(processor: MiniCPMOProcessor) -> None:
    messages = [
        Message("system", ["voice", SECOND, "end"]),
        Message("user", [WIDE, "x", SECOND, WHOLE]),
    ]
    prompt = processor.render(messages, PromptOptions(max_slice_nums=2), add_generation_prompt=True)
    special = processor.tokenizer.special
    slots = [i for i, token in enumerate(prompt.ids) if token == special.unk]
    spans = sorted((*prompt.image_spans, *prompt.audio_spans))
    assert slots == [i for start, stop in spans for i in range(start, stop)]
    for start, stop in prompt.image_spans:
        assert prompt.ids[start - 1] in (special.image_start, special.slice_start)
        assert prompt.ids[stop] in (special.image_end, special.slice_end)
    for start, stop in prompt.audio_spans:
        assert prompt.ids[start - 1] == special.audio_start
        assert prompt.ids[stop] == special.audio_end


def test_ids_equal_those_of_the_expanded_text(processor: MiniCPMOProcessor) -> None:
    prompt = piece(processor, ["see", WIDE, "hear", SECOND, "now"])
    tokenizer = processor.tokenizer
    assert tokenizer.encode(tokenizer.decode(prompt.ids)) == list(prompt.ids)


def test_sound_asks_for_a_spoken_reply(processor: MiniCPMOProcessor) -> None:
    silent = processor.render([Message("user", "Hi")], add_generation_prompt=True)
    heard = processor.render([Message("user", ["Hi", SECOND])], add_generation_prompt=True)
    assert not silent.text.endswith(prompts.SPEECH_START)
    assert heard.text.endswith(prompts.EMPTY_THOUGHT + prompts.SPEECH_START)


def test_typed_markers_are_only_text(processor: MiniCPMOProcessor) -> None:
    typed = f"{prompts.IMAGE_MARKER}{prompts.AUDIO_MARKER}\ufdd0\ufdd1<unk>"
    prompt = piece(processor, [typed, SECOND])
    assert len(prompt.audio_spans) == len(prompt.clips) == 1
    assert prompt.image_spans == ()
    start, stop = prompt.audio_spans[0]
    assert stop - start == 10


def test_listen_tokens_in_text_are_left_out(processor: MiniCPMOProcessor) -> None:
    assert piece(processor, "a<|listen|>b<|listen|>").ids == (
        *processor.tokenizer.encode("a"),
        *processor.tokenizer.encode("b"),
    )


def test_a_string_is_one_part(processor: MiniCPMOProcessor) -> None:
    assert piece(processor, "Hi you").text == "Hi you"
    assert piece(processor, "Hi", PromptOptions(True, omni_mode=True)).text == "Hi"


def test_a_clip_too_short_for_a_slot_is_padded(processor: MiniCPMOProcessor) -> None:
    prompt = piece(processor, [np.ones(400, np.float32)])
    assert len(prompt.clips[0]) == MIN_CLIP_SAMPLES
    assert prompt.audio_spans == ((1, 2),)


def test_a_long_clip_counts_its_pieces(processor: MiniCPMOProcessor) -> None:
    prompt = piece(processor, [np.zeros(31 * 16_000, np.float32)])
    assert prompt.audio_spans == ((1, 311),)


def test_a_prompt_over_the_limit_is_refused(processor: MiniCPMOProcessor) -> None:
    fitting = piece(processor, [WHOLE, "Hi"])
    limit = len(fitting.ids)
    assert piece(processor, [WHOLE, "Hi"], PromptOptions(max_tokens=limit)).ids == fitting.ids
    with pytest.raises(PromptTooLongError, match=f"{limit} tokens, at most {limit - 1}"):
        piece(processor, [WHOLE, "Hi"], PromptOptions(max_tokens=limit - 1))


def test_a_text_far_beyond_the_limit_is_refused_before_all_of_it_is_encoded(
    processor: MiniCPMOProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    encode = processor.tokenizer.encode

    def counted(text: str) -> list[int]:
        encoded.append(len(text))
        return encode(text)

    text = "a b " * PIECE_CHARACTERS
    fitting = piece(processor, text)
    monkeypatch.setattr(processor.tokenizer, "encode", counted)
    with pytest.raises(PromptTooLongError, match="at most 9 are allowed"):
        piece(processor, text, PromptOptions(max_tokens=9))
    assert sum(encoded) == PIECE_CHARACTERS
    exact = PromptOptions(max_tokens=len(fitting.ids))
    assert piece(processor, text, exact).ids == fitting.ids, "a long text that fits is fed"


@pytest.mark.parametrize(
    "part",
    [
        np.zeros((2, 16_000), np.float32),
        np.zeros(16_000, np.int16),
        np.zeros(0, np.float32),
        np.full(16_000, np.nan, np.float32),
        np.full(16_000, 1e300),
        3.5,
        Image.new("RGB", (5000, 1)),
    ],
    ids=["stereo", "integers", "empty", "not numbers", "beyond float32", "a number", "a line"],
)
def test_unusable_parts_are_refused(processor: MiniCPMOProcessor, part: object) -> None:
    with pytest.raises(ProcessingError):
        piece(processor, [part])  # type: ignore[list-item]


def test_any_picture_mode_becomes_rgb(processor: MiniCPMOProcessor) -> None:
    for mode in ("L", "RGBA", "P", "CMYK"):
        prompt = piece(processor, [Image.new(mode, (64, 64))])
        assert prompt.pictures[0].slices[0].pixels.shape == (64, 64, 3)


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I;16L"])
def test_16_bit_grey_is_scaled(processor: MiniCPMOProcessor, mode: str) -> None:
    prompt = piece(processor, [Image.new(mode, (64, 64), 0x8000)])
    assert (prompt.pictures[0].slices[0].pixels == 0x80).all()


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_numbers_of_32_bits_range_from_black_to_white(
    processor: MiniCPMOProcessor, kind: type
) -> None:
    numbers: np.ndarray = np.array([[-1_000, 49_000], [99_000, 0]]).astype(kind)
    made = piece(processor, [Image.fromarray(numbers)]).pictures[0].slices[0].pixels
    assert made[..., 0].tolist() == [[0, 127], [255, 2]]
    with pytest.raises(ProcessingError, match="no finite numbers"):
        piece(processor, [Image.new("F", (4, 4), float("nan"))])


def test_a_transparent_picture_is_shown_on_white(processor: MiniCPMOProcessor) -> None:
    palette = Image.new("P", (64, 64))
    palette.putpalette([0, 0, 0])
    palette.info["transparency"] = 0
    for picture in (Image.new("RGBA", (64, 64)), Image.new("LA", (64, 64)), palette):
        prompt = piece(processor, [picture])
        assert (prompt.pictures[0].slices[0].pixels == 255).all(), picture.mode


def test_a_piece_stands_inside_the_callers_text(processor: MiniCPMOProcessor) -> None:
    prompt = processor.render_content(
        ["Hi", SECOND],
        lambda text: prompts.user_chunk(text, prompts.TurnOpening.AFTER_REPLY),
        PromptOptions(omni_mode=True),
    )
    assert prompt.text == f"<|tts_eos|><|im_end|>\n<|im_start|>user\nHi{prompts.AUDIO_MARKER}"
    opening = prompts.user_chunk("", prompts.TurnOpening.AFTER_REPLY)
    assert list(prompt.ids[:6]) == processor.tokenizer.encode(opening)
