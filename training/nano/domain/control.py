"""Intents that control the conversation: stop, continue, repeat."""

from __future__ import annotations

from training.nano.domain.kinds import contextual, fixed

NOTHING_SAID = "I have not said anything yet."
NOTHING_LEFT = "I have nothing more to say."

STOP = "stop"
"""The intent that interrupts a reply; it is answered only if nothing is spoken."""

INTENTS = (
    *fixed(f"""
{STOP} 3: Okay.
    (stop|wait|stop it|stop talking|be quiet|quiet|enough|hold on|stop now|no stop).
    (|please|okay,|no,) (stop|be quiet|quiet|wait|stop talking|stop it) (|please|now).
    (stop stop|wait wait|shut up|that's enough|hang on|wait a moment|wait a minute).
"""),
    *contextual(
        """
go_on 2: Go on.
    (|please|okay,|now) (go on|continue|carry on|keep going) (|please|now).
    (and then|what happened then|what comes next|tell me more)?
again 4: Say that again.
    (|please|can you|could you) (say|repeat) (that|it) (|once) again (|please).
    (|sorry,) what did you (just|) say?
    (pardon|sorry|excuse me), (what|what was that|once more|again)?
    (|please|can you|could you) repeat (that|it|what you said) (|please).
    i (didn't|did not) (hear|understand|get) (that|you).
""",
        go_on=lambda context: context.unsaid or NOTHING_LEFT,
        again=lambda context: context.last_reply or NOTHING_SAID,
    ),
)
