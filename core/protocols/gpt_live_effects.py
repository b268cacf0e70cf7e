"""What GPT-Live's rows may ask for, in the words of transition tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from core.protocols.duplex_context import DuplexPhase
from core.protocols.effects import Effect
from core.protocols.rebase import Append
from core.protocols.tables import SAME, Row

MAY_END: Final = f"{SAME} {DuplexPhase.STOPPING} {DuplexPhase.CLOSED}"
ERROR: Final = "Send(error)"
SOUND: Final = (
    "Send(session.output_transcript.delta) Send(session.output_audio.delta) "
    "Send(session.output_audio.fixture.played) Send(session.usage.updated) StartTimer(pace)"
)
UNITS: Final = (
    "Send(info) Detect Prefill StartTimer(idle) StartTimer(frame) StopTimer(frame) Step Finalize "
    "Prefetch"
)
LAST: Final = "Cancel Send(session.closed) Send(error) StartTimer(stopping) Release Close"
MUTED: Final = "Send(session.input_audio.muted) Send(session.input_audio.unmuted)"
APPENDED: Final = " ".join(f"Send(session.{purpose}.appended)" for purpose in Append)
PLAYING: Final = "Interrupt Send(session.output_audio.fixture.playing)"
REFUSED: Final = (
    "response.item.create response.create decision.create decision.item.create decision.item.delete"
).split()
PASSED_ON: Final = frozenset(
    "step_done finalize_done sound_ready prefetched frame_timer stopping_timer session_timer "
    "idle_timer turn_failed engine_failed disconnected shutting_down stop_requested "
    "transcribed".split()
)
"""Events of which the duplex machine alone decides."""
OUR_WORDS: Final = {
    "Send(stopped)": "Send(session.closed)",
    "Send(timeout)": "Send(session.closed)",
    "Send(error)": "Send(error) Send(session.closed)",
    "Send(warning)": "Send(info)",
    "Send(user_transcript)": "Send(session.input_transcript.delta)",
    "Send(result)": "",
    "Send(result_part)": "",
}
"""What becomes of what the duplex machine says."""


# Any: rows of two machines.
def passed_on(
    row: Row[Any, Effect], action: Callable[[Any, Any], list[Effect]]
) -> Row[Any, Effect]:
    """Return the row by which an event reaches a row of the duplex machine."""
    phases = tuple(phase for phase in row.phases if phase is not DuplexPhase.PAUSED)
    words = " ".join(OUR_WORDS.get(word, word) for word in row.effects.split())
    goes_on = f" {UNITS} Cancel" if DuplexPhase.ACTIVE in phases else ""
    effects = " ".join(dict.fromkeys(f"{words}{goes_on}".split()))
    return Row(phases, row.event, row.targets, effects, action)
