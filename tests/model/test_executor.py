"""The executor's groups: answers in the order asked, whatever the mix of kinds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from MiniCPMO45.audio_cache import new_audio_cache
from MiniCPMO45.compat import Compat
from MiniCPMO45.executor import Executor, MissingVoiceError
from MiniCPMO45.image_processing import to_patches
from MiniCPMO45.kv_cache import CacheFullError
from MiniCPMO45.steps import (
    Embeddings,
    EncodeClips,
    EncodeImages,
    EncodeStream,
    LlmForward,
    LlmOutput,
    OpenVoice,
    Request,
    SpeechCodes,
    SpeechForward,
    SpokenText,
    TextMarkers,
    TokenIds,
    Vocode,
)
from tests.model.toy import Toy, assert_close, picture, speech


@pytest.fixture
def executor(toy: Toy) -> Executor:
    return toy.executor()


def _requests(toy: Toy, executor: Executor) -> list[Request]:
    """Two of most kinds, mixed, each with caches of its own."""
    generator = torch.Generator().manual_seed(0)

    def rows(count: int, width: int) -> Tensor:
        return torch.randn(count, width, generator=generator)

    def llm() -> Any:
        return executor.llm_store.open()

    def tts() -> Any:
        return executor.tts_store.open()

    def stream(n_frames: int, prefix: int) -> EncodeStream:
        cache = new_audio_cache(toy.config.audio_config)
        return EncodeStream(rows(80, n_frames).mul(0.1), cache, prefix, 2)

    width = toy.config.hidden_size
    return [
        LlmForward(llm(), (TokenIds((1, 2)), Embeddings(rows(3, width)), TokenIds((4,)))),
        SpeechForward(tts(), (SpokenText((5, 6), rows(2, width)), TextMarkers((7,)))),
        stream(102, 0),
        EncodeImages(tuple(to_patches(picture(n, 56, 42)) for n in range(2))),
        Vocode(toy.open_voice(), tuple(range(10, 38)), False),
        LlmForward(llm(), (TokenIds((9,)),), wants_logits=False),
        EncodeClips((rows(80, 90).mul(0.1),), 50),
        SpeechForward(tts(), (SpeechCodes((8,)),)),
        LlmForward(llm(), (TokenIds((3,)),)),
        stream(104, 2),
        EncodeImages((to_patches(picture(5, 70, 28)),)),
        Vocode(toy.open_voice(), (1, 2, 3, 4, 5), True),
    ]


def _assert_close(one: Any, other: Any) -> None:
    if isinstance(one, LlmOutput):
        assert (one.logits is None) is (other.logits is None)
        if one.logits is not None:
            assert_close(one.logits, other.logits)
        assert_close(one.hidden, other.hidden)
    elif isinstance(one, Tensor):
        assert_close(one, other)
    else:
        for mine, theirs in zip(one, other, strict=True):
            _assert_close(mine, theirs)


def test_a_mixed_group_is_answered_like_each_request_alone(toy: Toy, executor: Executor) -> None:
    together = executor.answer(_requests(toy, executor))
    alone = [executor.answer([request])[0] for request in _requests(toy, executor)]
    for one, other in zip(together, alone, strict=True):
        _assert_close(one, other)


def test_one_pass_per_kind(toy: Toy, executor: Executor) -> None:
    calls = {"llm": 0, "tts": 0}

    def counter(name: str) -> Any:
        def count(*_: object) -> None:
            calls[name] += 1

        return count

    decoders = {"llm": toy.model.llm.model, "tts": toy.model.tts.model}
    hooks = [each.register_forward_hook(counter(name)) for name, each in decoders.items()]
    executor.answer(_requests(toy, executor))
    for hook in hooks:
        hook.remove()
    assert calls == {"llm": 1, "tts": 1}


def test_nothing_asked_is_nothing_answered(executor: Executor) -> None:
    assert executor.answer([]) == []


def test_hidden_states_are_those_of_every_row_fed(executor: Executor) -> None:
    [output] = executor.answer(
        [LlmForward(executor.llm_store.open(), (TokenIds((1, 2)), TokenIds((3,))))]
    )
    head = executor.model.llm.lm_head
    assert output.hidden.shape == (3, executor.model.config.hidden_size)
    assert_close(output.logits, head(output.hidden[-1]))


def test_speech_logits_are_those_of_the_weight_normed_head(executor: Executor) -> None:
    tts = executor.model.tts
    with torch.inference_mode():
        hidden = torch.randn(3, tts.model.norm.weight.shape[0])
        expected = tts.head_code[0](hidden)
        assert_close(hidden @ executor.speech_head.T, expected)


def test_a_full_context_is_an_error_and_costs_nobody_a_token(executor: Executor) -> None:
    full, other = executor.llm_store.open(), executor.llm_store.open()
    too_many = executor.model.config.max_position_embeddings + 1
    long = torch.zeros(1, executor.model.config.hidden_size).expand(too_many, -1)
    with pytest.raises(CacheFullError):
        executor.answer(
            [LlmForward(other, (TokenIds((1,)),)), LlmForward(full, (Embeddings(long),))]
        )
    assert (full.length, other.length) == (0, 0)


def test_speech_without_a_vocoder_says_what_is_missing(toy: Toy) -> None:
    executor = Executor(toy.model, compat=Compat())
    requests = (Vocode(toy.open_voice(), (1,) * 28, False), OpenVoice(speech(1.0), None))
    for request in requests:
        with pytest.raises(MissingVoiceError):
            executor.answer([request])


def test_sessions_differ_unless_their_seed_is_the_same(executor: Executor) -> None:
    def draw(seed: int | None) -> float:
        return float(
            torch.rand(1, generator=executor.open_session("s", seed=seed).sampler.generator)
        )

    assert draw(5) == draw(5)
    assert len({draw(None), draw(None), draw(5), draw(6)}) == 4


def test_rounded_frequencies_are_the_references_only(toy: Toy) -> None:
    """D1 and D2; in float32 the rounding changes nothing."""
    plain, reference = toy.executor(), toy.executor(Compat.reference())
    assert torch.equal(plain.llm_store.rope.frequencies, reference.llm_store.rope.frequencies)
    assert (plain.llm_store.rope.moves_exactly, reference.llm_store.rope.moves_exactly) == (
        False,
        True,
    )
