"""The voice library caches a bounded number of prepared voices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from MiniCPMO45.loading.checkpoint_source import CheckpointError
from MiniCPMO45.tiny.checkpoint import write_campplus_onnx, write_speech_tokenizer_onnx
from MiniCPMO45.token2wav import voices
from MiniCPMO45.token2wav.vocoder_state import VoicePrompt
from MiniCPMO45.token2wav.voices import (
    FIXED_VOICE_FILE,
    SPEAKER_FILE,
    TOKENIZER_FILE,
    SpeakerEncoder,
    VoiceEncoder,
    VoiceLibrary,
    VoiceSampleError,
    read_fixed_voice,
)
from tests.model.toy import Toy
from training.nano.voice.export import write_fixed_voice


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> VoiceEncoder:
    folder = tmp_path_factory.mktemp("voices")
    write_speech_tokenizer_onnx(folder / TOKENIZER_FILE, seed=1)
    write_campplus_onnx(folder / SPEAKER_FILE, seed=2)
    return VoiceEncoder.from_folder(folder, torch.device("cpu"))


@pytest.mark.parametrize("name", [TOKENIZER_FILE, SPEAKER_FILE])
def test_a_missing_model_is_named(tmp_path: Path, name: str) -> None:
    write_speech_tokenizer_onnx(tmp_path / TOKENIZER_FILE, seed=1)
    write_campplus_onnx(tmp_path / SPEAKER_FILE, seed=2)
    (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        VoiceEncoder.from_folder(tmp_path, torch.device("cpu"))


def test_a_damaged_speaker_encoder_is_named(tmp_path: Path) -> None:
    path = tmp_path / SPEAKER_FILE
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(CheckpointError, match=SPEAKER_FILE):
        SpeakerEncoder(path)


def _recording(n_samples: int, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).standard_normal(n_samples)
    return (0.1 * noise).astype(np.float32)


def test_equal_recordings_share_one_voice(encoder: VoiceEncoder, toy: Toy) -> None:
    library = VoiceLibrary(encoder, toy.vocoder)
    first = library.base_of(_recording(8_000))
    assert library.base_of(_recording(8_000).copy()) is first
    assert library.base_of(_recording(8_000, seed=1)) is not first
    assert len(library) == 2


def test_the_voice_unused_longest_leaves(
    encoder: VoiceEncoder, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(voices, "MAX_VOICES", 2)
    library = VoiceLibrary(encoder, toy.vocoder)
    first, second = (library.base_of(_recording(8_000, seed)) for seed in (0, 1))
    assert library.base_of(_recording(8_000, 0)) is first
    library.base_of(_recording(8_000, 2))
    assert len(library) == 2
    assert library.base_of(_recording(8_000, 0)) is first
    assert library.base_of(_recording(8_000, 1)) is not second


def test_a_refused_recording_is_not_kept(encoder: VoiceEncoder, toy: Toy) -> None:
    library = VoiceLibrary(encoder, toy.vocoder)
    with pytest.raises(VoiceSampleError):
        library.base_of(_recording(10))
    assert len(library) == 0


def test_the_only_voice_answers_every_recording(toy: Toy, tmp_path: Path) -> None:
    voice = VoicePrompt(torch.zeros(1, 10).long(), torch.ones(1, 192), torch.zeros(1, 20, 80))
    write_fixed_voice(voice, tmp_path)
    kept = read_fixed_voice(tmp_path)
    assert kept is not None
    library = VoiceLibrary(kept, toy.vocoder)
    base = library.base_of(_recording(3))
    assert base.frames == voice.frames
    assert library.base_of(_recording(8_000)) is base
    assert library.has_one_voice
    assert len(library) == 1


def test_a_folder_without_the_file_takes_any_voice(tmp_path: Path) -> None:
    assert read_fixed_voice(tmp_path) is None


def test_a_damaged_voice_is_named(tmp_path: Path) -> None:
    (tmp_path / FIXED_VOICE_FILE).write_bytes(b"no tensors")
    with pytest.raises(CheckpointError, match=FIXED_VOICE_FILE):
        read_fixed_voice(tmp_path)
