"""System prompts: the texts the services send, and the facts the nano copies from them."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from MiniCPMO45.processing import prompts
from training.nano.domain.kinds import Context, contextual
from training.nano.domain.spoken_numbers import DAYS, MONTHS, clock_words, date_words
from training.nano.domain.words import NAMES

ROLES = (
    prompts.DUPLEX_SYSTEM_PROMPT,
    prompts.SERVICE_DUPLEX_SYSTEM_PROMPT,
    "You are on an open phone call in English. Listen all the time, speak when it is your turn, "
    "keep it to a sentence or two, and stop at once when you are interrupted.",
    "You are on a live video call in English. You see the camera and hear the microphone all the "
    "time. Speak briefly and naturally, mention what you see when it matters, and fall silent when "
    "the other person speaks.",
    "You are a warm, attentive conversation partner. Answer in English, in short sentences that "
    "sound natural when spoken, and ask back when something is unclear.",
    "You are on the phone with a friend. Answer in English in one to three spoken sentences, "
    "without lists or headings, and leave room for the other to go on.",
    "You are a friendly voice.",
    "Answer in short sentences.",
    "You are a kind helper who listens and speaks.",
    "",
)
DAYS_OF_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
NO_CLOCK = "I do not know the time."
NO_DAY = "I do not know what day it is."
NO_DATE = "I do not know the date."


@dataclass(frozen=True)
class Facts:
    """Facts of a system prompt; absent ones are None or empty."""

    hour: int | None = None
    minute: int = 0
    weekday: int | None = None
    month: int | None = None
    day: int = 1
    name: str = ""

    def sentences(self) -> list[str]:
        found = []
        if self.hour is not None:
            found.append(f"The time is {self.hour:02d}:{self.minute:02d}.")
        if self.weekday is not None:
            found.append(f"Today is {DAYS[self.weekday]}.")
        if self.month is not None:
            found.append(f"The date is {self.day} {MONTHS[self.month - 1]}.")
        if self.name:
            found.append(f"The user is called {self.name}.")
        return found

    def context(self) -> Context:
        return Context(
            name=self.name,
            clock="" if self.hour is None else clock_words(self.hour, self.minute),
            day="" if self.weekday is None else DAYS[self.weekday],
            date="" if self.month is None else date_words(self.month, self.day),
        )


def draw_facts(random: Random) -> Facts:
    month = random.randrange(12)
    tells_all = random.random() < 0.5
    chance = 1.0 if tells_all else 0.4
    return Facts(
        hour=random.randrange(24) if random.random() < chance else None,
        minute=random.randrange(60) if random.random() < 0.85 else 0,
        weekday=random.randrange(7) if random.random() < chance else None,
        month=month + 1 if random.random() < chance else None,
        day=random.randint(1, DAYS_OF_MONTH[month]),
        name=random.choice(NAMES) if random.random() < 0.3 else "",
    )


def system_text(role: str, facts: Facts) -> str:
    return " ".join(part for part in (role, *facts.sentences()) if part)


def _shifted(day: str, days: int) -> str:
    return DAYS[(DAYS.index(day) + days) % len(DAYS)]


INTENTS = contextual(
    """
clock 3: What time is it?
    (|please|hello,) (what time is it|what's the time|tell me the time) (|please|now)?
    (|can you|could you) tell me (what time it is|the time) (|please|now)?
    (do you know|do you have) the time?
    how late is it (|now)?
    what is the time (|now|right now)?
day 2: What day is it?
    what day (is it|is today|is it today|do we have today|of the week is it)?
    (|can you|please) tell me what day it is (|today)?
    (which day is it|which day is today|what weekday is it)?
tomorrow:
    what day (is|is it|will it be) tomorrow?
    (which|what) day comes tomorrow?
yesterday:
    (what|which) day was (it|) yesterday?
date 2: What is the date today?
    (what is|what's) (the date|today's date) (|please)?
    (what is|what's) the date today?
    (|can you|could you) tell me (the|today's) date (|please)?
    (which|what) date (is it|is today|do we have|do we have today)?
""",
    clock=lambda context: f"It is {context.clock}." if context.clock else NO_CLOCK,
    day=lambda context: f"Today is {context.day}." if context.day else NO_DAY,
    tomorrow=lambda context: f"Tomorrow is {_shifted(context.day, 1)}." if context.day else NO_DAY,
    yesterday=lambda context: (
        f"Yesterday was {_shifted(context.day, -1)}." if context.day else NO_DAY
    ),
    date=lambda context: f"It is {context.date}." if context.date else NO_DATE,
)
