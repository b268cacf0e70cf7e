"""Runs the steps of many conversations on one thread, so that forward passes are shared.

`Task(steps, due_s, engine)` runs a generator of `MiniCPMO45.engine.steps`. Cancelling the caller
closes it before its next request is answered, and waits for that; a second cancellation does not.
`InlineEngine` has the same methods without a thread, for scripts and tests.
"""

from __future__ import annotations


class WorkCancelledError(Exception):
    """The work was cancelled between two forward passes; it has no result."""
