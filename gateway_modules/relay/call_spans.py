"""Makes spans of a client's socket at the gateway: the call, its waits in the queue, its relays."""

from __future__ import annotations

from core.telemetry import CallTrace, Tracing


class CallSpans:
    """Writes the gateway's spans of one call, if anybody wants them.

    A call that never asked for a worker has none.
    """

    def __init__(self, tracing: Tracing | None) -> None:
        self._tracing = tracing
        self._trace: CallTrace | None = None
        self._relay_s: float | None = None  # when the worker was connected

    def named(self, session_id: str, secret: str) -> None:
        """Take what the call's ids are made of; the first ones stay."""
        if self._tracing is not None and self._trace is None:
            self._trace = self._tracing.call(session_id, secret)

    def waited(self, began_s: float, ended_s: float, outcome: str) -> None:
        """A wait in the queue is over."""
        if self._trace is not None:
            self._trace.write("queue", began_s, ended_s, attributes={"outcome": outcome})

    def relaying(self, at_s: float) -> None:
        """The worker is connected."""
        self._relay_s = at_s

    def relayed(self, at_s: float) -> None:
        """The worker is done, with this turn at least."""
        if self._trace is not None and self._relay_s is not None:
            self._trace.write("relay", self._relay_s, at_s)
        self._relay_s = None

    def ended(self, began_s: float, ended_s: float, mode: str, close_code: int | None) -> None:
        """The client is gone; it left by itself if there is no code."""
        self.relayed(ended_s)
        if self._trace is not None:
            call = self._trace.begin("call", began_s, stands_for_call=True)
            closed = {} if close_code is None else {"close_code": close_code}
            self._trace.end(call, ended_s, {"mode": mode, **closed})
