"""What conversations do when they fill the pool of pages that they share.

They hold what they have written and no more. While less than `SHRINK_BELOW` of the pool is free,
windows shrink: a conversation longer than an equal share drops its oldest units or rounds, down to
`LEAST_TOKENS`. While less than 0.15 is free, new callers wait (`core/serving/runtime.py`). Below
`LAST_FREE` windows shrink as far as they must, so that those who talk go on.
"""

from __future__ import annotations

from dataclasses import replace

from MiniCPMO45.engine.kv_cache import KvHandle
from MiniCPMO45.settings import WindowMode, WindowSettings

SHRINK_BELOW = 0.3  # ours: of the pool, free
SHARED = 0.8  # ours: of the pool, by equal shares
LEAST_TOKENS = 2_048  # ours: a window this long stays as long as there is another way
LAST_FREE = 0.1  # ours: of the pool
LAST_SHARED = 0.95  # ours: so much that new callers go on waiting
LOW, HIGH = 15, 16  # ours: a window that is too long becomes so much shorter, to drop seldom


def tokens_allowed(free: int, total: int, holders: int) -> int | None:
    """Return how long a conversation may stay; None as long as there is no pressure.

    Args:
        free: tokens that there is room for.
        total: tokens of the pool.
        holders: conversations in the pool.
    """
    if free >= SHRINK_BELOW * total:
        return None
    share = int(SHARED * total) // max(holders, 1)
    if share >= LEAST_TOKENS or free >= LAST_FREE * total:
        return max(share, LEAST_TOKENS)
    return int(LAST_SHARED * total) // holders


def narrowed(settings: WindowSettings, allowed: int | None) -> WindowSettings:
    """Return a window that is no longer than allowed; one of whole units is short already."""
    if allowed is None:
        return settings
    low = allowed * LOW // HIGH
    is_off = settings.mode is WindowMode.OFF
    return replace(
        settings,
        mode=WindowMode.BASIC if is_off else settings.mode,
        basic_high_tokens=allowed if is_off else min(settings.basic_high_tokens, allowed),
        basic_low_tokens=low if is_off else min(settings.basic_low_tokens, low),
        text_high_tokens=min(settings.text_high_tokens, allowed),
        text_low_tokens=min(settings.text_low_tokens, low),
    )


def window_now(kv: KvHandle, settings: WindowSettings) -> WindowSettings:
    """Return the window of a conversation under the pressure there is now."""
    store = kv.store
    if store.can_grow:
        return settings
    total, free = (pages * store.page_tokens for pages in (store.pool.shape[1], store.free_pages))
    holders = sum(handle.capacity > 0 for handle in store.handles)
    return narrowed(settings, tokens_allowed(free, total, holders))
