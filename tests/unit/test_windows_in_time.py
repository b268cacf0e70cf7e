"""Windows shrink while a card is short of time."""

from __future__ import annotations

from core.serving import capacity
from core.serving.capacity import Capacity
from core.serving.fake_backend import FakeBackend
from core.serving.runtime import WorkerRuntime
from tests.system.loops import in_loop


class Card:
    """Conversations whose units take the longer the more tokens each of them holds."""

    def __init__(self, sessions: int, token_s: float = 0.6e-6) -> None:
        self.now_s = 0.0
        self.made = Capacity(lambda: self.now_s)
        self.token_s = token_s
        self.made.expect({1: 0.0625, 33: 0.3}, self.limit)
        self.sessions, self.tokens = sessions, [1_000] * sessions
        self.window: int | None = None

    def limit(self, tokens: int | None) -> None:
        self.window = tokens

    def talk(self, seconds: int) -> float:
        """Return the longest unit of the last second, as a share of it."""
        share = 0.0
        for _ in range(seconds):
            share = sum(self.tokens) * self.token_s + 0.05
            self.now_s += 1.0
            for index in range(self.sessions):
                grown = self.tokens[index] + 100
                self.tokens[index] = min(grown, self.window or grown)
                held = self.tokens[index]
                self.made.note(f"s{index}", share, has_picture=True, tokens=held)
        return share


def test_windows_shrink_before_units_of_long_conversations_are_late() -> None:
    card = Card(64)
    assert card.talk(60) < capacity.TIGHT
    assert card.window is None
    assert card.talk(600) < 1.2 * capacity.TIGHT, "0.05 + 64 * 61,000 tokens * 0.6e-6 is 2.4"
    assert min(card.tokens) > 0.8 * 7_812, "no shorter than necessary"


def test_windows_are_not_shrunk_below_their_least() -> None:
    card = Card(32, token_s=1e-5)
    card.talk(300)
    assert card.window == min(card.tokens) == capacity.WINDOW_MIN


def test_windows_widen_when_there_is_time_again() -> None:
    card = Card(96)
    card.talk(300)
    assert card.window is not None
    card.sessions, card.tokens = 32, card.tokens[:32]
    card.talk(60)
    assert card.window is None
    assert min(card.tokens) > 10_000


def test_few_units_and_an_unmeasured_worker_shrink_nothing() -> None:
    few = Card(2)
    few.tokens = [400_000] * 2
    few.talk(60)
    assert few.window is None
    unmeasured = Card(64)
    unmeasured.made.expect({}, unmeasured.limit)
    unmeasured.talk(300)
    assert unmeasured.window is None


@in_loop
async def test_the_backend_limits_its_windows_as_units_take_longer() -> None:
    class Backend(FakeBackend):
        limits: list[int | None] = []  # noqa: RUF012

        def limit_windows(self, tokens: int | None) -> None:
            self.limits.append(tokens)

    backend = Backend()
    backend.unit_s_by_sessions = {1: 0.0625, 33: 0.3}
    runtime = WorkerRuntime(lambda: backend, 64)
    try:
        await runtime.load()
        for index in range(capacity.UNITS_MIN + 1):
            runtime.slots.measured.note(f"s{index}", 0.5, has_picture=True, tokens=8_000)
            runtime.slots.measured._considered_s -= 1.0
    finally:
        runtime.close()
    assert backend.limits == [7_500, 7_032]
