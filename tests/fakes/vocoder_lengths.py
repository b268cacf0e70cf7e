"""How long the answers of the vocoder are."""

from __future__ import annotations

from MiniCPMO45.configuration_minicpmo import TIMING
from MiniCPMO45.token2wav.config import OVERLAP_FRAMES
from MiniCPMO45.token2wav.vocoder import CodeChunk


def count_samples(piece: CodeChunk, *, is_first: bool) -> int:
    """Return the samples the vocoder answers a call with.

    Args:
        piece: the call.
        is_first: no call of this turn came before.
    """
    overlap = OVERLAP_FRAMES * TIMING.samples_per_mel_frame
    if not piece.is_last:
        return (len(piece.codes) - TIMING.lookahead_codes) * TIMING.samples_per_code
    return len(piece.codes) * TIMING.samples_per_code + (0 if is_first else overlap)
