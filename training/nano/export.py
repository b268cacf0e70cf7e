"""Writes the nano as a checkpoint in the published layout, every file small enough to be committed.

The encoder is left out: it has a shard in the index, which set-up puts beside the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from MiniCPMO45.loading.whisper_shard import SHARD_FILE, SHARD_PREFIX
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.tiny.checkpoint import write_assets
from MiniCPMO45.tiny.tokenizer import write_json
from training.nano import shapes
from training.nano.card import write_card
from training.nano.listening import FILE as LISTENING_FILE
from training.nano.vision.stages import FILE as VISION_FILE
from training.nano.voice.export import speech_decoder_tensors, write_voice_assets
from training.nano.voice.recordings import Recordings

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
    """Write a checkpoint folder.

    Args:
        out: the folder, made if needed.
        weights: folder with `listening.pt` and `vision.pt`; one that is missing stays random.
        voice: folder with the voice's weights; None writes a random voice, for rehearsals.
        recordings: hold the prompt of the voice; needed with `voice`.
        seed: of whatever is not trained yet.
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
            (out / file).chmod(READABLE)  # safetensors lets the owner alone read
    assert len(places) == len(tensors)
    index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(places.items()))}
    write_json(out / INDEX_FILE, index)
