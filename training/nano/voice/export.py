"""Exports the voice of a checkpoint: `assets`, and the tensors under `tts.`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import TIMING
from MiniCPMO45.processing.mel import SAMPLE_RATE_HZ
from MiniCPMO45.tiny.checkpoint import VOICE_FILE, write_voice_sample
from MiniCPMO45.tiny.tokenizer import write_json
from MiniCPMO45.token2wav.vocoder_state import VoicePrompt
from MiniCPMO45.token2wav.voices import FIXED_VOICE_FILE, resample
from training.nano.voice.flow_stage import FILE as FLOW_FILE
from training.nano.voice.hift_stage import FILE as HIFT_FILE
from training.nano.voice.recordings import PROMPT_TEXT, Recordings, fixed_voice
from training.nano.voice.sizes import vocoder_sizes
from training.nano.voice.tts_stage import FILE as TTS_FILE

# Factor of the speech decoder's logits; the temperature of 0.8 in serving becomes 0.8 / factor.
SHARPNESS = 1.8
GAIN = "head_code.0.parametrizations.weight.original0"
TTS_PREFIX = "tts."
VOICE_FOLDER = Path("assets", "token2wav")


def write_voice_assets(weights: Path, recordings: Recordings, folder: Path) -> None:
    target = folder / VOICE_FOLDER
    target.mkdir(parents=True, exist_ok=True)
    for name in (FLOW_FILE, HIFT_FILE):
        tensors = torch.load(weights / name, map_location="cpu", weights_only=True)
        torch.save({key: value.half() for key, value in tensors.items()}, target / name)
    sizes = vocoder_sizes()
    write_json(target / "config.json", sizes)
    text = yaml.safe_dump({"flow": sizes["flow"]}, sort_keys=False)
    (target / "flow.yaml").write_text(text, encoding="utf8")
    write_fixed_voice(fixed_voice(recordings), target)
    _write_sample(recordings, folder / VOICE_FILE)


def write_fixed_voice(voice: VoicePrompt, folder: Path) -> None:
    tensors = {
        "codes": voice.codes.to(torch.int32),
        "speaker": voice.speaker.half(),
        "mel": voice.mel.half(),
    }
    held = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    save_file(held, folder / FIXED_VOICE_FILE)


def speech_decoder_tensors(weights: Path) -> dict[str, Tensor]:
    """Return the tensors under `tts.` of the checkpoint, float16."""
    tensors = torch.load(weights / TTS_FILE, map_location="cpu", weights_only=True)
    tensors[GAIN] = tensors[GAIN].float() * SHARPNESS
    return {f"{TTS_PREFIX}{name}": value.half() for name, value in tensors.items()}


def without_sharpness(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Undo the factor of `speech_decoder_tensors`."""
    gain = f"{TTS_PREFIX}{GAIN}"
    return {**tensors, gain: tensors[gain].float() / SHARPNESS}


def _write_sample(recordings: Recordings, path: Path) -> None:
    """Write the recording of the voice prompt, at 16 kHz."""
    index = recordings.texts.index(PROMPT_TEXT)
    start, stop = (int(recordings.starts[index + i]) * TIMING.samples_per_code for i in (0, 1))
    samples = recordings.wave[start:stop].float().cpu().numpy()
    resampled = resample(samples, TIMING.sample_rate_hz, SAMPLE_RATE_HZ)
    write_voice_sample(path, np.clip(resampled, -32_768, 32_767).astype(np.int16))
