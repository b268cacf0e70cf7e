"""Recordings become voices, of which the library caches a bounded number."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

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
    fit_frames,
    read_fixed_voice,
    voice_key,
)
from tests.model.toy import Toy
from training.nano.export import write_fixed_voice

RATE_HZ = 16_000
T = TypeVar("T")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both tiny graphs, as a checkpoint has them."""
    path = tmp_path_factory.mktemp("token2wav")
    write_speech_tokenizer_onnx(path / TOKENIZER_FILE, seed=1)
    write_campplus_onnx(path / SPEAKER_FILE, seed=2)
    return path


@pytest.fixture(scope="module")
def encoder(folder: Path) -> VoiceEncoder:
    return VoiceEncoder.from_folder(folder, torch.device("cpu"))


def _recording(n_samples: int, seed: int = 0) -> NDArray[np.float32]:
    noise = np.random.default_rng(seed).standard_normal(n_samples)
    return (0.1 * noise).astype(np.float32)


@pytest.mark.parametrize("n_samples", [8_000, 8_639, 20_001, 48_000, 270_080])
def test_mel_has_two_frames_for_every_code(encoder: VoiceEncoder, n_samples: int) -> None:
    voice = encoder.prepare_voice(_recording(n_samples))
    n_codes = math.ceil(n_samples // 160 / 4)
    assert voice.codes.shape == (1, n_codes)
    assert voice.codes.dtype == torch.int64
    assert voice.speaker.shape == (1, 192)
    assert voice.mel.shape == (1, 2 * n_codes, 80)
    assert voice.mel.dtype == voice.speaker.dtype == torch.float32


@pytest.mark.parametrize(
    ("audio", "message"),
    [
        (_recording(7_999), r"at least 0\.5 s; found 0\.50 s"),
        (_recording(32_000).reshape(2, -1), "one channel"),
        (np.full(16_000, np.nan, np.float32), "finite"),
    ],
)
def test_what_cannot_be_a_voice_is_refused(
    encoder: VoiceEncoder, audio: NDArray[np.float32], message: str
) -> None:
    with pytest.raises(VoiceSampleError, match=message):
        encoder.prepare_voice(audio)


def test_of_a_long_recording_as_much_is_used_as_leaves_room_for_a_chunk(
    encoder: VoiceEncoder,
) -> None:
    recording = _recording(30 * RATE_HZ)
    voice = encoder.prepare_voice(recording)
    assert voice.mel.shape[1] + 156 == 1_000
    assert torch.equal(voice.codes, encoder.prepare_voice(recording[:270_080]).codes)


def test_frames_are_cropped_or_the_last_one_repeated() -> None:
    mel = torch.randn(80, 5)
    assert torch.equal(fit_frames(mel, 3), mel[:, :3])
    longer = fit_frames(mel, 7)
    assert torch.equal(longer[:, :5], mel)
    assert torch.equal(longer[:, 5:], mel[:, -1:].expand(80, 2))


def test_the_key_tells_what_the_voice_depends_on() -> None:
    audio = _recording(100)
    assert voice_key(audio.copy()) == voice_key(audio)
    assert voice_key(audio[:-1]) != voice_key(audio)


def test_the_speaker_encoder_embeds_by_content(folder: Path) -> None:
    speaker = SpeakerEncoder(folder / SPEAKER_FILE)
    bank = _recording(50 * 80).reshape(50, 80)
    embedding = speaker.embed(bank)
    np.testing.assert_array_equal(speaker.embed(bank), embedding)
    assert not np.array_equal(speaker.embed(bank[:20]), embedding)


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


def test_voices_leave_when_memory_is_short(
    encoder: VoiceEncoder, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those unused longest leave first; never the one that is opened."""
    library = VoiceLibrary(encoder, toy.vocoder)
    set_up, new_state = toy.vocoder.set_up, toy.vocoder.new_state
    most = 2

    def short_of_memory(work: Callable[..., T]) -> Callable[..., T]:
        def attempt(*args: Any) -> T:
            if len(library) >= most:
                raise torch.OutOfMemoryError
            return work(*args)

        return attempt

    monkeypatch.setattr(toy.vocoder, "set_up", short_of_memory(set_up))
    _, second, third = (library.base_of(_recording(8_000, seed)) for seed in range(3))
    assert len(library) == 2
    assert library.base_of(_recording(8_000, 1)) is second

    monkeypatch.setattr(toy.vocoder, "new_state", short_of_memory(new_state))
    assert library.open(_recording(8_000, 2)).base is third
    assert len(library) == 1
    most = 1
    with pytest.raises(torch.OutOfMemoryError):
        library.open(_recording(8_000, 2))
    assert library.base_of(_recording(8_000, 2)) is third


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
