"""What the embedded models are asked, how answers are marked, and figures with their limits."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.table import Table

GOOD: Final = 2
PARTLY: Final = 1
WORDS_MAX: Final = 50  # of an answer to be spoken; the prompt wants one or two short sentences
LIST: Final = re.compile(r"^\s*(?:\d+\.|[-*•])\s", re.MULTILINE)
NUMBERED: Final = re.compile(r"\b1\. .*\b2\. ", re.DOTALL)
DISCLAIMER: Final = re.compile(r"\bas an ai\b")


@dataclass(frozen=True)
class OpenQuestion:
    """A question without one right answer; patterns match answers in lower case."""

    text: str
    good: str  # what a good answer names
    topic: str = ""  # what an answer on the subject names; such an answer is partly good
    wrong: str = r"(?!)"  # what makes an answer wrong

    def points(self, answer: str) -> int:
        """Return 2 for a good answer, 1 for a partly good one, 0 for a wrong or useless one.

        A good one can also be spoken: it is short, no list, and does not talk about being an AI.
        """
        said = " ".join(answer.lower().replace("’", "'").split())
        if re.search(self.wrong, said):
            return 0
        if not re.search(self.good, said):
            return PARTLY if self.topic and re.search(self.topic, said) else 0
        is_list = LIST.search(answer) or NUMBERED.search(answer)
        is_spoken = len(said.split()) <= WORDS_MAX and not is_list and not DISCLAIMER.search(said)
        return GOOD if is_spoken else PARTLY


# Question and the pattern of a right answer.
CLOSED: Final = (
    ("What is the capital of Australia?", r"canberra"),
    ("What is the capital of France?", r"paris"),
    ("What is the capital of Japan?", r"tokyo"),
    ("What is the capital of Italy?", r"rome"),
    ("What is the capital of Canada?", r"ottawa"),
    ("Who wrote Romeo and Juliet?", r"shakespeare"),
    ("Who painted the Mona Lisa?", r"vinci|leonardo"),
    ("What is seventeen times six?", r"\b102\b|hundred (and )?two"),
    ("What is eight plus five?", r"\b13\b|thirteen"),
    ("What is twenty minus seven?", r"\b13\b|thirteen"),
    ("How many days are there in a leap year?", r"\b366\b"),
    ("How many minutes are there in an hour?", r"\b60\b|sixty"),
    ("How many legs does a spider have?", r"\b8\b|eight"),
    ("What is the opposite of hot?", r"cold"),
    ("What is the opposite of early?", r"late"),
    ("What color do you get from blue and yellow?", r"green"),
    ("Which planet is called the red planet?", r"mars"),
    ("What is the largest ocean?", r"pacific"),
    ("How do you say good morning in French?", r"bonjour"),
    ("Which animal says meow?", r"cat"),
    # Asked in writing only.
    ("What is the capital of Spain?", r"madrid"),
    ("What is the capital of Germany?", r"berlin"),
    ("What is the capital of Egypt?", r"cairo"),
    ("What is the capital of Norway?", r"oslo"),
    ("What is the capital of Brazil?", r"bras[ií]lia"),
    ("Who wrote Hamlet?", r"shakespeare"),
    ("Who wrote Pride and Prejudice?", r"austen"),
    ("Who wrote Nineteen Eighty-Four?", r"orwell"),
    ("Who wrote Oliver Twist?", r"dickens"),
    ("Who wrote Harry Potter?", r"rowling"),
    ("Who wrote War and Peace?", r"tolstoy"),
    ("What is seven times eight?", r"\b56\b|fifty[- ]six"),
    ("What is twelve times twelve?", r"\b144\b|hundred (and )?forty[- ]four"),
    ("What is nine times nine?", r"\b81\b|eighty[- ]one"),
    ("What is fifteen plus nineteen?", r"\b34\b|thirty[- ]four"),
    ("What is twenty times twenty?", r"\b400\b|four hundred"),
    ("What is eighteen divided by three?", r"\b6\b|\bsix\b"),
    ("How many seconds are there in a minute?", r"\b60\b|sixty"),
    ("How many hours are there in a day?", r"\b24\b|twenty[- ]four"),
    ("How many centimetres are there in a metre?", r"\b100\b|hundred"),
    ("How many grams are there in a kilogram?", r"\b1,?000\b|thousand"),
    ("How many months are there in a year?", r"\b12\b|twelve"),
    ("How many weeks are there in a year?", r"\b52\b|fifty[- ]two"),
    ("What is the opposite of big?", r"small|little|tiny"),
    ("What is the opposite of up?", r"down"),
    ("What is the opposite of rich?", r"poor"),
    ("What is the opposite of empty?", r"full"),
    ("What is the opposite of loud?", r"quiet|silent|soft"),
    ("What is the opposite of difficult?", r"easy|simple"),
    ("What is the opposite of wet?", r"dry"),
)
SPOKEN_CLOSED: Final = tuple(question for question, _ in CLOSED[:20])
# Asked aloud as well.
SPOKEN: Final = (
    OpenQuestion(
        "How can I fall asleep more easily?",
        r"breath|meditat|relax|dark|quiet|cool|\bread|bath|caffeine|screen|routine|"
        r"schedule|exercise",
        r"sleep|bed|night|rest",
    ),
    OpenQuestion(
        "What could I cook for dinner with eggs and spinach?",
        r"(?=.*egg)(?=.*spinach).*(omelet|frittata|scrambl|quiche|salad|stir|pasta|soup|"
        r"saut|fried|bake)",
        r"egg|spinach",
    ),
    OpenQuestion(
        "I have a job interview tomorrow, any tips?",
        r"prepar|practi|research|question|dress|early|on time|confiden|calm",
        r"interview|job",
    ),
    OpenQuestion(
        "What do you think about cats?",
        r"\b(love|like|great|cute|playful|independent|companion|affection|adorable|"
        r"intelligen|loyal|popular|friendly|cuddl)",
        r"\bcats?\b",
    ),
    OpenQuestion(
        "Why is the sky blue?", r"scatter|rayleigh", r"light|sun", r"shade of blue|reflect"
    ),
    OpenQuestion(
        "Can you tell me a short story about a dragon?",
        r"(?=.*dragon).*\b(once|one day|there (was|lived)|lived|named|called)\b",
        r"dragon",
        r"type of bird",
    ),
    OpenQuestion(
        "How do I make a good cup of tea?",
        r"(?=.*(boil|hot|water)).*(steep|brew|minutes|infus|leaves|tea ?bag)",
        r"\btea\b",
    ),
    OpenQuestion(
        "What should I pack for a weekend at the sea?",
        r"(swim|sunscreen|towel|hat|sunglasses|clothes|snack|sandal)\w*\b.*\b(swim|"
        r"sunscreen|towel|hat|sunglasses|clothes|snack|sandal)",
        r"sea|beach|pack",
    ),
    OpenQuestion(
        "Why do people dream?", r"brain|memor|emotion|process|\brem\b|subconscious|\bmind", r"dream"
    ),
    OpenQuestion(
        "I feel a bit lonely today.",
        r"sorry|friend|family|talk|reach out|\bcall|here for you|support|normal|okay to feel",
        r"lonely|feel",
    ),
    OpenQuestion(
        "How does a bicycle stay upright?",
        r"balanc|steer|gyroscop|momentum|\bmov(e|ing)|motion|speed|forward|\blean",
        r"bicycle|bike|wheel",
    ),
    OpenQuestion(
        "What is a good name for a small brown dog?",
        r"\b(coco|cocoa|buddy|max|brownie|bruno|mocha|charlie|milo|teddy|bear|hazel|"
        r"chestnut|cooper|rusty|benny|bella|luna|rocky|daisy|lucky|toby|oscar|ginger|"
        r"pepper)\b",
        r"dog|name",
    ),
    OpenQuestion(
        "Explain to a child what rain is.",
        r"(?=.*(cloud|sky)).*(water|drop)",
        r"rain|water",
        r"from the ground",
    ),
    OpenQuestion(
        "How can I learn to play the guitar?",
        r"practi|chord|lesson|teacher|scales|tutorial",
        r"guitar|play",
    ),
    OpenQuestion(
        "What is the difference between a fruit and a vegetable?",
        r"seed|flower|ovary|root|stem|leaves|leaf|sweet",
        r"fruit|vegetable",
        r"not edible|vegetables? (is|are) (a )?fruit",
    ),
    OpenQuestion("Tell me a joke.", r"(why|what) .*\?.*\w|knock|walks? into", r"joke"),
    OpenQuestion(
        "What would you do with a million dollars?",
        r"travel|house|home|invest|charity|donat|\bsave|family|business|\bhelp|world|"
        r"trip|education",
        r"buy|spend|money|dollars",
    ),
    OpenQuestion("How do I say sorry to a friend?", r"sorry|apolog|forgive", r"friend"),
    OpenQuestion(
        "Why should I drink water?",
        r"hydrat|kidney|digest|temperature|skin|energy|health|toxin|joints",
        r"water",
    ),
    OpenQuestion(
        "What makes a good book?", r"stor(y|ies)|plot|character|writ|engag|theme|language", r"book"
    ),
)
WRITTEN: Final = (
    OpenQuestion(
        "Hi there, how are you today?",
        r"\b(i'm|i am|doing) .*(good|great|well|fine|okay|here)|\bgood day|how (about|are) you",
        r"\b(hi|hello|good)\b",
    ),
    OpenQuestion(
        "What can you help me with?",
        r"answer|question|information|tasks?\b|talk|chat|explain",
        r"help|assist",
    ),
    OpenQuestion(
        "I'm feeling a bit sad today.",
        r"sorry to hear|what('s| is| happened)|here (for|to)|talk|understand|(okay|ok|"
        r"normal|alright) to|cheer|hope you",
        r"sad|feel",
    ),
    OpenQuestion(
        "What is the weather like in Paris right now?",
        r"can't|cannot|don't know|unable|no way to",
        r"weather|paris",
        r"\d ?(°|degrees)|currently (sunny|mild|cloudy|rain|experienc)",
    ),
    OpenQuestion(
        "Can you explain photosynthesis to a ten year old?",
        r"(?=.*plant)(?=.*(sun|light)).*(food|sugar|energy|oxygen)",
        r"plant|light",
    ),
    OpenQuestion(
        "How do I get a red wine stain out of a shirt?",
        r"cold water|\bsalt|soap|detergent|soda|vinegar|\bblot|stain remover|peroxide|\bdab",
        r"stain|wine|wash",
    ),
    OpenQuestion(
        "Can you recommend a book for a long flight?",
        r"\"[^\"]+\"|\bby \w+ \w+|gatsby|hobbit|alchemist|harry potter|sherlock|"
        r"pride and prejudice",
        r"book|novel|read",
    ),
    OpenQuestion(
        "What is the difference between a virus and a bacterium?",
        r"(?=.*virus).*(cell|host|living|antibiotic|smaller)",
        r"virus|bacteri",
        r"virus(es)? (is|are) (a )?(type of )?bacteri",
    ),
    OpenQuestion(
        "Tell me a story about a dragon who was afraid of fire.",
        r"(?=.*dragon).*(once|one day|named|called|there (was|lived)|lived|until|"
        r"decided|learn|found|friend)",
        r"dragon|fire",
    ),
    OpenQuestion(
        "What should I do on a weekend in Rome?",
        r"colosseum|vatican|forum|trevi|pantheon|museum|pizza|pasta|gelato|ruins|"
        r"spanish steps|peter's|sistine|cuisine",
        r"rome|visit",
    ),
    OpenQuestion(
        "What should I give my mother for her birthday?",
        r"flower|jewel|necklace|book|chocolate|card|perfume|spa|photo|scarf|gift card|dinner|cake",
        r"gift|present|birthday|mother",
    ),
    OpenQuestion(
        "How can I keep my house warm in winter?",
        r"insulat|curtain|heat|seal|draft|blanket|thermostat|window|fire",
        r"warm|house|winter",
    ),
    OpenQuestion(
        "Why do leaves turn red in autumn?",
        r"anthocyanin|carotenoid|(?=.*(chlorophyll|pigment)).*(break|less|los[et]|fade|stop|reveal|"
        r"decreas|disappear)",
        r"lea(f|ves)|autumn|fall",
    ),
    OpenQuestion(
        "How do I start running if I have never done sports?",
        r"slow|walk|short|shoes|warm(ing)? up|gradual|stretch|minutes|start (with|by|small)",
        r"run|jog|exercise",
    ),
    OpenQuestion(
        "What can I do against hiccups?", r"breath|water|drink|sugar|swallow|sip", r"hiccup"
    ),
    OpenQuestion(
        "Is a tomato a fruit or a vegetable?",
        r"fruit",
        r"tomato",
        r"(?<!not )a vegetable(?!.*fruit)",
    ),
    OpenQuestion(
        "What is good about living in a small town?",
        r"quiet|peace|community|friend|nature|safe|cheap|cost|pace|close|calm|less (noise|traffic)",
        r"town|live|living",
    ),
    OpenQuestion(
        "My train is late and I am bored, what can I do?",
        r"read|book|music|podcast|game|walk|call|listen|write|movie|friend|coffee|puzzle",
        r"train|wait|bored",
    ),
    OpenQuestion(
        "How does a microwave oven heat food?",
        r"(?=.*(wave|radiation)).*(water|molecul|vibrat)",
        r"microwave|heat",
    ),
    OpenQuestion(
        "What is the best way to learn a new language?",
        r"practi[cs]e|speak|listen|app|class|course|native|immers|read|vocabular|every day|daily",
        r"language|learn",
    ),
)
OPEN: Final = tuple(question.text for question in SPOKEN)
NAMES: Final = "Anna Peter Maria David Laura Thomas Julia Simon Emma Oliver".split()
PLACES: Final = "Berlin Madrid Oslo Boston Vienna Chicago Dublin Lisbon Prague Toronto".split()
# What is told, what is asked four turns later, and the word that the answer contains.
FACTS: Final = (
    *((f"Hello, my name is {name}.", "What is my name?", name) for name in NAMES),
    *((f"I live in {place}.", "Which city do I live in?", place) for place in PLACES),
)
FILLERS: Final = ("What could I do this weekend?", "Do you like music?", "What is two plus three?")


@dataclass
class Report:
    figures: dict[str, float] = field(default_factory=dict)  # shares 0 to 1, times in s
    # By name: the limit, and whether it is an upper one.
    limits: dict[str, tuple[float, bool]] = field(default_factory=dict)
    cases: dict[str, int] = field(default_factory=dict)  # by name: number of cases
    answers: list[tuple[str, str]] = field(default_factory=list)  # questions and answers
    points: dict[str, int] = field(default_factory=dict)  # of open questions

    def add(self, name: str, figure: float, limit: float, cases: int, *, is_most: bool) -> None:
        self.figures[name] = round(figure, 4)
        self.limits[name] = limit, is_most
        self.cases[name] = cases

    def is_reached(self, name: str) -> bool:
        limit, is_most = self.limits[name]
        return self.figures[name] <= limit if is_most else self.figures[name] >= limit

    def table(self) -> Table:
        table = Table("gate", "limit", "measured", "cases", "")
        for name, figure in self.figures.items():
            limit, is_most = self.limits[name]
            mark = "reached" if self.is_reached(name) else "NOT REACHED"
            sign, cases = "≤" if is_most else "≥", self.cases[name]
            table.add_row(name, f"{sign} {limit:g}", f"{figure:g}", f"{cases}", mark)
        return table

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(vars(self), indent=1, ensure_ascii=False), encoding="utf8")
