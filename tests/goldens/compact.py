"""Extracts a small folder of recordings from a full one: python -m tests.goldens.compact FULL OUT.

It omits the vocabulary tables and all that depends on them, and is small enough to be committed.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Annotated

import typer
from safetensors.torch import load_file, save_file

KEPT_TENSORS = {
    "audio_offline": r".*",
    "audio_streaming": r"chunk\d+_(embeds|encoder_out)|chunk[01]_mel",
    "image_preprocess": r".*",
    "llm_prefill": r"inputs_embeds|hidden_.*|kv_.*",
    "llm_cache_drop": r"after_kv_.*",
    "token2wav_overlap": (
        r"prompt_(tokens|speaker|mel|conformer_cnn_cache|estimator_cnn_.*)|initial_noise"
        r"|chunk\d+_(tokens|mel)|chunk[015]_wav|whole_.*|vocoder_(mel|f0|wav)"
    ),
    "vision": r"small_.*|.*_resampled|.*_first32",
}
KEPT_INPUTS = (
    "frame_0.png",
    "image_large.png",
    "image_small.png",
    "question_1.wav",
    "ref_voice.wav",
    "speech_8s.wav",
)
KEPT_NOTES = (
    "audio_streaming_meta.json",
    "image_preprocess_meta.json",
    "token2wav_overlap_meta.json",
)
TABLES = re.compile(r"llm\.(model\.embed_tokens|lm_head)\.|tts\.")
VOCODER_WEIGHTS = ("flow", "hift")


def main(full: Annotated[Path, typer.Argument()], out: Annotated[Path, typer.Argument()]) -> None:
    for folder in ("inputs", "tiny_checkpoint", "token2wav_weights"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    for name, pattern in KEPT_TENSORS.items():
        tensors = load_file(full / f"{name}.safetensors")
        kept = {key: value for key, value in tensors.items() if re.fullmatch(pattern, key)}
        save_file(kept, out / f"{name}.safetensors")
    for name in KEPT_INPUTS:
        shutil.copyfile(full / "inputs" / name, out / "inputs" / name)
    for name in KEPT_NOTES:
        shutil.copyfile(full / name, out / name)
    weights = load_file(full / "tiny_checkpoint" / "model.safetensors")
    components = {key: value for key, value in weights.items() if not TABLES.match(key)}
    save_file(components, out / "tiny_checkpoint" / "model.safetensors")
    shutil.copyfile(
        full / "tiny_checkpoint" / "config.json", out / "tiny_checkpoint" / "config.json"
    )
    for name in VOCODER_WEIGHTS:
        file = f"{name}.safetensors"
        shutil.copyfile(full / "token2wav_weights" / file, out / "token2wav_weights" / file)
    shutil.copyfile(
        full / "token2wav_weights" / "config.json", out / "token2wav_weights" / "config.json"
    )
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{out}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    typer.run(main)
