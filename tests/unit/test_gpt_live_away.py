"""GPT-Live: a session that its client loses before it has started."""

from __future__ import annotations

from core.protocols.events import ClientAway
from tests.fakes.live_scenes import LiveScene, kinds


def test_a_session_that_starts_while_its_client_is_away_waits_for_it() -> None:
    live = LiveScene()
    live.is_held = True
    live.start()
    live.tell(ClientAway())
    live.is_held = False
    live.answer()
    assert kinds(live.told)[0] == "session.started"
    live.run(20.0, talks=False)
    assert not live.sound and not live.steps
    live.tell(ClientAway(is_away=False))
    assert len(live.sound) == 4_800, "100 ms, no burst"
    live.run(2.0)
    assert live.steps
