"""Conversations that fill the shared cache memory."""

from __future__ import annotations

import pytest
import torch

from core.serving.runtime import FREE_CACHE_LOW, FREE_CACHE_MIN
from MiniCPMO45.engine.kv_cache import KvHandle, KvStore
from MiniCPMO45.engine.session import (
    LAST_FREE,
    LEAST_TOKENS,
    SHRINK_BELOW,
    Unit,
    WindowState,
    narrowed,
    tokens_allowed,
    units_to_drop,
    window_now,
)
from MiniCPMO45.settings import WindowMode, WindowSettings
from tests.fakes.decoders import decoder_shape

SHAPE = decoder_shape(2, positions=40_960)
UNIT = 80  # tokens
PROMPT = 200


@pytest.mark.parametrize(
    ("free", "holders", "allowed"),
    [
        (100_000, 0, None),
        (30_000, 50, None),  # enough is free
        (29_999, 4, 20_000),  # windows shrink to equal shares
        (29_999, 20, 4_000),
        (29_999, 60, LEAST_TOKENS),  # no further: new callers will wait first
        (10_000, 60, LEAST_TOKENS),
        (9_999, 60, 1_583),  # they wait by now
        (0, 1, 80_000),
    ],
)
def test_windows_shrink_first_and_below_their_least_only_when_new_callers_wait(
    free: int, holders: int, allowed: int | None
) -> None:
    assert tokens_allowed(free, 100_000, holders) == allowed


@pytest.mark.parametrize(
    ("mode", "allowed", "expected"),
    [
        (WindowMode.OFF, None, (WindowMode.OFF, 4_000, 3_500, 8_000, 6_000)),
        (WindowMode.OFF, 4_800, (WindowMode.BASIC, 4_800, 4_500, 4_800, 4_500)),
        (WindowMode.BASIC, 4_800, (WindowMode.BASIC, 4_000, 3_500, 4_800, 4_500)),
        (WindowMode.BASIC, 1_600, (WindowMode.BASIC, 1_600, 1_500, 1_600, 1_500)),
        (WindowMode.CONTEXT, 1_600, (WindowMode.CONTEXT, 1_600, 1_500, 1_600, 1_500)),
        (WindowMode.OFF, 16_000, (WindowMode.BASIC, 16_000, 15_000, 8_000, 6_000)),
    ],
)
def test_a_window_under_pressure(
    mode: WindowMode, allowed: int | None, expected: tuple[WindowMode, int, int, int, int]
) -> None:
    now = narrowed(WindowSettings(mode=mode), allowed)
    basic = now.basic_high_tokens, now.basic_low_tokens
    assert (now.mode, *basic, now.text_high_tokens, now.text_low_tokens) == expected


@pytest.mark.parametrize(
    ("grows", "most", "expected"),
    [(True, None, 8_000), (True, 4_096, 4_096), (False, None, 8_000), (False, 5_000, 5_000)],
)
def test_a_card_that_is_short_of_time_shrinks_windows(
    grows: bool, most: int | None, expected: int
) -> None:
    device = torch.device("cpu")
    store = KvStore(SHAPE, device=device, dtype=torch.float32, pages=10, can_grow=grows)
    store.most_tokens = most
    settings = WindowSettings(mode=WindowMode.BASIC, basic_high_tokens=8_000)
    assert window_now(store.open(), settings).basic_high_tokens == expected


def test_the_scarcer_of_memory_and_time_decides() -> None:
    device = torch.device("cpu")
    store = KvStore(SHAPE, device=device, dtype=torch.float32, pages=100)
    kv = store.open()
    kv.reserve(80 * store.page_tokens)  # an equal share is 5,120 tokens
    for most, expected in ((6_000, 5_120), (4_096, 4_096)):
        store.most_tokens = most
        assert window_now(kv, WindowSettings()).basic_high_tokens == expected


def grown(store: KvStore, tokens: int) -> KvHandle:
    kv = store.open()
    kv.reserve(tokens)
    kv.advance(tokens)
    return kv


def feed_unit(kv: KvHandle, window: WindowState) -> None:
    """Feed a unit, and drop the oldest ones as the window demands; memory is never refused."""
    kv.reserve(kv.length + UNIT)
    kv.advance(UNIT)
    window.units.append(Unit(UNIT, ()))
    if count := units_to_drop(window, window_now(kv, WindowSettings())):
        kv.drop(PROMPT, PROMPT + count * UNIT)
        del window.units[:count]
    assert kv.length == window.tokens


def test_running_conversations_go_on_beside_retained_ones() -> None:
    """Retained ones never shrink: they are freed as soon as windows have to."""
    store = KvStore(SHAPE, device=torch.device("cpu"), dtype=torch.float32, pages=4_096)
    talks = [(grown(store, PROMPT), WindowState(preserved=PROMPT)) for _ in range(12)]
    retained = []
    for second in range(400):
        if second < 25:
            retained.append(grown(store, 8_000))
        while store.free_share < FREE_CACHE_LOW and retained:
            retained.pop(0).close()
        assert store.free_share >= FREE_CACHE_MIN, "another may begin"
        for kv, window in talks:
            feed_unit(kv, window)
    assert not retained


def test_however_many_talk_for_however_long_all_go_on_and_no_page_is_lost() -> None:
    """Conversations begin one after another while there is capacity, and grow for ever."""
    pages = 800
    store = KvStore(SHAPE, device=torch.device("cpu"), dtype=torch.float32, pages=pages)
    talks, waited = [], 0
    for second in range(400):
        if second % 2 == 0 and store.free_share < FREE_CACHE_MIN:
            waited += 1
        elif second % 2 == 0:
            talks.append((grown(store, PROMPT), WindowState(preserved=PROMPT)))
        for kv, window in talks:
            feed_unit(kv, window)
    assert len(talks) > 10 and waited > 10
    assert LAST_FREE < FREE_CACHE_MIN < SHRINK_BELOW == FREE_CACHE_LOW
    assert pages * store.page_tokens > 0.9 * LEAST_TOKENS * len(talks), "shares stay useful"
    assert max(kv.length for kv, _ in talks) < SHAPE.max_position_embeddings
    held = sum(kv.capacity for kv, _ in talks) // store.page_tokens
    assert held + store.free_pages == pages
    for kv, _ in talks:
        kv.close()
    assert store.free_pages == pages
