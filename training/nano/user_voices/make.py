"""Records the bank of questions with random voices, on all processors for a given time."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from random import Random
from subprocess import SubprocessError

import numpy as np
from tqdm import tqdm

from core.packages import AssetsError
from training.nano.bank import LIST_FILE, OWN_VOICE, BankWriter, Samples
from training.nano.domain.catalogue import (
    by_slots,
    intents,
    learned_by_slots,
    reply_texts,
    words_of,
)
from training.nano.domain.foreign import endless_foreign
from training.nano.domain.kinds import Question
from training.nano.user_voices.engines import Engine, Hibari, Kokoro, Pico, espeak, flite, styles_of

HELD_OUT = {
    "kokoro": ("af_bella", "af_sky", "am_michael", "am_puck", "bf_emma", "bm_george"),
    "flite": ("rms",),
    "espeak": ("en-gb-scotland+m3", "en-us+f4", "en-gb+kaukovalta", "en-us+pablo"),
}
"""Voices for evaluation, which training recordings and mixtures exclude."""

_NATURAL = (
    "af_alloy af_aoede af_heart af_jessica af_kore af_nicole af_nova af_river af_sarah am_adam"
    " am_echo am_eric am_fenrir am_liam am_onyx am_santa bf_alice bf_isabella bf_lily bm_daniel"
    " bm_fable bm_lewis"
).split()
# Voices of other languages, used for English with accents.
_ABROAD = (
    "ef_dora em_alex em_santa hf_alpha hf_beta hm_omega hm_psi if_sara im_nicola jf_alpha pf_dora"
    " pm_alex pm_santa zf_xiaobei zf_xiaoni zf_xiaoxiao zf_xiaoyi zm_yunjian zm_yunxi zm_yunxia"
    " zm_yunyang"
).split()
_FLITE = ("slt", "awb", "kal", "kal16")
_PICO = ("en-US", "en-GB")
_ACCENTS = "en-us en-gb en-gb-x-rp en-gb-x-gbclan en-gb-x-gbcwmd en-us-nyc en-029".split()
_VARIANTS = (
    "m1 m2 m3 m4 m5 m6 m7 m8 f1 f2 f3 f5 linda steph belinda alicia edward2 max michael adam john"
    " travis Gene Andy aunty klatt2 klatt4 anika"
).split()
MIXED = 0.5  # of the natural utterances
ABROAD = 0.35  # of the voices in them


def draw_voice(engine: str, random: Random, *, held_out: bool = False) -> str:
    """Draw a voice of an engine: "kokoro", "flite", "espeak", "pico" or "hibari"."""
    if held_out:
        return random.choice(HELD_OUT[engine])
    match engine:
        case "kokoro":
            n_voices = 2 if random.random() < MIXED else 1
            return "+".join(
                random.choice(_ABROAD if random.random() < ABROAD else _NATURAL)
                for _ in range(n_voices)
            )
        case "flite":
            return random.choice(_FLITE)
        case "pico":
            return random.choice(_PICO)
        case "espeak":
            return f"{random.choice(_ACCENTS)}+{random.choice(_VARIANTS)}"
        case _:
            return "heart"


# Of processor time.
SHARES = {"kokoro": 0.78, "flite": 0.06, "espeak": 0.07, "hibari": 0.05, "pico": 0.04}
# Factors of intents about very many words.
RECORDED_MORE = {
    "repeat": 3.0,
    **dict.fromkeys(("my_name", "before_letter", "after_letter"), 2.0),
    **dict.fromkeys(("capital", "opposite"), 1.5),
}
PROGRAMS = {"flite": "flite", "espeak": "espeak-ng"}  # by engine; Debian's packages are called so
ENGINE_FAILURES = (SubprocessError, OSError, EOFError, ValueError, IndexError, RuntimeError)
SPLIT = 0.15  # of the questions are spoken in two parts, with a possible pause


@dataclass(frozen=True)
class Order:
    minutes: float  # wall-clock time for questions, after the model's own voice
    processes: int
    seed: int
    engines: tuple[str, ...] = tuple(SHARES)
    has_own_voice: bool = True
    held_out: bool = False  # use the voices for evaluation, and all questions
    foreign: tuple[str, ...] = ()  # recorded instead of questions, if similar to none
    pico: Path | None = None  # folder of the package `py_nanotts`
    kokoro: Path | None = None  # its model
    styles: Path | None = None  # its voices


def record(out: Path, order: Order) -> None:
    """Record a bank in `out`, a folder for each process; raises as `require_engines`."""
    require_engines(order)
    with ProcessPoolExecutor(order.processes) as pool:
        jobs = [pool.submit(_record, out, number, order) for number in range(order.processes)]
        for job in tqdm(as_completed(jobs), total=len(jobs), desc="recording", unit="process"):
            job.result()


def require_engines(order: Order) -> None:
    """Raise `AssetsError` if an engine is unknown, not installed, or lacks the voices ordered."""
    known = HELD_OUT if order.held_out else SHARES
    for name in order.engines:
        if name not in known:
            raise AssetsError(f"The engine {name!r} has no such voices; {', '.join(known)} have.")
        if name == "kokoro" and (order.kokoro is None or order.styles is None):
            raise AssetsError("The engine kokoro needs its model and its voices.")
        if name == "pico" and order.pico is None:
            raise AssetsError("The engine pico needs the folder of its package.")
        program = PROGRAMS.get(name)
        if program is not None and shutil.which(program) is None:
            raise AssetsError(f"The engine {name} is not installed: apt-get install {program}.")


def folders(banks: Iterable[Path]) -> list[Path]:
    """Return the folders that `record` wrote; raises `AssetsError` if a bank has none."""
    found: list[Path] = []
    for bank in banks:
        recorded = sorted(path.parent for path in bank.glob(f"*/{LIST_FILE}"))
        if not recorded:
            raise AssetsError(f"{bank} holds no recordings; `training.nano record` makes them.")
        found += recorded
    return found


def endless_questions(random: Random, *, with_held_out: bool = False) -> Iterator[Question]:
    """Yield random questions by the weights of intents, with equal weight for all slots."""
    table = intents()
    names = list(table)
    weights = [table[name].weight * RECORDED_MORE.get(name, 1.0) for name in names]
    asked = {
        name: by_slots(table[name].questions) if with_held_out else learned_by_slots(name)
        for name in names
    }
    while True:
        [name] = random.choices(names, weights)
        yield random.choice(random.choice(asked[name]))


def _record(out: Path, number: int, order: Order) -> None:
    random = Random(f"{order.seed}/{number}")
    hibari = Hibari()
    engines = _engines(order, hibari)
    writer = BankWriter(out / f"{number:02d}")
    spent = dict.fromkeys(engines, 0.0)
    own = reply_texts()[number :: order.processes] if order.has_own_voice else []
    for text in own:
        samples = hibari.speak(text, "own", random)
        writer.add(Question(text, OWN_VOICE), OWN_VOICE, samples)
    deadline = time.monotonic() + 60 * order.minutes
    complete = {" ".join(words_of(q.text)) for each in intents().values() for q in each.questions}
    asked = (
        endless_foreign(order.foreign, random)
        if order.foreign
        else endless_questions(random, with_held_out=order.held_out)
    )
    for question in asked:
        if time.monotonic() > deadline:
            break
        name = min(engines, key=lambda each: spent[each] / SHARES[each])
        began = time.monotonic()
        voice = draw_voice(name, random, held_out=order.held_out)
        try:
            samples, cut = _spoken(engines[name], voice, question.text, random, complete)
            writer.add(question, f"{name}:{voice}", samples, cut)
        except ENGINE_FAILURES as error:  # on one text; continue with the next
            print(f"{name}:{voice} cannot say {question.text!r}: {error}", flush=True)
            spent[name] += 5.0
        spent[name] += time.monotonic() - began
    writer.close()


def _spoken(
    engine: Engine, voice: str, text: str, random: Random, complete: set[str]
) -> tuple[Samples, int]:
    """Speak a question; return its samples, and where a pause may be inserted, or 0."""
    parts = [text]
    if random.random() < SPLIT and len(text.split()) > 1:
        parts = _in_two(text, random, complete)
    if len(parts) == 1:
        return engine(text, voice, random), 0
    state = random.getstate()
    first = engine(parts[0] + ",", voice, random)
    random.setstate(state)  # speak both parts with the same settings
    second = engine(parts[1], voice, random)
    return np.concatenate((first, second)), len(first)


def _in_two(text: str, random: Random, complete: set[str]) -> list[str]:
    """Split a sentence where its beginning is no question by itself."""
    words = text.split()
    places = [
        at
        for at in range(1, len(words))
        if " ".join(words_of(" ".join(words[:at]))) not in complete
    ]
    if not places:
        return [text]
    at = random.choice(places)
    return [" ".join(words[:at]).rstrip(",.?!"), " ".join(words[at:])]


def _engines(order: Order, hibari: Hibari) -> dict[str, Engine]:
    made: dict[str, Engine] = {"hibari": hibari.speak, "flite": flite, "espeak": espeak}
    if order.pico is not None and "pico" in order.engines:
        made["pico"] = Pico(order.pico).speak
    if order.kokoro is not None and order.styles is not None:
        made["kokoro"] = Kokoro(order.kokoro, styles_of(order.styles), hibari).speak
    return {name: made[name] for name in order.engines}
