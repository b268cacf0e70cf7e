"""Runs the steps of many conversations on one thread, so that forward passes are shared.

Cancelling the caller of a `Task` closes it before its next request is answered, and waits for that;
a second cancellation does not.
"""

from __future__ import annotations


class WorkCancelledError(Exception):
    """The work was cancelled between two forward passes; it has no result."""
