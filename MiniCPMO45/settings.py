"""Frozen settings of conversations and options of loading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

import torch

MOST_TOGETHER: Final = 64  # conversations in one pass
GREEDY: Final = "greedy"  # the `decode_mode` of argmax decoding


class Weights(StrEnum):
    BF16 = "bf16"  # as published; float32 on a CPU
    FP8 = "fp8"
    INT4 = "int4"


class WindowMode(StrEnum):
    OFF = "off"
    BASIC = "basic"
    CONTEXT = "context"


class CacheKind(StrEnum):
    BF16 = "bf16"  # in the model's dtype: float32 on a CPU
    INT8 = "int8"  # codes with a scale per row


@dataclass(frozen=True)
class SpeechSampling:
    """Sampling of speech codes in turn-based replies. Source: docs/specification/model.md#5.6."""

    temperature: float = 0.8
    top_p: float = 0.85
    top_k: int = 25
    repetition_penalty: float = 1.05
    max_codes_per_chunk: int = 500
    max_codes_per_reply: int = 2048
    min_codes_per_reply: int = 50
    is_greedy: bool = False


@dataclass(frozen=True)
class GenerationSettings:
    """Generation of a turn-based reply. Source: docs/specification/model.md#5.4."""

    max_new_tokens: int = 256
    min_new_tokens: int = 0
    do_sample: bool = True
    temperature: float = 0.7
    top_p: float = 0.8
    top_k: int = 100
    repetition_penalty: float = 1.02
    length_penalty: float = 1.1
    max_input_tokens: int = 8192
    enable_thinking: bool = False
    use_speech_template: bool = True
    generate_audio: bool = True
    forbid_full_width_marks: bool = False
    # Text that the reply begins with. Its tokens are fed and count towards `max_new_tokens`; if
    # they reach it, they are the whole reply.
    reply_start: str = ""
    speech: SpeechSampling = field(default_factory=SpeechSampling)


@dataclass(frozen=True)
class WindowSettings:
    """Sliding window of the KV cache. Source: docs/specification/model.md#5.8 and #6.9."""

    mode: WindowMode = WindowMode.OFF
    basic_high_tokens: int = 4000
    basic_low_tokens: int = 3500
    context_max_units: int = 24
    context_previous_max_tokens: int = 500
    context_marker: str = "\n\nprevious: "
    text_high_tokens: int = 8000
    text_low_tokens: int = 6000


@dataclass(frozen=True)
class DuplexSettings:
    """Settings of one duplex conversation. Source: docs/specification/model.md#6.2."""

    generate_audio: bool = True
    force_listen_count: int = 3
    max_new_speak_tokens_per_chunk: int = 20
    temperature: float = 0.7
    top_k: int = 20
    top_p: float = 0.8
    listen_prob_scale: float = 1.0
    listen_top_k: int | None = None
    decode_mode: str = "sampling"
    text_repetition_penalty: float = 1.05
    text_repetition_window_size: int = 512
    length_penalty: float = 1.1
    tts_temperature: float = 0.8
    tts_repetition_penalty: float = 1.05
    tts_top_k: int = 0
    tts_top_p: float = 1.0
    max_slice_nums: int = 1
    early_audio: bool = False
    window: WindowSettings = field(default_factory=WindowSettings)


@dataclass(frozen=True)
class LoadOptions:
    """Options of loading and running a checkpoint."""

    device: torch.device = torch.device("cpu")
    dtype: torch.dtype = torch.float32  # of the model; the vocoder's weights are always float32
    weights: Weights = Weights.BF16
    overlay: Path | None = None
    flow_steps: int = 5
    # Of the flow's products and KV cache. None is float16, which has the mantissa of TF32, on a GPU
    # and float32 elsewhere.
    flow_dtype: torch.dtype | None = None
    has_fixed_sizes: bool | None = None  # pad the vocoder's batches to a few; None: on a GPU
    duplex_defaults: DuplexSettings = DuplexSettings()
    slots: int = 64
    least_conversations: int = 4  # smallest capacity that passes are prepared for
    most_rows: int = 1024  # rows of one prefill pass; longer input is split
    text_cache: CacheKind = CacheKind.BF16
    tokens_each: int = 4096  # average cached text tokens of a conversation
    # Of the language model's KV cache on a GPU. None is a share of the free memory, at most that of
    # all conversations at `tokens_each`.
    text_cache_bytes: int | None = None
    speech_cache_bytes: int | None = None
    show_progress: bool = True
    on_progress: Callable[[str, float | None], None] | None = None  # gets the stage and its share

    @property
    def conversations(self) -> int:
        return min(max(self.slots, self.least_conversations), MOST_TOGETHER)

    def report(self, stage: str, share: float | None = None) -> None:
        if self.on_progress is not None:
            self.on_progress(stage, share)
