"""Every gate of the embedded model, measured as `python -m benchmarks.nano` does: at full size.

A figure that could not be measured, because a package could not be fetched, is no passed gate. The
default run compares the committed figures with the limits: tests/unit/test_nano_report.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from _pytest.mark import ParameterSet

from benchmarks.nano.gates import GATES, Area
from benchmarks.nano.measure import Measurement
from config import PROJECT_ROOT
from core.nano_assets import NanoAssetsError, assemble

CACHE = PROJECT_ROOT / "data" / "nano_gates"
MEASURED_TOGETHER = ((Area.HEARS, Area.TAKES_TURNS), (Area.SPEAKS, Area.SOUNDS))
IN_REAL_TIME = (Area.IS_QUICK, Area.END_TO_END)

pytestmark = pytest.mark.timeout(3_600)


def cases() -> Iterator[ParameterSet]:
    """Yield the areas in groups that share a measurement; the timed ones run alone."""
    together = {area for areas in MEASURED_TOGETHER for area in areas}
    for areas in (*MEASURED_TOGETHER, *((area,) for area in Area if area not in together)):
        mark = pytest.mark.realtime if set(areas) & set(IN_REAL_TIME) else pytest.mark.gate
        yield pytest.param(areas, marks=mark, id=" and ".join(areas))


@pytest.fixture(scope="session")
def measurement(tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    """The embedded model, assembled from the repository."""
    folder = tmp_path_factory.mktemp("nano") / "checkpoint"
    try:
        assemble(folder, earlier=PROJECT_ROOT / "data" / "nano")
    except NanoAssetsError as error:
        pytest.fail(f"no gate of the embedded model can be checked: {error}")
    return Measurement(folder, CACHE)


@pytest.mark.parametrize("areas", cases())
def test_gates(areas: tuple[Area, ...], measurement: Measurement) -> None:
    figures = list(measurement.figures(areas))
    assert {each.gate for each in figures} == {gate for gate in GATES if gate.area in areas}
    missed = [
        f"{each.gate.metric}: {'–' if each.value is None else each.gate.shown(each.value)} "
        f"of {each.n}, wanted {each.gate.wanted}. {each.note}"
        for each in figures
        if not each.is_reached
    ]
    assert not missed, "\n".join(missed)
