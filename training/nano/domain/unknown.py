"""Questions outside the domain, to be declined."""

from __future__ import annotations

from random import Random

from training.nano.domain.kinds import Question, tidy
from training.nano.domain.words import CAPITALS, NAMES, REPEATED

SORRY = "Sorry, I am a very small model and know only a few things."
INTENT = "unknown"

_VERBS = (
    "fix build paint sell cook clean find open buy move wash cut sew plant draw write learn carry"
    " repair design catch feed teach use hide share choose borrow throw visit"
).split()
_PLACES = "school|work|the station|the park|the beach|the office|town|the lake|church".split("|")
_PEOPLE = (
    "my mother|my father|my sister|my brother|the president|the king|the teacher|my neighbor"
    "|the doctor|my boss|the queen|our friends|the children|a policeman"
).split("|")
_TEMPLATES = (
    "who was the (president|king|queen|prime minister) of {country} in {year}?",
    "how do i {verb} a {noun}?",
    "why is the {noun} (so expensive|broken|not working|so heavy|on the floor)?",
    "what is the meaning of (life|the word {noun}|happiness|this {noun})?",
    "tell me (about|everything about|something about) (the {noun}|{country}|{person}).",
    "play (some music|the radio|a song by {name}|my favorite song).",
    "turn (on|off) the (light|heating|television|{noun}).",
    "(what|when|why) did {person} (say|leave|come|buy|call) (yesterday|last week|the {noun})?",
    "how far is it (to {country}|to the moon|from here to {country})?",
    "who (wrote|invented|painted|discovered) the {noun}?",
    "can you (order|book|buy|bring) me a {noun}?",
    "where (can i buy|did i put|do they make|is) (a|the|my) {noun}?",
    "(yesterday|last night|on sunday) {person} {verb}ed the {noun} (in|near|behind) the {noun2}.",
    "i (went|want to go|have to go) to {place} with {person} (today|tomorrow|next week).",
    "the {noun} and the {noun2} are (in the kitchen|on the table|very old|not mine).",
    "how many people live in {country}?",
    "what is the (population|history|flag|money|weather|president) of {country}?",
    "translate {noun} into (german|french|spanish).",
    "how do you spell {noun}?",
    "what (rhymes with|is made of|goes with|costs) {noun}?",
    "remind me to {verb} the {noun} (tomorrow|at noon|in ten minutes).",
    "set (an alarm|a timer) for (ten minutes|seven o'clock|half an hour).",
    "call {name} (|please|now|at home).",
    "send {name} a message (|please|about the {noun}).",
    "did you (see|hear|read) (the news|the game|about the {noun}|the {noun})?",
    "what is (the square root of|the price of|the weight of) (a {noun}|sixteen|the {noun})?",
    "(do you think|is it true) that {person} will {verb} the {noun}?",
    "my {noun} is (broken|lost|at home|too small), what should i do?",
    "{person} (always|never|sometimes) (eats|drinks|likes|has) (too much|the {noun}|a {noun}).",
    "if it rains tomorrow we will {verb} the {noun} instead.",
    "i (don't|really) think the {noun} (is|was) (a good idea|very nice|too loud).",
    "(explain|describe) (quantum physics|the stock market|how a {noun} works|democracy) to me.",
    "who (won|plays in|lost) the (football game|world cup|election|last match)?",
    "(give me|write|read me) (a recipe for|a letter about|an essay about|the book about) {noun}.",
    "what is {number} (plus|times|minus|divided by) {number2}?",
    "the (red|old|big|new) {noun} of {name} (fell down|is gone|looks great|was sold).",
    "have you ever been to (the moon|{country}|{place})?",
    "(is|was) {name} (at home|here|with you|at the party) (today|yesterday)?",
    "we should {verb} (a|the) {noun} before {name} comes back.",
    "how long does it take to {verb} a {noun}?",
)
_YEARS = "nineteen ninety|eighteen twelve|two thousand and five|nineteen forty five".split("|")
_LARGE = (
    "fifty three|ninety nine|one hundred and twelve|forty seven|seventy six|two hundred"
    "|thirty eight|eighty one|sixty four"
).split("|")


def draw_unknown(random: Random) -> Question:
    phrase = random.choice(_TEMPLATES)
    while "(" in phrase:
        start, stop = phrase.index("("), phrase.index(")")
        choice = random.choice(phrase[start + 1 : stop].split("|"))
        phrase = phrase[:start] + choice + phrase[stop + 1 :]
    text = phrase.format(
        noun=random.choice(REPEATED),
        noun2=random.choice(REPEATED),
        verb=random.choice(_VERBS),
        country=random.choice(list(CAPITALS)),
        name=random.choice(NAMES),
        person=random.choice(_PEOPLE),
        place=random.choice(_PLACES),
        year=random.choice(_YEARS),
        number=random.choice(_LARGE),
        number2=random.choice(_LARGE),
    )
    return Question(tidy(text), INTENT)
