"""What each mode can do, as documented."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from core.capabilities import (
    CAPABILITIES,
    ProcessorMode,
)

COLUMNS = (
    "supports_streaming_output",
    "supports_video",
    "supports_interrupt",
    "supports_rollback",
    "requires_exclusive_worker",
    "supports_kv_cache_reuse",
)


def test_streaming_is_another_name_of_half_duplex() -> None:
    assert ProcessorMode.STREAMING is ProcessorMode.HALF_DUPLEX
    assert ProcessorMode("streaming") is ProcessorMode.HALF_DUPLEX
    assert list(ProcessorMode) == [
        ProcessorMode.CHAT,
        ProcessorMode.HALF_DUPLEX,
        ProcessorMode.DUPLEX,
    ]


@pytest.mark.parametrize("value", ["telepathy", 3, None])
def test_other_modes_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="is not a valid"):
        ProcessorMode(value)


@pytest.mark.parametrize(
    ("mode", "row"),
    [
        (ProcessorMode.CHAT, (False, False, False, True, False, True)),
        (ProcessorMode.HALF_DUPLEX, (True, False, False, True, True, True)),
        (ProcessorMode.DUPLEX, (True, True, True, False, True, False)),
    ],
)
def test_the_table_is_the_documented_one(mode: ProcessorMode, row: tuple[bool, ...]) -> None:
    assert tuple(getattr(CAPABILITIES[mode], column) for column in COLUMNS) == row
    assert CAPABILITIES[mode].mode is mode


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        CAPABILITIES[ProcessorMode.CHAT].supports_video = True  # type: ignore[misc]
    with pytest.raises(TypeError):
        CAPABILITIES[ProcessorMode.CHAT] = CAPABILITIES[ProcessorMode.DUPLEX]  # type: ignore[index]
