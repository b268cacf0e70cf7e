"""Stages of the vocoder, and loading of their files in serving."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from MiniCPMO45.configuration_minicpmo import TIMING
from MiniCPMO45.token2wav.hift import HiFT
from MiniCPMO45.token2wav.load import load_token2wav
from MiniCPMO45.token2wav.voices import VoiceLibrary, read_fixed_voice
from tests.training.voice_recordings import recordings
from training.nano.export import write_voice_assets
from training.nano.shapes import vocoder_config
from training.nano.voice.alphabet import CODES_USED
from training.nano.voice.flow_stage import train_flow
from training.nano.voice.hift_stage import train_fundamental, train_hift
from training.nano.voice.recordings import PROMPT_CODES, Recordings
from training.nano.voice.stage_clock import StageClock

N_STEPS = 2


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Recordings:
    return recordings(tmp_path_factory.mktemp("recordings"))


@pytest.fixture(scope="module")
def weights(dataset: Recordings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    train_flow(dataset, folder, StageClock(N_STEPS), batch_size=2)
    train_hift(
        dataset, folder, StageClock(N_STEPS), batch_size=1, discriminators_from=0.5, f0_steps=2
    )
    return folder


def test_recordings_align_codes_mel_and_samples(dataset: Recordings) -> None:
    n_codes = len(dataset.codes)
    assert int(dataset.starts[-1]) == n_codes
    assert dataset.wave.shape == (n_codes * TIMING.samples_per_code,)
    assert dataset.mel.shape == (n_codes * TIMING.mel_frames_per_code, 80)
    assert dataset.f0_hz.shape == dataset.mel.shape[:1]


@pytest.mark.learning
def test_training_resumes_from_saved_weights(
    dataset: Recordings, weights: Path, tmp_path: Path
) -> None:
    (tmp_path / "flow.pt").write_bytes((weights / "flow.pt").read_bytes())
    before = torch.load(tmp_path / "flow.pt", weights_only=True)
    train_flow(dataset, tmp_path, StageClock(1), batch_size=1)
    again = torch.load(tmp_path / "flow.pt", weights_only=True)
    assert any(not torch.equal(again[name], before[name]) for name in before)
    for name, tensor in before.items():
        assert torch.allclose(again[name].float(), tensor.float(), atol=0.01)


@pytest.mark.learning
def test_exported_voice_synthesises_with_any_prompt(
    dataset: Recordings, weights: Path, tmp_path: Path
) -> None:
    write_voice_assets(weights, dataset, tmp_path)
    folder = tmp_path / "assets" / "token2wav"
    vocoder = load_token2wav(folder)
    assert vocoder.config == vocoder_config()
    voice = read_fixed_voice(folder)
    assert voice is not None and voice.codes.shape == (1, PROMPT_CODES)
    library = VoiceLibrary(voice, vocoder)
    base = library.base_of(np.zeros(3, np.float32))
    assert library.base_of(np.ones(16_000, np.float32)) is base
    state = vocoder.new_state(base, torch.Generator().manual_seed(0))
    samples = vocoder.stream(state, [*[TIMING.silence_code] * 3, *CODES_USED[:25]])
    assert samples.shape == (TIMING.sample_rate_hz,)
    assert bool(samples.isfinite().all())
    assert all(file.stat().st_size < 16 * 2**20 for file in folder.iterdir())


def test_f0_training_leaves_the_filter_unchanged() -> None:
    torch.manual_seed(0)
    hift = HiFT(vocoder_config().hift)
    before = {name: value.clone() for name, value in hift.state_dict().items()}
    mel, f0_hz = torch.randn(4, 80, 16), torch.full((4, 16), 200.0)
    missed = float((hift.f0_predictor(mel.transpose(1, 2)) - f0_hz).detach().abs().mean())
    assert train_fundamental(hift, lambda: (mel, f0_hz), 60) < missed / 4
    changed = {n for n, v in hift.state_dict().items() if not torch.equal(v, before[n])}
    assert changed and all(name.startswith("f0_predictor.") for name in changed)
