"""The input of one unit: how samples are dealt out to units, and how pictures are laid out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from core.engine.passes import run_alone
from MiniCPMO45.configuration_minicpmo import SliceConfig
from MiniCPMO45.engine.session import Session
from MiniCPMO45.engine.steps import EncodeImages
from MiniCPMO45.model.audio_encoder import EncodeStream
from MiniCPMO45.modes import duplex
from MiniCPMO45.modes.duplex import get_audio_embedding, prepare_audio
from MiniCPMO45.modes.prompt_input import Pieces, picture_pieces
from MiniCPMO45.processing.tokenizer import SpecialTokens
from tests.fakes.scripted import ROWS_PER_SLICE, ScriptedExecutor
from tests.fakes.words import tiny_tokenizer

LEAD_TO, FIRST, LATER = 16_560, 16_480, 16_000


@pytest.fixture
def executor() -> ScriptedExecutor:
    return ScriptedExecutor(1)


@pytest.fixture
def session(executor: ScriptedExecutor) -> Session:
    return executor.open_session()


@pytest.fixture(scope="module")
def tokens() -> SpecialTokens:
    return tiny_tokenizer().special


def _ramp(n_samples: int, start: int = 1) -> np.ndarray:
    return np.arange(start, start + n_samples, dtype=np.float32)


def split(session: Session, audio: Any) -> tuple[Tensor | None, Tensor]:
    """Return the samples of the next unit, None if there are too few, and those that wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplex, "push", lambda _state, samples: samples)
        prepared = prepare_audio(session.audio_input, audio)
    return prepared.mel, prepared.rest


def _units(session: Session, pieces: list[np.ndarray]) -> Iterator[Tensor]:
    for piece in pieces:
        samples, session.audio_input.pending = split(session, piece)
        if samples is not None:
            session.audio_input.audio_units += 1
            yield samples


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=12))
def test_no_sample_is_lost_doubled_or_moved(lengths: list[int]) -> None:
    session = ScriptedExecutor(1).open_session()
    total = _ramp(sum(lengths))
    pieces = np.split(total, np.cumsum(lengths)[:-1])
    units = list(_units(session, pieces))
    lead = max(0, LEAD_TO - lengths[0])
    assert [len(unit) for unit in units] == [FIRST, *[LATER] * (len(units) - 1)]
    dealt = torch.cat([*units, session.audio_input.pending])
    assert torch.equal(dealt, torch.cat((torch.zeros(lead), torch.from_numpy(total))))


def test_seconds_in_are_seconds_out_and_80_samples_stay(session: Session) -> None:
    """From the first unit on, exactly one second is needed for each."""
    seconds = [_ramp(LATER, start=LATER * i) for i in range(5)]
    waiting = [len(session.audio_input.pending) for _ in _units(session, seconds)]
    assert waiting == [LEAD_TO - FIRST] * 5 == [80] * 5


def test_too_little_audio_waits(session: Session) -> None:
    list(_units(session, [_ramp(LATER)]))
    samples, waiting = split(session, _ramp(LATER - 81))
    assert samples is None
    session.audio_input.pending = waiting
    samples, waiting = split(session, _ramp(1))
    assert samples is not None
    assert (len(samples), len(waiting)) == (LATER, 0)


def test_more_than_a_second_waits_for_the_next_units(session: Session) -> None:
    units = list(_units(session, [_ramp(3 * LATER), _ramp(1), _ramp(1)]))
    assert [len(unit) for unit in units] == [FIRST, LATER]
    assert len(session.audio_input.pending) == 3 * LATER + 2 - FIRST - LATER


def test_splitting_leaves_the_state_alone(session: Session) -> None:
    before = session.audio_input.pending
    split(session, _ramp(20_000))
    assert session.audio_input.pending is before
    assert session.audio_input.audio_units == 0


def test_audio_is_prepared_without_changing_the_session(session: Session) -> None:
    audio_input = session.audio_input
    first, again = (prepare_audio(audio_input, _ramp(20_000) / 1e6) for _ in range(2))
    assert first.mel is not None and again.mel is not None and torch.equal(first.mel, again.mel)
    assert (audio_input.audio_units, audio_input.mel.core_end, len(audio_input.pending)) == (
        0,
        0,
        0,
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["read-only", "reversed", "float64", "list"])
def test_any_array_of_samples_will_do(session: Session, kind: str) -> None:
    audio = _ramp(20_000)
    given_as = {
        "read-only": np.frombuffer(audio.tobytes(), np.float32),
        "reversed": audio[::-1].copy()[::-1],
        "float64": audio.astype(np.float64),
        "list": audio.tolist(),
    }
    samples, _ = split(session, given_as[kind])
    assert samples is not None
    assert samples.dtype == torch.float32
    assert torch.equal(samples, torch.from_numpy(audio[:FIRST]))


def test_the_waiting_samples_are_not_the_callers_memory(session: Session) -> None:
    audio = _ramp(20_000)
    _, waiting = split(session, audio)
    before = waiting.clone()
    audio[:] = 0
    assert torch.equal(waiting, before)


def test_units_reach_the_encoder_with_their_context(
    executor: ScriptedExecutor, session: Session
) -> None:
    """102 mel frames without left context first, then 104 with two frames on each side."""
    for piece in [_ramp(LATER) / 1e6] * 6:
        audio = prepare_audio(session.audio_input, piece)
        rows = run_alone(get_audio_embedding(session.audio_input, audio), executor)
        assert len(rows) == 10
    asked = executor.of_kind(EncodeStream)
    assert [each.mel.shape for each in asked] == [(80, 102), *[(80, 104)] * 5]
    assert [each.is_first for each in asked] == [True, *[False] * 5]
    assert session.audio_input.audio_units == 6


def _marks(pieces: Pieces, tokens: SpecialTokens) -> str:
    names = {
        tokens.image_start: "<",
        tokens.image_end: ">",
        tokens.slice_start: "(",
        tokens.slice_end: ")",
    }
    return "".join(
        "x" * (len(piece) // ROWS_PER_SLICE)
        if isinstance(piece, Tensor)
        else "".join(names[i] for i in piece)
        for piece in pieces
    )


@pytest.mark.parametrize(
    ("limits", "expected", "slices"),
    [(1, "<x><x>", 2), ([1, 1], "<x><x>", 2), ([1, 4], "<x><x>(x)(x)", 4)],
)
def test_pictures_stand_between_marks_overview_first(
    executor: ScriptedExecutor,
    tokens: SpecialTokens,
    limits: int | list[int],
    expected: str,
    slices: int,
) -> None:
    frames = [Image.new("RGB", (100, 80)), Image.new("RGB", (900, 450))]
    steps = picture_pieces(frames, limits, SliceConfig(), tokens)
    pieces, count = run_alone(steps, executor)
    assert _marks(pieces, tokens) == expected
    assert count == slices
    assert len(executor.of_kind(EncodeImages)) == 1, "all slices in one request"


def test_limits_that_do_not_match_the_frames_are_refused(
    executor: ScriptedExecutor, tokens: SpecialTokens
) -> None:
    frames = [Image.new("RGB", (10, 10))]
    with pytest.raises(ValueError, match="2 entries for 1 frames"):
        run_alone(picture_pieces(frames, [1, 1], SliceConfig(), tokens), executor)
