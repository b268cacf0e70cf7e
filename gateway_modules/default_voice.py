"""Finds the file of the voice the model speaks with by default.

The configured one, else the checkpoint's, also when that was fetched from a hub. Reads no sound
and needs no hub client.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from config import Settings
from settings.embedded import default_checkpoint

# Where a checkpoint keeps its own voice.
CHECKPOINT_VOICE: Final = Path("assets") / "system_ref_audio.wav"
# Where the hub's client keeps what it fetched. Source: its documentation, "Environment variables"
# and "Understand caching".
HUB_CACHE: Final = "HF_HUB_CACHE"
HUB_HOME: Final = "HF_HOME"
USUAL_HUB_HOME: Final = Path("~/.cache/huggingface")


def find_default_voice(
    settings: Settings, environment: Mapping[str, str] = os.environ
) -> Path | None:
    """Return the file; it need not exist. None if there can be none here.

    Args:
        settings: The configuration.
        environment: Variables that say where the hub's files are.
    """
    if settings.audio.ref_audio_path is not None:
        return settings.audio.ref_audio_path
    model = settings.model.model_path
    if model is None:
        data_dir, embedded = settings.service.data_dir, settings.model.embedded
        return default_checkpoint(data_dir, embedded=embedded) / CHECKPOINT_VOICE
    if Path(model).is_dir():
        return Path(model) / CHECKPOINT_VOICE
    return _fetched_voice(model, environment)


def _fetched_voice(model: str, environment: Mapping[str, str]) -> Path | None:
    home = Path(environment.get(HUB_HOME) or USUAL_HUB_HOME).expanduser()
    cache = Path(environment.get(HUB_CACHE) or home / "hub").expanduser()
    snapshots = cache / f"models--{model.replace('/', '--')}" / "snapshots"
    try:
        found = [snapshot / CHECKPOINT_VOICE for snapshot in snapshots.iterdir()]
        voices = [path for path in found if path.is_file()]
        return max(voices, key=lambda path: path.stat().st_mtime, default=None)
    except OSError:
        return None
