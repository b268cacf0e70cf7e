"""The sampling kernels make the choices of the plain versions, given the same uniform numbers.

Without a card the kernels run in Triton's interpreter; `-m gpu` runs them compiled.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from MiniCPMO45.engine.policies import draw_uniforms
from MiniCPMO45.kernels import code_choice, unit_choice
from MiniCPMO45.kernels.code_choice import CODE_FORMAT, PENALTY_WINDOW, CodeWords
from MiniCPMO45.kernels.unit_choice import UNIT_FORMAT, UnitWords
from tests.unit.device.test_kernels import on_both, with_kernels

pytest.importorskip("triton", reason="Triton is not installed")

VOCABULARY, N_CODES = 2100, 300  # neither fills its last block
CHUNK_EOS, TURN_EOS, LISTEN, EOS = 2090, 2091, 2092, 299
MOST = 6  # codes of a run

TEXT_ROWS: dict[str, dict[str, Any]] = {
    "usual": {},
    "greedy": {"is_greedy": 1, "top_k": 1},
    "widest": {"top_k": 256, "top_p": 2.0, "temperature": 3.0},
    "one": {"top_k": 1},
    "nucleus of nothing": {"top_p": 0.0},
    "narrow": {"top_p": 0.2, "repetition_penalty": 2.0},
    "no history": {"n_recent": 0, "repetition_penalty": 2.0},
    "longer": {"length_penalty": 2.0},
    "listens by rank": {"listen_top_k": 30, "listen_bias": 2.0},
    "never listens": {"listen_top_k": 2000, "listen_bias": -np.inf},
    "cold": {"temperature": 1e-5},
    "ends": {"probe": 0.0},
}
CODE_ROWS: dict[str, dict[str, Any]] = {
    "duplex": {},
    "greedy": {"is_greedy": 1},
    "streamed": {"is_filtered": 1, "top_p": 0.85, "top_k": 25},
    "fewest": {"is_filtered": 1, "top_p": 0.01, "top_k": 3},
    "top-k alone": {"is_filtered": 1, "top_k": 5},
    "nucleus alone": {"is_filtered": 1, "top_p": 0.5, "top_k": 256},
    "strong penalty": {"penalty": 2.0},
    "may not end": {"least": 4},
    "heard much": {"n_recent": 16},
}


def _text_words(seed: int) -> Tensor:
    random = np.random.default_rng(seed)
    words = np.zeros((len(TEXT_ROWS), unit_choice.N_COLUMNS), np.int32)
    for row, changes in zip(words, TEXT_ROWS.values(), strict=True):
        usual = UnitWords(
            chunk_eos=CHUNK_EOS,
            turn_eos=TURN_EOS,
            listen=LISTEN,
            is_greedy=0,
            top_k=20,
            n_recent=9,
            temperature=0.7,
            top_p=0.8,
            repetition_penalty=1.05,
            length_penalty=1.1,
            probe=random.random(),
            draw=random.random(),
        )
        struct.pack_into(UNIT_FORMAT, row.data, 0, *usual._replace(**changes))
        row[unit_choice.N_WORDS :] = random.integers(0, VOCABULARY, unit_choice.MOST_RECENT)
    return torch.from_numpy(words)


def _code_words(seed: int) -> Tensor:
    random = np.random.default_rng(seed)
    words = np.zeros((len(CODE_ROWS), code_choice.UNIFORM + MOST), np.int32)
    usual = CodeWords(
        eos=EOS, is_greedy=0, top_k=256, n_recent=3, divisor=0.8, top_p=2.0, penalty=1.05
    )
    for row, changes in zip(words, CODE_ROWS.values(), strict=True):
        values = usual._replace(**changes)
        CODE_FORMAT.pack_into(row.data, 0, *values)
        ring = row[code_choice.N_WORDS : code_choice.UNIFORM]
        ring[:] = code_choice.NO_CODE
        ring[: values.n_recent] = random.integers(0, 6, values.n_recent)
        row[code_choice.UNIFORM :].view(np.float32)[:] = random.random(MOST)
    return torch.from_numpy(words)


@on_both
@pytest.mark.parametrize("seed", range(2))
def test_tokens_equal_the_plain_version(seed: int, device: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(TEXT_ROWS), VOCABULARY, generator=generator) * 2
    logits[:, CHUNK_EOS] = logits.logsumexp(-1) - 1.0
    logits[:, LISTEN] = 5.0
    is_forbidden = torch.rand(VOCABULARY, generator=generator) < 0.1
    is_forbidden[CHUNK_EOS] = True
    inputs = (_text_words(seed), is_forbidden, logits.to(dtype))
    on_device = [each.to(device) for each in inputs]
    found = with_kernels(unit_choice.choose_tokens, *on_device).tolist()
    assert found == unit_choice.choose_tokens(*on_device).tolist()
    by_name = dict(zip(TEXT_ROWS, found, strict=True))
    assert by_name["ends"] == CHUNK_EOS
    assert by_name["listens by rank"] in (LISTEN, CHUNK_EOS)
    assert len(set(found)) > 3


@on_both
@pytest.mark.parametrize("first", range(4))
def test_tied_logits_are_all_chosen_among(first: int, device: str, dtype: torch.dtype) -> None:
    """Forty tokens share the border of a top-k of twenty; each has its part of the numbers."""
    drawn = torch.arange(first, 40, 4)
    words = _text_words(0)[:1].repeat(len(drawn), 1)
    reals = words.view(torch.float32)
    reals[:, UnitWords._fields.index("top_p")] = 2.0
    reals[:, UnitWords._fields.index("probe")] = 1.0
    reals[:, UnitWords._fields.index("draw")] = (drawn + 0.5) / 40
    words[:, UnitWords._fields.index("n_recent")] = 0
    logits = torch.zeros(len(drawn), VOCABULARY, dtype=dtype)
    ties = torch.arange(40) * 50 + 3
    logits[:, ties] = 30.0
    is_forbidden = torch.zeros(VOCABULARY, dtype=torch.bool)
    on_device = [each.to(device) for each in (words, is_forbidden, logits)]
    assert with_kernels(unit_choice.choose_tokens, *on_device).tolist() == ties[drawn].tolist()
    assert unit_choice.choose_tokens(*on_device).tolist() == ties[drawn].tolist()


@on_both
def test_logits_that_are_not_numbers_are_marked(device: str, dtype: torch.dtype) -> None:
    """A code is fed back on the device, and so it is one whatever the logits; the note is not."""
    rows = _text_words(1)[::5]  # usual, narrow and cold: an interpreted row takes long
    inputs = [
        rows,
        torch.zeros(VOCABULARY, dtype=torch.bool),
        torch.full((len(rows), VOCABULARY), torch.nan, dtype=dtype),
    ]
    on_device = [each.to(device) for each in inputs]
    choose = unit_choice.choose_tokens
    for chosen in (with_kernels(choose, *on_device), choose(*on_device)):
        assert chosen.eq(unit_choice.NO_TOKEN).all()
    codes = torch.full((len(CODE_ROWS), N_CODES), torch.nan, device=device)
    for run in (partial(with_kernels, code_choice.choose_codes), code_choice.choose_codes):
        drawn = torch.zeros(len(CODE_ROWS), MOST, dtype=torch.int64, device=device)
        found = run(_code_words(0).to(device), drawn, codes)
        assert ((found >= 0) & (found < N_CODES)).all()
        assert drawn[:, 0].eq(code_choice.NO_CODE).all()


@on_both
@pytest.mark.parametrize("seed", range(2))
def test_runs_of_codes_equal_the_plain_version(seed: int, device: str, dtype: torch.dtype) -> None:
    """And so is everything a run leaves in its table."""
    generator = torch.Generator().manual_seed(seed)
    words, drawn = _code_words(seed), torch.zeros(len(CODE_ROWS), MOST, dtype=torch.int64)
    ours, theirs = ((words.to(device, copy=True), drawn.to(device, copy=True)) for _ in range(2))
    for _ in range(MOST):
        logits = torch.randn(len(CODE_ROWS), N_CODES, generator=generator) * 2
        logits[:, EOS] = 5.0
        logits = logits.to(dtype).float().to(device)
        found = with_kernels(code_choice.choose_codes, *ours, logits)
        assert found.tolist() == code_choice.choose_codes(*theirs, logits).tolist()
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])
    by_name = dict(zip(CODE_ROWS, ours[1].tolist(), strict=True))
    assert EOS not in by_name["may not end"][:4]
    assert EOS in ours[1]
    ring = ours[0][:, code_choice.N_WORDS : code_choice.UNIFORM]
    assert ring.shape[1] == PENALTY_WINDOW
    assert by_name["heard much"] == ring[-1, :MOST].tolist(), "the oldest are forgotten first"


def test_numbers_come_from_the_generator_and_move_it_on() -> None:
    generator, same = (torch.Generator().manual_seed(3) for _ in range(2))
    numbers = draw_uniforms(generator, 5)
    assert numbers == torch.rand(5, generator=same).tolist()
    assert torch.equal(generator.get_state(), same.get_state())


@pytest.mark.gpu
def test_numbers_of_a_card_are_uniform_and_come_again_after_a_rollback() -> None:
    generator = torch.Generator(device="cuda").manual_seed(3)
    state = generator.get_state()
    first = [draw_uniforms(generator, 26) for _ in range(1000)]
    generator.set_state(state)
    assert draw_uniforms(generator, 26) == first[0]
    every = np.concatenate(first)
    assert np.array_equal(every, every.astype(np.float32))
    assert 0 <= every.min() and every.max() < 1
    assert abs(every.mean() - 0.5) < 0.01
    assert len(np.unique(every)) > 0.99 * len(every)
    other = torch.Generator(device="cuda").manual_seed(4)
    assert draw_uniforms(other, 26) != first[0]
