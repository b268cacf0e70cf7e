"""Every gate of the embedded model, measured as `python -m benchmarks.nano` does: at full size.

A figure that could not be measured, because a package could not be fetched, is no passed gate. The
default run compares the committed figures with the limits: tests/unit/test_nano_report.py.
"""

from __future__ import annotations

import pytest
from _pytest.mark import ParameterSet

from benchmarks.nano.gates import GATES, Area, Figure, Gate
from benchmarks.nano.measure import Measurement
from config import PROJECT_ROOT
from core.nano_assets import NanoAssetsError, assemble

CACHE = PROJECT_ROOT / "data" / "nano_gates"
MEASURED_TOGETHER = {Area.TAKES_TURNS: Area.HEARS, Area.SOUNDS: Area.SPEAKS}
IN_REAL_TIME = (Area.IS_QUICK, Area.END_TO_END)

pytestmark = pytest.mark.timeout(3_600)


def cases() -> list[ParameterSet]:
    """All gates; those that are measured together go to one process, the timed ones run alone."""
    found = []
    for gate in GATES:
        group = pytest.mark.xdist_group(MEASURED_TOGETHER.get(gate.area, gate.area))
        mark = pytest.mark.realtime if gate.area in IN_REAL_TIME else pytest.mark.gate
        found.append(pytest.param(gate, marks=(group, mark), id=f"{gate.area}: {gate.metric}"))
    return found


@pytest.fixture(scope="session")
def measurement(tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    """The embedded model, assembled from the repository."""
    folder = tmp_path_factory.mktemp("nano") / "checkpoint"
    try:
        assemble(folder, earlier=PROJECT_ROOT / "data" / "nano")
    except NanoAssetsError as error:
        pytest.fail(f"no gate of the embedded model can be checked: {error}")
    return Measurement(folder, CACHE)


@pytest.fixture(scope="session")
def figures() -> dict[Area, list[Figure]]:
    """What was measured so far, by area."""
    return {}


@pytest.mark.parametrize("gate", cases())
def test_gate(gate: Gate, measurement: Measurement, figures: dict[Area, list[Figure]]) -> None:
    if gate.area not in figures:
        for figure in measurement.figures([gate.area]):
            figures.setdefault(figure.gate.area, []).append(figure)
    [figure] = [each for each in figures[gate.area] if each.gate == gate]
    shown = "–" if figure.value is None else gate.shown(figure.value)
    assert figure.is_reached, f"{shown} of {figure.n}, wanted {gate.wanted}. {figure.note}"
