"""System prompts by content: one that was fed before is copied into a cache, not fed again."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from MiniCPMO45.kv_cache import KvHandle, KvRows

MAX_BYTES = 256 << 20  # some twenty prompts with a voice sample at the published size


def prompt_key(
    prefix: Sequence[int], suffix: Sequence[int], voice_sample: np.ndarray | None
) -> str:
    """Name a prompt by everything its cached rows depend on.

    Args:
        prefix: ids before the voice sample.
        suffix: ids after it.
        voice_sample: float32 [n] at 16 kHz.
    """
    digest = hashlib.sha256()
    for part in (prefix, suffix):
        digest.update(np.array([len(part), *part], np.int64).tobytes())
    if voice_sample is not None:
        digest.update(np.asarray(voice_sample, np.float32).tobytes())
    return digest.hexdigest()


class PromptCache:
    """The rows of the prompts used last; the oldest leaves first.

    Attributes:
        max_bytes: memory of all rows kept.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        """Start empty."""
        self.max_bytes = max_bytes
        self._prompts: OrderedDict[str, KvRows] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of prompts kept."""
        return len(self._prompts)

    @property
    def nbytes(self) -> int:
        """Memory of all rows kept."""
        return sum(_size(rows) for rows in self._prompts.values())

    def recall(self, key: str, kv: KvHandle) -> bool:
        """Put a prompt into an empty cache, exactly as it was fed; False if it is not kept."""
        assert kv.length == 0, "a prompt begins a conversation"
        rows = self._prompts.get(key)
        if rows is None:
            return False
        self._prompts.move_to_end(key)
        kv.put(rows)
        return True

    def keep(self, key: str, kv: KvHandle) -> None:
        """Keep a copy of all that a cache holds, unless it is larger than the room for all."""
        rows = kv.rows(0, kv.length)
        if _size(rows) > self.max_bytes:
            return
        self._prompts[key] = rows
        while self.nbytes > self.max_bytes:
            self._prompts.popitem(last=False)


def _size(rows: KvRows) -> int:
    return rows.keys.nbytes + rows.values.nbytes
