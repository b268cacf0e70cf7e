"""Wire settings and model settings agree on names and defaults, and nothing gets lost between."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from pydantic import BaseModel

from core.processors.content import RENAMED, override
from core.schemas.common import GenerationConfig, TTSSamplingParams
from core.schemas.duplex_calls import DuplexConfig
from core.schemas.half_duplex import TurnGenerationConfig
from MiniCPMO45.settings import (
    DuplexSettings,
    GenerationSettings,
    SpeechSampling,
    WindowMode,
    WindowSettings,
)

# Documented differences: the wire asks for longer replies than the library.
DEFAULTS_THAT_DIFFER = {("GenerationConfig", "max_new_tokens"): (512, 256)}

# Of these the wire takes no other value, so nothing reads them.
ONE_VALUE = {"ls_mode", "chunk_ms", "sample_rate"}

PAIRS = [
    (DuplexConfig(), DuplexSettings()),
    (GenerationConfig(), GenerationSettings()),
    (TurnGenerationConfig(), GenerationSettings()),
    (TTSSamplingParams(), SpeechSampling()),
]


@pytest.mark.parametrize(("wire", "model"), PAIRS, ids=lambda pair: type(pair).__name__)
def test_every_wire_field_is_a_setting_of_the_same_default(
    wire: BaseModel, model: DuplexSettings | GenerationSettings | SpeechSampling
) -> None:
    kind = type(wire).__name__
    names = set(type(wire).model_fields) - ONE_VALUE
    known = {field.name for field in fields(model)}
    for name in names:
        ours = RENAMED.get(name, name)
        assert ours in known, f"{kind}.{name} has no setting"
        found = (vars(wire)[name], vars(model)[ours])
        expected = DEFAULTS_THAT_DIFFER.get((kind, name), (found[0], found[0]))
        assert found == expected, f"{kind}.{name}"


def test_the_documented_duplex_defaults() -> None:
    """Source: docs/specification/service.md#2.5.2."""
    settings = override(DuplexSettings(), DuplexConfig())
    assert settings == DuplexSettings()
    assert (settings.force_listen_count, settings.max_new_speak_tokens_per_chunk) == (3, 20)
    assert (settings.temperature, settings.top_k, settings.top_p) == (0.7, 20, 0.8)
    assert (settings.listen_prob_scale, settings.listen_top_k) == (1.0, None)
    assert (settings.text_repetition_penalty, settings.length_penalty) == (1.05, 1.1)


def _other(value: object) -> object:
    """A value of the same kind that is not `value`."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value / 2
        case _:
            return {"explicit": "explicit", "sampling": "greedy", None: 5}[value]  # type: ignore[index]


@pytest.mark.parametrize(
    ("wire", "base", "name"),
    [
        (type(wire), base, name)
        for wire, base in PAIRS
        for name in sorted(set(type(wire).model_fields) - ONE_VALUE)
    ],
)
def test_every_setting_arrives_and_changes_no_other(
    wire: type[BaseModel], base: Any, name: str
) -> None:
    wanted, ours = _other(vars(wire())[name]), RENAMED.get(name, name)
    settings, usual = override(base, wire.model_validate({name: wanted})), override(base, wire())
    assert vars(settings)[ours] == wanted
    assert replace(settings, **{ours: vars(usual)[ours]}) == usual


def test_settings_without_a_wire_field_stay_the_operators() -> None:
    window = WindowSettings(mode=WindowMode.CONTEXT, context_max_units=7)
    base = DuplexSettings(window=window, force_listen_count=9, tts_top_k=25)
    settings = override(base, DuplexConfig())
    assert (settings.window, settings.tts_top_k) == (window, 25)
    assert settings.force_listen_count == 3, "never an earlier session's value"
    kept = override(GenerationSettings(enable_thinking=True), GenerationConfig())
    assert kept.enable_thinking
    assert override(SpeechSampling(), None) == SpeechSampling()


def test_unknown_keys_have_no_effect() -> None:
    config = DuplexConfig.model_validate({"window": "context", "colour": "red"})
    assert config.unknown("settings") is not None
    assert override(DuplexSettings(), config) == DuplexSettings()
