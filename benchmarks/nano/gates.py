"""Gates of the embedded model, and measured figures."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Area(StrEnum):
    HEARS = "hears"
    SPEAKS = "speaks"
    SOUNDS = "sounds"
    TAKES_TURNS = "takes turns"
    YIELDS = "yields"
    SEES = "sees"
    IS_QUICK = "is quick"
    END_TO_END = "end to end"


@dataclass(frozen=True)
class Gate:
    area: Area
    metric: str
    limit: float
    is_most: bool = False  # the limit is an upper bound instead of a lower one
    unit: str = "%"  # "%" for shares, otherwise the suffix of the number

    @property
    def wanted(self) -> str:
        return f"{'≤' if self.is_most else '≥'} {self.shown(self.limit)}"

    def shown(self, value: float) -> str:
        return f"{value:.1%}" if self.unit == "%" else f"{value:.2f}{self.unit}"


HEARS_SYNTHETIC = Gate(Area.HEARS, "exact answer, held-out synthetic voices", 0.97)
HEARS_NATURAL = Gate(Area.HEARS, "exact answer, held-out natural voices", 0.95)
HEARS_PEOPLE = Gate(Area.HEARS, "exact answer, recordings of a person", 0.92)
SPEAKS = Gate(Area.SPEAKS, "word error on held-out replies, whole chain", 0.10, is_most=True)
SOUNDS = Gate(Area.SOUNDS, "DNSMOS overall, whole chain", 2.9, unit="")
RIGHT_UNIT = Gate(Area.TAKES_TURNS, "answered in the right unit", 0.98)
EARLY_UNITS = Gate(Area.TAKES_TURNS, "units taken while the user speaks", 0.005, is_most=True)
FALSE_STARTS = Gate(Area.TAKES_TURNS, "starts in noise and silence", 0.005, is_most=True)
YIELDS_TO_STOP = Gate(Area.YIELDS, "'stop' ends the turn within one unit", 0.95)
KEEPS_ON = Gate(Area.YIELDS, "its own echo ends no turn", 0.99)
SEES = Gate(Area.SEES, "colour, shape, digit, count of rendered scenes", 0.97)
SPEAKING_SHARE = Gate(Area.IS_QUICK, "real-time factor while speaking, one core", 0.5, True, "")
FIRST_AUDIO = Gate(Area.IS_QUICK, "first audio after the speaker's end, mean", 1.2, True, " s")
CONVERSATION = Gate(Area.END_TO_END, "right turns of ten, through the sockets", 9, unit="")

GATES = (
    HEARS_SYNTHETIC,
    HEARS_NATURAL,
    HEARS_PEOPLE,
    SPEAKS,
    SOUNDS,
    RIGHT_UNIT,
    EARLY_UNITS,
    FALSE_STARTS,
    YIELDS_TO_STOP,
    KEEPS_ON,
    SEES,
    SPEAKING_SHARE,
    FIRST_AUDIO,
    CONVERSATION,
)


@dataclass(frozen=True)
class Figure:
    gate: Gate
    value: float | None  # None if it could not be measured
    n: int = 0  # number of cases
    note: str = ""  # remark, such as the reason for a missing value
    judge: str = ""  # model and program that judged the audio, if any

    @property
    def is_reached(self) -> bool:
        if self.value is None or not self.n:
            return False
        if self.gate.is_most:
            return self.value <= self.gate.limit
        return self.value >= self.gate.limit


def share(gate: Gate, right: int, n: int, note: str = "") -> Figure:
    return Figure(gate, right / n if n else None, n, note)
