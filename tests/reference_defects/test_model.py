"""Positions, the flow's history and its buffers: D1, D2, D28, D29."""

from __future__ import annotations

import numpy as np
import torch

from MiniCPMO45.kernels.products import Rope, rotate
from MiniCPMO45.settings import LoadOptions
from MiniCPMO45.token2wav.vocoder import Token2Wav
from MiniCPMO45.token2wav.voices import voice_key
from tests.goldens.recorded_vocoder import OutputLog, RecordedVocoder
from tests.goldens.report import Report
from tests.goldens.token2wav import MEL_RTOL_OF_MAX, load_vocoder, load_voice
from tests.model.toy import Toy
from tests.reference_defects.conftest import Recorded

CPU = torch.device("cpu")
HEAD_DIM, THETA = 128, 1_000_000.0  # of the published language model
FAR = 8_000  # tokens into a conversation


def test_d1_frequencies_are_not_rounded() -> None:
    exact = 1.0 / THETA ** (torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    rounded = exact.bfloat16().float()
    assert ((rounded - exact) * FAR).abs().max() > 1.0, "radians"
    assert torch.equal(Rope.build(HEAD_DIM, THETA, device=CPU).frequencies, exact)


def test_d2_a_moved_key_equals_one_computed_there() -> None:
    ours = Rope.build(HEAD_DIM, THETA, device=CPU)
    rounded = Rope(ours.frequencies.bfloat16().float())
    bare = torch.randn(1, 1, HEAD_DIM, generator=torch.Generator().manual_seed(0))

    def key(rope: Rope, position: int) -> torch.Tensor:
        return rotate(bare, *rope.tables(torch.tensor([position]), torch.float32))

    rule = ours.move(key(rounded, FAR), FAR, 100)  # exact angles on keys of a rounded table
    assert (rule - key(rounded, 100)).abs().max() > 0.1
    moved = ours.move(key(ours, FAR), FAR, 100)
    torch.testing.assert_close(moved, key(ours, 100), atol=1e-2, rtol=0)


def test_d28_the_token_rate_history_goes_on(recorded: Recorded) -> None:
    folder = recorded("token2wav_overlap")
    want = folder.tensors("token2wav_overlap")
    steps = folder.meta("token2wav_overlap_meta")["ode_steps"]
    ours = load_vocoder(folder, LoadOptions(flow_steps=steps))
    voice, noise = load_voice(folder)

    def fits(vocoder: Token2Wav, chunks: int) -> list[bool]:
        state, report = vocoder.new_state(vocoder.set_up(voice, noise=noise)), Report()
        mels = OutputLog(vocoder.flow)
        for index in range(chunks):
            codes = want[f"chunk{index}_tokens"].tolist()
            is_last = f"chunk{index + 1}_tokens" not in want
            vocoder.stream(state, codes, is_last)
            expected = want[f"chunk{index}_mel"]
            report.close("mel", mels.last[0].T, expected, rtol_of_max=MEL_RTOL_OF_MAX)
        return [row.passed for row in report.rows]

    n_chunks = sum(name.endswith("_mel") and name.startswith("chunk") for name in want)
    assert all(fits(RecordedVocoder(ours.flow, ours.hift, ours.options), n_chunks))
    assert fits(ours, n_chunks)[0] and not all(fits(ours, n_chunks)), "not from the third chunk on"


def test_d29_a_stream_holds_the_steps_it_takes(toy: Toy) -> None:
    depth = toy.vocoder.config.flow.estimator.depth
    held = toy.open_voice().memory.caches[0]
    assert held.shape[0] == toy.vocoder.options.flow_steps * depth < 16 * depth, (
        "the reference allocates 16 steps"
    )


def test_a_voice_is_not_rounded_to_16_bits() -> None:
    """Section 7.1: the reference's service passes a voice through a 16-bit file."""
    voice = np.random.default_rng(0).uniform(-1, 1, 16_000).astype(np.float32)
    rounded = (np.floor(voice * 32_768.0) / 32_768.0).astype(np.float32)
    assert voice_key(rounded) != voice_key(voice)
