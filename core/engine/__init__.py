"""Runs the steps of many conversations on one thread, so that forward passes are shared.

    engine = Engine()
    engine.run_pass = partial(run_pass, executor)    # on the thread that loaded the model
    task = Task(steps, due_s, engine)          # `async for value in task`, then `task.result`
    length = await engine.call(function)       # a plain call between two passes

`steps` is a generator of `MiniCPMO45.engine.steps`. Cancelling the caller closes it before its
next request is answered, and waits for that; a second cancellation does not.

`InlineEngine` has the same methods without a thread, for scripts and tests: `run_inline(coroutine)`
runs such a coroutine without an event loop, also on the engine's own thread.
`engine` imports no tensor library.
"""

from __future__ import annotations


class WorkCancelledError(Exception):
    """The work was cancelled between two forward passes; it has no result."""
