"""What a worker does with a loaded model before its first session: speak once, measure units."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np
from PIL import Image

from core.engine.passes import run_together
from core.processors.duplex import DuplexView
from core.processors.streaming import StreamingView
from core.processors.view import ViewContext
from core.schemas.common import Message, Role
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from core.schemas.streaming import StreamingRequest
from MiniCPMO45.engine.session import Session
from MiniCPMO45.engine.steps import Steps
from MiniCPMO45.modes.duplex import SlicedPicture, slice_pictures

WARM_UP_TOKENS: Final = 12
MEASURED_TOGETHER: Final = 64  # sessions: so many that what one more adds is seen
ROUNDS: Final = 3  # the shortest counts: the first one also makes what is made at first use
PICTURE_SIZE: Final = (1280, 720)  # what the pages send
SECOND: Final = np.zeros(INPUT_SAMPLE_RATE_HZ, np.float32)


def speak_once(context: ViewContext) -> None:
    """Speak once, so that no session waits for what is made at the first use."""
    duplex = DuplexView(context)
    duplex.prepare()
    duplex.prefill(SECOND)
    duplex.generate(force_listen=True)
    duplex.finalize()
    duplex.cleanup()
    chat = StreamingView(context)
    hello = [Message(role=Role.USER, content="Hello")]
    chat.prefill(StreamingRequest(session_id="warm_up", messages=hello, is_last_chunk=True))
    for _ in chat.generate("warm_up", max_new_tokens=WARM_UP_TOKENS):
        pass
    chat.cleanup()


def measure_units(
    context: ViewContext, slots: int, now_s: Callable[[], float] = time.perf_counter
) -> dict[int, float]:
    """Return the seconds that a unit takes by number of sessions: of one, and of several.

    All get a second of sound and a picture, and every second one speaks. Runs on the engine's
    thread.
    """
    views = [DuplexView(context) for _ in range(min(slots, MEASURED_TOGETHER))]
    try:
        for view in views:
            view.prepare()
        sessions = [view.session for view in views]
        return {
            count: min(_round_s(context, sessions[:count], now_s) for _ in range(ROUNDS))
            for count in (1, len(sessions))
        }
    finally:
        for view in views:
            view.cleanup()


def _round_s(context: ViewContext, sessions: list[Session], now_s: Callable[[], float]) -> float:
    """Return the seconds until each session has had a unit."""
    began_s = now_s()
    run_together(
        context.model.executor,
        [_unit(context, session, speaks=index % 2 == 0) for index, session in enumerate(sessions)],
    )
    return now_s() - began_s


def _unit(context: ViewContext, session: Session, *, speaks: bool) -> Steps[None]:
    model = context.model
    picture = Image.new("RGB", PICTURE_SIZE)
    [cut] = slice_pictures([picture], 1, model.duplex.config.slice_config)
    assert isinstance(cut, SlicedPicture), "it was not seen before"
    seen = SlicedPicture(model.executor.prepare_slices(cut.slices))
    yield from model.duplex.streaming_prefill(session, SECOND, [seen])
    yield from model.duplex.streaming_generate(session, not speaks, speaks)
    yield from model.duplex.finalize(session)
