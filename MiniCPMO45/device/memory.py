"""How much memory of a card the engine takes for caches, and how much of it is left."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from MiniCPMO45.configuration_minicpmo import DecoderConfig


@dataclass(frozen=True)
class DeviceOptions:
    """How the engine uses the card.

    Attributes:
        most_conversations: that share one pass; more are answered in several.
        most_rows: rows of one prefill pass; longer input is fed in several.
        text_cache_bytes: memory of all language-model caches; None takes a share of what is free,
            at most what all conversations need at `TOKENS_EACH`.
        speech_cache_bytes: memory of all speech-decoder caches, likewise.
        show_progress: draw a progress bar while graphs are captured.
    """

    most_conversations: int = 64
    most_rows: int = 1024
    text_cache_bytes: int | None = None
    speech_cache_bytes: int | None = None
    show_progress: bool = True


TOKENS_EACH = 8192  # the context a conversation usually ends at; longer ones share the pool
TEXT_SHARE = 0.55  # of the memory that is free once the weights are loaded
SPEECH_SHARE = 0.1
SPEECH_ROWS_EACH = 32  # a unit's text and markers; longer starts are fed in several passes
FEWEST_PAGES = 16  # of a pool; that of a CPU grows


@dataclass(frozen=True)
class CardMemory:
    """Memory of a card.

    Attributes:
        free_bytes: what the driver has left, for whoever asks first.
        unused_bytes: what torch holds and nothing is in.
    """

    free_bytes: int
    unused_bytes: int

    @classmethod
    def of(cls, device: torch.device) -> CardMemory:
        """Return how a card's memory is used now."""
        free, _ = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device)
        return cls(free, held - torch.cuda.memory_allocated(device))

    def share_left(self, now: CardMemory) -> float:
        """Return how much of what the driver had left then is left now, 0 to 1.

        Args:
            now: the same card, later. What lay unused then belongs to the graphs for good.
        """
        left = now.free_bytes + now.unused_bytes - self.unused_bytes
        return min(max(left / max(self.free_bytes, 1), 0.0), 1.0)


def most_tokens(shape: DecoderConfig, conversations: int) -> int:
    """Return how many tokens caches are made for, so that another worker finds room on the card.

    Args:
        shape: the decoder's shape.
        conversations: at once; a single one may always use every position there is.
    """
    positions = shape.max_position_embeddings
    return max(conversations * min(TOKENS_EACH, positions), positions)


def settle_on(device: torch.device) -> int:
    """Make this thread's kernels run on the device, and return how much of its memory is free."""
    if device.type != "cuda":
        return 0
    torch.cuda.set_device(device)
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return free
