"""Weights to go on from: an exported checkpoint taken apart again, and two trainings mixed."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file

from training.nano.export import SHARDS
from training.nano.listening import FILE as LISTENING_FILE
from training.nano.vision.stages import FILE as VISION_FILE
from training.nano.voice.export import TTS_PREFIX, VOICE_FOLDER, blunted
from training.nano.voice.flow_stage import FILE as FLOW_FILE
from training.nano.voice.hift_stage import FILE as HIFT_FILE
from training.nano.voice.stage_clock import save
from training.nano.voice.tts_stage import FILE as TTS_FILE

LISTENING_SHARD, TTS_SHARD, VISION_SHARD, _ = SHARDS


def restore(checkpoint: Path, out: Path) -> None:
    """Write the trained weights of a checkpoint as its stages save them.

    Optimizer states, the readers of the eyes and the judges of the vocoder are not in a checkpoint;
    the stages begin those anew.

    Args:
        checkpoint: what `export` wrote.
        out: takes the files; what has the same name is replaced.
    """
    out.mkdir(parents=True, exist_ok=True)
    for shard, file in ((LISTENING_SHARD, LISTENING_FILE), (VISION_SHARD, VISION_FILE)):
        save(load_file(checkpoint / shard), out / file)
    spoken = load_file(checkpoint / TTS_SHARD)
    save({n.removeprefix(TTS_PREFIX): t for n, t in blunted(spoken).items()}, out / TTS_FILE)
    for file in (FLOW_FILE, HIFT_FILE):
        shutil.copy2(checkpoint / VOICE_FOLDER / file, out / file)


def mix(earlier: Path, later: Path, share: float, out: Path) -> None:
    """Write weights between those before and after a training that narrowed what they know.

    Args:
        earlier: file of a stage.
        later: file of the same stage, trained from it.
        share: of the later weights, 0 to 1.
        out: file to write.
    """
    before, after = (torch.load(p, map_location="cpu", weights_only=True) for p in (earlier, later))
    save({name: before[name].float().lerp(after[name].float(), share) for name in before}, out)
