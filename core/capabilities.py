"""The modes of a processor and their capabilities, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class ProcessorMode(StrEnum):
    """Modes of conversation; `STREAMING` is an alias of `HALF_DUPLEX`."""

    CHAT = "chat"
    HALF_DUPLEX = "half_duplex"
    STREAMING = "half_duplex"  # the same value makes it an alias
    DUPLEX = "duplex"

    @classmethod
    def _missing_(cls, value: object) -> ProcessorMode | None:
        if not isinstance(value, str):
            return None
        return cls.__members__.get(value.upper())


@dataclass(frozen=True)
class ProcessorCapabilities:
    """Inputs, outputs and features of one mode; the defaults are those of half duplex."""

    mode: ProcessorMode
    supports_text: bool = True
    supports_image: bool = True
    supports_audio: bool = True
    supports_video: bool = False
    supports_text_output: bool = True
    supports_audio_output: bool = True
    supports_streaming_output: bool = True
    supports_multi_turn: bool = True
    supports_interrupt: bool = False
    supports_rollback: bool = True
    requires_exclusive_worker: bool = True
    supports_kv_cache_reuse: bool = True


_TABLE = (
    ProcessorCapabilities(
        ProcessorMode.CHAT, supports_streaming_output=False, requires_exclusive_worker=False
    ),
    ProcessorCapabilities(ProcessorMode.HALF_DUPLEX),
    ProcessorCapabilities(
        ProcessorMode.DUPLEX,
        # The model was not trained on text during a conversation: the system prompt is the only
        # text input.
        supports_text=False,
        supports_video=True,
        supports_interrupt=True,
        supports_rollback=False,
        supports_kv_cache_reuse=False,
    ),
)
CAPABILITIES: Mapping[ProcessorMode, ProcessorCapabilities] = MappingProxyType(
    {entry.mode: entry for entry in _TABLE}
)
