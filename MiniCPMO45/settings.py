"""What a caller may choose for one conversation, and when a model is loaded: frozen records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

import torch

LEAST_CONVERSATIONS: Final = 4  # that a card is made ready for
MOST_TOGETHER: Final = 64  # conversations in one pass
GREEDY: Final = "greedy"  # the `decode_mode` in which decisions are the argmax instead of a draw


class Weights(StrEnum):
    BF16 = "bf16"  # as published; float32 on a CPU
    FP8 = "fp8"
    INT4 = "int4"


class WindowMode(StrEnum):
    OFF = "off"
    BASIC = "basic"
    CONTEXT = "context"


class CacheKind(StrEnum):
    BF16 = "bf16"  # as they are computed: float32 on a CPU
    INT8 = "int8"


@dataclass(frozen=True)
class SpeechSampling:
    """How speech codes are drawn in a turn-based reply. Source: docs/specification/model.md#5.6."""

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
    """How the text of a turn-based reply is drawn. Source: docs/specification/model.md#5.4.

    A reply begins with `reply_start`, whose tokens are fed instead of drawn; they count, so a
    `max_new_tokens` of no more than these ends the reply with them.
    """

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
    reply_start: str = ""
    speech: SpeechSampling = field(default_factory=SpeechSampling)


@dataclass(frozen=True)
class WindowSettings:
    """When old tokens leave the cache. Source: docs/specification/model.md#5.8 and #6.9."""

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
    """How one duplex conversation decides and speaks. Source: docs/specification/model.md#6.2."""

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
    """How a checkpoint is loaded, and how it runs.

    Attributes:
        dtype: of the model; the vocoder's weights are always float32.
        flow_dtype: of the flow's products, keys and values; None is float16 on a card, whose
            mantissa is that of TF32, and float32 elsewhere.
        has_fixed_sizes: pad the vocoder's batches to a few sizes; None does so on a card.
        most_rows: rows of one prefill pass; longer input is fed in several.
        text_cache: how keys and values of the language model are held: as they are computed, or as
            8-bit codes with a scale per row.
        tokens_each: what a conversation's text holds on average.
        text_cache_bytes: memory of all language-model caches of a card; None takes a share of what
            is free, at most what all conversations need at `tokens_each`.
        on_progress: called with the stage of loading, and its share done, 0 to 1, if known.
    """

    device: torch.device = torch.device("cpu")
    dtype: torch.dtype = torch.float32
    weights: Weights = Weights.BF16
    overlay: Path | None = None
    flow_steps: int = 5
    flow_dtype: torch.dtype | None = None
    has_fixed_sizes: bool | None = None
    duplex_defaults: DuplexSettings = DuplexSettings()
    slots: int = 64
    most_rows: int = 1024
    text_cache: CacheKind = CacheKind.BF16
    tokens_each: int = 4096
    text_cache_bytes: int | None = None
    speech_cache_bytes: int | None = None
    show_progress: bool = True
    on_progress: Callable[[str, float | None], None] | None = None

    @property
    def conversations(self) -> int:
        return min(max(self.slots, LEAST_CONVERSATIONS), MOST_TOGETHER)

    def report(self, stage: str, share: float | None = None) -> None:
        if self.on_progress is not None:
            self.on_progress(stage, share)

    @classmethod
    def for_device(cls, device: str | torch.device) -> LoadOptions:
        """Return the usual options: bfloat16 on a GPU, float32 on a CPU."""
        place = torch.device(device)
        return cls(place, torch.float32 if place.type == "cpu" else torch.bfloat16)
