"""Exports the embedded model as a checkpoint in the published layout, and restores its stages.

Every file is small enough to be committed. The audio encoder's shard is in the index only; set-up
adds the file.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor

from core.nano_assets import write_sums
from MiniCPMO45.configuration_minicpmo import TIMING
from MiniCPMO45.loading.whisper_shard import SHARD_FILE, SHARD_PREFIX
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.processing.mel import SAMPLE_RATE_HZ
from MiniCPMO45.tiny.checkpoint import VOICE_FILE, write_assets, write_voice_sample
from MiniCPMO45.tiny.tokenizer import write_json
from MiniCPMO45.token2wav.vocoder_state import VoicePrompt
from MiniCPMO45.token2wav.voices import FIXED_VOICE_FILE, resample
from training.nano import shapes
from training.nano.domain.catalogue import intents
from training.nano.listening import FILE as LISTENING_FILE
from training.nano.vision.stages import FILE as VISION_FILE
from training.nano.voice.flow_stage import FILE as FLOW_FILE
from training.nano.voice.hift_stage import FILE as HIFT_FILE
from training.nano.voice.recordings import PROMPT_TEXT, Recordings, fixed_voice
from training.nano.voice.stage_clock import save
from training.nano.voice.tts_stage import FILE as TTS_FILE

INDEX_FILE = "model.safetensors.index.json"
SHARDS = {
    "model-00001-of-00004.safetensors": ("llm.", "audio_projection_layer."),
    "model-00002-of-00004.safetensors": ("tts.",),
    "model-00003-of-00004.safetensors": ("vpm.", "resampler."),
    SHARD_FILE: (SHARD_PREFIX,),
}
ITEM_BYTES = 2
READABLE = 0o644


def export(
    out: Path, *, weights: Path, voice: Path | None, recordings: Recordings | None, seed: int = 0
) -> None:
    """Write a checkpoint folder; parts that are not trained yet are random.

    `weights` holds `listening.pt` and `vision.pt`. Without `voice` the voice is random, for
    rehearsals; `recordings` contain the voice prompt.
    """
    out.mkdir(parents=True, exist_ok=True)
    shapes.write_side_files(out)
    torch.manual_seed(seed)
    tensors = {
        name: t.half()
        for name, t in MiniCPMOForConditionalGeneration(shapes.config()).state_dict().items()
    }
    for path in (weights / LISTENING_FILE, weights / VISION_FILE):
        if not path.is_file():
            print(f"{path} is missing: what it holds is random", flush=True)
            continue
        trained = torch.load(path, map_location="cpu", weights_only=True)
        tensors.update({name: t.half() for name, t in trained.items() if name in tensors})
    if voice is not None and recordings is not None:
        tensors.update(speech_decoder_tensors(voice))
        write_voice_assets(voice, recordings, out)
    else:
        write_assets(out, seed)
    _write_shards(out, tensors)
    write_card(out)


def _write_shards(out: Path, tensors: Mapping[str, Tensor]) -> None:
    places, total_bytes = {}, 0
    for file, prefixes in SHARDS.items():
        shard = {n: t.contiguous() for n, t in tensors.items() if n.startswith(prefixes)}
        places.update(dict.fromkeys(shard, file))
        total_bytes += sum(tensor.numel() * ITEM_BYTES for tensor in shard.values())
        if file != SHARD_FILE:
            save_file(shard, out / file, metadata={"format": "pt"})
            (out / file).chmod(READABLE)  # safetensors writes files for the owner only
    assert len(places) == len(tensors)
    index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(places.items()))}
    write_json(out / INDEX_FILE, index)


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
    sizes = shapes.vocoder_sizes()
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


def _write_sample(recordings: Recordings, path: Path) -> None:
    """Write the recording of the voice prompt, at 16 kHz."""
    index = recordings.texts.index(PROMPT_TEXT)
    start, stop = (int(recordings.starts[index + i]) * TIMING.samples_per_code for i in (0, 1))
    samples = recordings.wave[start:stop].float().cpu().numpy()
    resampled = resample(samples, TIMING.sample_rate_hz, SAMPLE_RATE_HZ)
    write_voice_sample(path, np.clip(resampled, -32_768, 32_767).astype(np.int16))


CARD_FILE = "model_card.json"
NOTICE_FILE = "NOTICE"
NAME = "MiniCPM-o nano (demonstration)"
FIRST_TRIES = (
    "Hello.",
    "What is seven plus five?",
    "Tell me a story.",
    "Stop.",
    "What do you see?",
    "What can you do?",
)
MOST_TRIES = 20
NOTICE = """MiniCPM-o nano
The weights in this folder were trained from a random start by the programs in training/nano of this
project and are under its licence, Apache-2.0.

Set-up adds model-00004-of-00004.safetensors: the encoder of OpenAI's Whisper tiny.en, unchanged
but for names and file format.
  Copyright (c) 2022 OpenAI. MIT licence:
  Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
  associated documentation files (the "Software"), to deal in the Software without restriction,
  including without limitation the rights to use, copy, modify, merge, publish, distribute,
  sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
  furnished to do so, subject to the following conditions:
  The above copyright notice and this permission notice shall be included in all copies or
  substantial portions of the Software.
  THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
  NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
  NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM,
  DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT
  OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.

The voice was learned from the output of hibari-tts 0.2.1 (Apache-2.0), whose model was distilled
from Kokoro-82M (Apache-2.0). docs/nano.md names everything else it was trained on.
"""


def write_card(folder: Path) -> None:
    """Write card, notice and checksums, before the encoder is added."""
    examples = [text for intent in intents().values() for text in intent.examples]
    tries = list(dict.fromkeys((*FIRST_TRIES, *examples)))[:MOST_TRIES]
    write_json(folder / CARD_FILE, {"name": NAME, "kind": "nano", "try_saying": tries})
    (folder / NOTICE_FILE).write_text(NOTICE, encoding="utf8")
    write_sums(folder)


LISTENING_SHARD, TTS_SHARD, VISION_SHARD, _ = SHARDS


def restore(
    out: Annotated[Path, typer.Option(help="Folder to write into.")],
    checkpoint: Annotated[Path, typer.Option(help="Output of `export`.")] = Path("assets/nano"),
) -> None:
    """Extract the weights of an exported checkpoint, from which the stages can resume."""
    # Optimizer states, classifiers and discriminators are not in a checkpoint.
    out.mkdir(parents=True, exist_ok=True)
    for shard, file in ((LISTENING_SHARD, LISTENING_FILE), (VISION_SHARD, VISION_FILE)):
        save(load_file(checkpoint / shard), out / file)
    spoken = {n.removeprefix(TTS_PREFIX): t for n, t in load_file(checkpoint / TTS_SHARD).items()}
    spoken[GAIN] = spoken[GAIN].float() / SHARPNESS  # as `speech_decoder_tensors` has multiplied it
    save(spoken, out / TTS_FILE)
    for file in (FLOW_FILE, HIFT_FILE):
        shutil.copy2(checkpoint / VOICE_FOLDER / file, out / file)


def mix(
    earlier: Annotated[Path, typer.Option(help="Weights of a stage.")],
    later: Annotated[Path, typer.Option(help="Weights trained from them.")],
    out: Annotated[Path, typer.Option(help="File to write.")],
    share: Annotated[float, typer.Option(min=0, max=1, help="Of the later weights.")] = 0.8,
) -> None:
    """Interpolate weights before and after a training, against forgetting."""
    before, after = (torch.load(p, map_location="cpu", weights_only=True) for p in (earlier, later))
    save({name: before[name].float().lerp(after[name].float(), share) for name in before}, out)
