"""The modes of a processor and their capabilities, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    """Inputs, outputs and features of one mode."""

    mode: ProcessorMode
    supports_text: bool
    supports_image: bool
    supports_audio: bool
    supports_video: bool
    supports_text_output: bool
    supports_audio_output: bool
    supports_streaming_output: bool
    supports_multi_turn: bool
    supports_interrupt: bool
    supports_rollback: bool
    requires_exclusive_worker: bool
    supports_kv_cache_reuse: bool


_HALF_DUPLEX = ProcessorCapabilities(
    mode=ProcessorMode.HALF_DUPLEX,
    supports_text=True,
    supports_image=True,
    supports_audio=True,
    supports_video=False,
    supports_text_output=True,
    supports_audio_output=True,
    supports_streaming_output=True,
    supports_multi_turn=True,
    supports_interrupt=False,
    supports_rollback=True,
    requires_exclusive_worker=True,
    supports_kv_cache_reuse=True,
)
_CHAT = replace(
    _HALF_DUPLEX,
    mode=ProcessorMode.CHAT,
    supports_streaming_output=False,
    requires_exclusive_worker=False,
)
_DUPLEX = replace(
    _HALF_DUPLEX,
    mode=ProcessorMode.DUPLEX,
    # The model was not trained on text during a conversation: the system prompt is the only text
    # input.
    supports_text=False,
    supports_video=True,
    supports_interrupt=True,
    supports_rollback=False,
    supports_kv_cache_reuse=False,
)

CAPABILITIES: Mapping[ProcessorMode, ProcessorCapabilities] = MappingProxyType(
    {entry.mode: entry for entry in (_CHAT, _HALF_DUPLEX, _DUPLEX)}
)
