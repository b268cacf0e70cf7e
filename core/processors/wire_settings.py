"""Wire settings into the model's settings, field by field of the same name."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

from pydantic import BaseModel

from core.schemas.common import GenerationConfig, TTSSamplingParams
from core.schemas.duplex_calls import DuplexConfig
from core.schemas.half_duplex import TurnGenerationConfig
from MiniCPMO45.settings import DuplexSettings, GenerationSettings, SpeechSampling

RENAMED: Final = {"max_inp_length": "max_input_tokens"}
"""Wire names whose word the model layer does not use."""


def duplex_settings(config: DuplexConfig, base: DuplexSettings | None = None) -> DuplexSettings:
    """Return the settings of one duplex session.

    Args:
        config: what the client asked for; what it left out takes the wire's default, never an
            earlier session's value.
        base: the operator's choice for what the wire does not name, such as the window.
    """
    return replace(base or DuplexSettings(), **_by_name(config, DuplexSettings))


def generation_settings(
    config: GenerationConfig | TurnGenerationConfig, base: GenerationSettings | None = None
) -> GenerationSettings:
    """Return how the text of a reply is drawn.

    Args:
        config: what the client asked for.
        base: values of what `config` does not name.
    """
    return replace(base or GenerationSettings(), **_by_name(config, GenerationSettings))


def speech_sampling(params: TTSSamplingParams | None) -> SpeechSampling:
    """Return how speech codes are drawn; the defaults if the client says nothing."""
    if params is None:
        return SpeechSampling()
    return replace(SpeechSampling(), **_by_name(params, SpeechSampling))


def _by_name(
    config: BaseModel, kind: type[DuplexSettings | GenerationSettings | SpeechSampling]
) -> dict[str, Any]:
    """Values of the wire fields the settings have too."""
    # Any: each value has the type of its field, which no dictionary can say.
    known = {field.name for field in fields(kind)}
    values = {name: value for name, value in config if name in type(config).model_fields}
    renamed = {RENAMED.get(name, name): value for name, value in values.items()}
    return {name: value for name, value in renamed.items() if name in known}
