"""Predefined answers to questions that a small language model answers with inventions. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from core.cascade.arithmetic import LONGEST_CHARS, SENTENCE_END, spoken_result
from core.cascade.language import Line
from core.cascade.prompts import day_of, time_of
from core.cascade.turns import words_of

ABOUT_PICTURE: Final = re.compile(
    r"\b(do|can|could|did) you see\b|\bwhat(?: i|')s (this|that|it)\b|\blook at\b|\bdescribe\b"
    r"|\b(what|which) (colou?r|shape|number|digit)\b|\bam i (holding|showing|wearing)\b"
    r"|\bhow many (are there|fingers|things|of them)\b|\b(picture|image|photo|camera)\b"
)
# Without a picture: questions that knowledge cannot answer.
ABOUT_MISSING_PICTURE: Final = re.compile(
    r"\b(do|can|could|did) you see (me|my|this|that|it|anything|what|now|here|the \w+)\b"
    r"|\bwhat do you see\b|\bam i (holding|showing|wearing)\b"
    r"|\b(what|which) (colou?r|shape|number|digit) "
    r"(is (this|that|it|my (?P<thing>\w+))|am i|do you see)\b"
    r"|\b(?:describe|look at|see|what|where|who)\b[^.!?]*"
    r"\b(the|this|that|my) (picture|image|photo|camera)\b"
)
PICTURE_MARK: Final = "(Of the picture: "
FUNCTION_OUTPUT: Final = "<tool_response>"  # as in core/tools.py
UNRECOGNIZED: Final = "you cannot make out what is on it. Say so."
SEEN: Final = (
    "a very small vision model that knows only plain shapes, colors, digits and counts takes it "
    'for this, and may be wrong: "{}" If that does not fit, say that you cannot make it out.'
)
QUOTED: Final = re.compile(r'"(.+?)"')
SEES_LITTLE: Final = "I only know plain shapes, colors and digits, so I may be wrong."
NEWS: Final = r"(?:weather|forecast|news|headlines|traffic|stock price)\b"
# Questions about the present. "I have good news" and "nice weather today" ask nothing, and why the
# weather changes is known.
LOOKING_UP: Final = re.compile(
    rf"\b(?:what|how)(?:'s|'re| is| are| was| will| about) (?!an? )(?:[\w']+ ){{0,3}}{NEWS}"
    rf"|\b(?:tell me|give me|read me|check) (?:(?:about|some|the|latest|today's|what|how) )*{NEWS}"
    rf"|(?:^|[.!?,] )(?:any|are|can|could|do|does|is|what(?! a)|will)\b[^.!?]*\b{NEWS}"
    r"[^.!?]*\b(?:today|tonight|now|tomorrow|this week|this weekend|here|outside|in \w+)\b"
    r"|\b(?:is it (?:raining|snowing)|will it (?:rain|snow))\b"
    r"|\bis it (?:\w+ )?(?:cold|hot|warm) (?:\w+ )?"
    r"(?:here|now|out|outside|today|tonight|tomorrow)\b"
    r"|\bwho won\b.*\b(?:today|yesterday|last night)\b"
)
IDENTITY: Final = re.compile(
    r"\b(who|what) are you\b(?! (?:doing|going|saying|talking|thinking|up to)\b)"
    r"|\b(what|which) (\w+ )?(model|ai) are you\b"
    r"|\bare you (an? |the )?(\w+ )?"
    r"(chatgpt|gpt|ai|human|person|robot|bot|real|minicpm|qwen|siri|alexa|model)\b"
    r"|\byour name\b|\bwho (made|built|created) you\b"
)
MY_NAME: Final = re.compile(
    r"\bwho am i\b|\b(what's|what is|what was|know|remember|say|forgotten|forget) my name\b"
)
NAMED: Final = re.compile(
    r"\b(?:[Mm]y name is|[Mm]y name's|[Cc]all me) "
    r"(?![A-Z]+\b(?!['’-]))([^\W\d_a-z](?:['’-]?[^\W\d_])+)"
)
GREETING: Final = re.compile(r"(?:hello|hey|hi|excuse me|good (?:morning|afternoon|evening))\b")
HEARING: Final = re.compile(
    r"\b(?:can|do|could) (?:you|anybody|anyone) hear (?:me|this)\b|\bare you (?:still )?there\b"
    r"|\bis (?:anybody|anyone|somebody|someone) there\b|^testing\b"
)
MEETING: Final = re.compile(r"\b(?:glad|good|great|nice|pleased) to meet you\b")
ABILITIES: Final = re.compile(
    r"\bwhat (?:can|could) (?:you (?:do|help (?:me |us )?with)|i (?:ask|say|talk about))"
    r"(?: here| you)?\W*$"
)
LANGUAGE: Final = re.compile(
    r"\b(?:do|can|could) (?:you|we) (?:speak|understand|talk)(?: in| any)? "
    r"(?:arabic|chinese|dutch|french|german|hindi|italian|japanese|korean|mandarin|other languages?"
    r"|polish|portuguese|russian|spanish|turkish)\b"
)
ORIGIN: Final = re.compile(
    r"\bhow old are you\b|\bwhere (?:are you from|do you (?:come from|live))\b"
)
AT_PRESENT: Final = r"(?:,? (?:again|now|of today|please|right|today))*\W*$"
TIME: Final = re.compile(
    r"\b(?:what time (?:is it|it is)|what(?:'s| is) the time|what the time is)" + AT_PRESENT
)
DATE: Final = re.compile(
    r"\b(?:what(?:'s| is) (?:the|today's) date|what (?:the|today's) date is"
    r"|(?:what|which) (?:day|date) (?:is (?:it|today)|it is))" + AT_PRESENT
)
VERSION: Final = re.compile(r"[\W\d].*")  # unpronounceable behind a model's name
ABLE_TO: Final = (
    "I can chat with you, answer questions and do sums. I'm small, so I'm often wrong, and I can't "
    "look anything up."
)
HEARS: Final = "Yes, I can hear you well."
NO_PICTURE: Final = "I can't see anything: there is no picture, so perhaps the camera is off."


def asks_about_picture(question: str) -> bool:
    return ABOUT_PICTURE.search(question.lower()) is not None


def picture_note(seen: str | None) -> str:
    """Return what the language model is told about a picture, after the question about it."""
    return f"{PICTURE_MARK}{SEEN.format(seen) if seen else UNRECOGNIZED})"


def with_picture(line: Line, earlier: Sequence[Line]) -> Line:
    """Repeat the latest note on a picture after a question about a picture that is not with it."""
    end = line.content[-LONGEST_CHARS:].lower()
    asks = line.role == "user" and ABOUT_MISSING_PICTURE.search(end)
    if not asks or PICTURE_MARK in line.content:
        return line
    notes = (each.content.partition(PICTURE_MARK)[2] for each in reversed(earlier))
    note = next(filter(None, notes), None)
    return Line("user", f"{line.content} {PICTURE_MARK}{note}") if note else line


def predefined_answer(lines: Sequence[Line], names: Sequence[str], now: datetime) -> str | None:
    """Return the answer to a question that a small model would answer with inventions, or None.

    Every sentence of the question, which is the last line, that has such an answer gets it, if the
    last one has. `names` are those of transcriber, language model and synthesizer.
    """
    asked, _, picture = lines[-1].content.replace("’", "'").partition(PICTURE_MARK)
    if asked.startswith(FUNCTION_OUTPUT):
        return None
    said = " ".join(line.content for line in lines if line.role == "user")
    sentences = SENTENCE_END.split(asked.strip().lower()[-LONGEST_CHARS:])
    statements = [each for each in SENTENCE_END.split(said.lower()) if not each.endswith("?")]
    answers = [
        _answer_about(picture, each, statements) or _answer(each, said, names, now)
        for each in sentences
    ]
    if answers[-1] is None:
        return None
    if answers[-1] in picture and not any(SEES_LITTLE in line.content for line in lines):
        answers.append(SEES_LITTLE)
    if answers[-1] == HEARS:
        answers.append("What would you like to talk about?")
    greeting = "Hello!" if GREETING.match(sentences[0]) else None
    return " ".join(dict.fromkeys(filter(None, (greeting, *answers))))


def _answer_about(picture: str, asked: str, statements: Sequence[str]) -> str | None:
    """Answer a sentence in lower case from the note on a picture, which is "" without one.

    A thing of which the user's `statements` speak needs no picture: "my car is red".
    """
    if not picture:
        missing = ABOUT_MISSING_PICTURE.search(asked)
        thing = missing and missing["thing"]
        is_known = thing and any(thing in words_of(each) for each in statements)
        return NO_PICTURE if missing and not is_known else None
    seen = QUOTED.search(picture)
    return seen[1] if seen and (not asked or ABOUT_PICTURE.search(asked)) else None


def _answer(asked: str, said: str, names: Sequence[str], now: datetime) -> str | None:
    """Answer a sentence in lower case, or return None.

    In `said`, all that the user has said, names have capitals.
    """
    if result := spoken_result(asked):
        return result
    if LOOKING_UP.search(asked):
        topic = re.search(NEWS, asked)
        what = f"the {topic[0]}" if topic else "that"
        return f"I'm sorry, I can't look things up, so I don't know {what}."
    if TIME.search(asked):
        return f"It's {time_of(now)}."
    if DATE.search(asked):
        return f"It's {day_of(now)}."
    if IDENTITY.search(asked):
        ears, brain, voice = (VERSION.sub("", name) for name in names)
        return (
            "I'm a stand-in of three small models, not MiniCPM-o: "
            f"{ears} hears you, {brain} thinks, and {voice} speaks."
        )
    if HEARING.search(asked):
        return HEARS
    if LANGUAGE.search(asked):
        return "I'm sorry, I only speak English."
    if ORIGIN.search(asked):
        return "I'm only a program, so I have no age and no home."
    if ABILITIES.search(asked):
        return ABLE_TO
    known = NAMED.findall(said)
    if MEETING.search(asked):
        return f"Nice to meet you, too, {known[-1]}!" if known else "Nice to meet you, too!"
    if MY_NAME.search(asked) and known:
        return f"Your name is {known[-1]}."  # the model says "My name is Anna"
    return None
