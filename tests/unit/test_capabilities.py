"""What each mode can do, as documented."""

from __future__ import annotations

import pytest

from core.capabilities import CAPABILITIES, ProcessorMode

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
    assert set(ProcessorMode) == set(CAPABILITIES)


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
