"""Which picture of a live call a question is about."""

from __future__ import annotations

from typing import Any

import pytest

from core.images import decode_wire_picture
from tests.fakes.cascade_call import ENDS, SILENCE, call
from tests.fakes.cascade_parts import scripted
from tests.service.workers import jpeg


@pytest.mark.parametrize(("pictures", "is_kept"), [(1, True), (3, False)])
async def test_a_camera_that_is_off_is_not_seen_any_more_but_a_single_picture_is(
    pictures: int, is_kept: bool
) -> None:
    async def describe(picture: Any, question: str, threads: Any) -> str:
        return "A circle."

    question = "What do you see?"
    live = await call(scripted("Well.", "Well.", heard=[question] * 2, describe=describe))
    live.language_model.is_small = False
    picture = decode_wire_picture(jpeg(32, 48))
    for _ in range(pictures):
        await live.hear(SILENCE, frames=[picture])
    await live.hear(SILENCE, ENDS)
    await live.until_quiet()
    await live.hear(*[SILENCE] * 5, ENDS)
    soon, later = ("A circle." in asked[-1].content for asked in live.language_model.asked)
    assert (soon, later) == (True, is_kept)
