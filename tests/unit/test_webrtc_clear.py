"""A client over WebRTC that drops what has not been played."""

from __future__ import annotations

import json

from webrtc.dialect import Flush, Realtime, ToClient
from webrtc.playout import Part, Played

PART = Part("resp_1", "item_1", 0)


def test_a_client_that_clears_is_answered_also_if_nothing_was_left() -> None:
    (flush,) = Realtime().from_client('{"type":"output_audio_buffer.clear"}')
    assert isinstance(flush, Flush)
    (told,) = Realtime().flushed(flush, [])
    assert isinstance(told, ToClient)
    assert json.loads(told.text)["type"] == "output_audio_buffer.cleared"
    assert len(Realtime().flushed(flush, [Played(PART, 340)])) == len(("cleared", "truncate"))
    assert Realtime().flushed(Flush(), []) == []
