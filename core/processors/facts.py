"""What a loaded model is, in plain facts, told by its configuration, not by its folder's name."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import torch
from pydantic import Field, ValidationError

from core.processors.failures import model_errors
from core.schemas.common import WireModel
from core.schemas.worker import (
    MODEL_NAME_MAX_CHARS,
    SUGGESTIONS_MAX,
    ModelFacts,
    ModelKind,
    Suggestion,
)
from MiniCPMO45.checkpoint import TINY_VARIANT
from MiniCPMO45.checkpoint_source import find_checkpoint
from MiniCPMO45.modeling_minicpmo_unified import UnifiedModel

logger = logging.getLogger(__name__)

CARD_FILE: Final = "model_card.json"  # ours, optional, in the checkpoint's folder
CARD_MAX_BYTES: Final = 65_536
NANO_VARIANT: Final = "nano"
PUBLISHED_MIN_PARAMETERS: Final = 5_000_000_000  # ours: far below the published 8 to 9 billion
TINY_NAME: Final = "Tiny random test model"


class ModelCard(WireModel):
    """What a checkpoint says of itself."""

    name: str = Field("", max_length=MODEL_NAME_MAX_CHARS, description="For people.")
    kind: ModelKind | None = Field(None, description="What it is.")
    try_saying: tuple[Suggestion, ...] = Field(
        (), max_length=SUGGESTIONS_MAX, description="Sentences it is known to answer."
    )


def model_facts(model: UnifiedModel, source: str | Path) -> ModelFacts:
    """Describe a loaded model.

    Args:
        model: Loaded.
        source: The folder or hub id it was loaded from.
    """
    with model_errors():
        folder = find_checkpoint(source)
    card = read_card(folder)
    config = model.model.config
    parameters = sum(weight.numel() for weight in model.model.parameters())
    kind = kind_of(config.model_variant, parameters, card.kind)
    names = {ModelKind.TINY_RANDOM: TINY_NAME, ModelKind.FULL: f"MiniCPM-o {config.version}"}
    name = card.name or names.get(kind) or config.model_variant or folder.name
    return ModelFacts(
        name=name[:MODEL_NAME_MAX_CHARS],
        kind=kind,
        parameters=parameters,
        device=_device_name(model.executor.device),
        dtype=str(next(model.model.parameters()).dtype).removeprefix("torch."),
        try_saying=card.try_saying,
    )


def kind_of(variant: str, parameters: int, told: ModelKind | None) -> ModelKind:
    """Return what a checkpoint is; no card turns random or small weights into the full model.

    Args:
        variant: The configuration's `model_variant`, empty for the published checkpoint.
        parameters: How many weights there are.
        told: What the checkpoint's card says.
    """
    if variant == TINY_VARIANT:
        return ModelKind.TINY_RANDOM
    if told is not None and told is not ModelKind.FULL:
        return told
    if variant == NANO_VARIANT:
        return ModelKind.NANO
    is_published = not variant and parameters >= PUBLISHED_MIN_PARAMETERS
    return ModelKind.FULL if is_published else ModelKind.UNKNOWN


def read_card(folder: Path) -> ModelCard:
    """Return what a checkpoint says of itself; an empty card if there is none to be read."""
    path = folder / CARD_FILE
    try:
        with path.open("rb") as file:
            return ModelCard.model_validate_json(file.read(CARD_MAX_BYTES))
    except FileNotFoundError:
        return ModelCard()
    except (OSError, ValidationError) as error:
        logger.warning("%s cannot be used: %s", path, error)
        return ModelCard()


def _device_name(device: torch.device) -> str:
    if device.type != "cuda":
        return device.type
    return f"{device} ({torch.cuda.get_device_name(device)})"
