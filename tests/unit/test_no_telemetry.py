"""What people say and how the programs are used stays on the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source_tree import ROOT

# With these set it would be silent anyway.
SILENCERS = ("CI", "ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS")
USES = {
    "detector": "from core.vad import SileroVad; SileroVad()",
    "voice": ("import MiniCPMO45.token2wav.voices, onnxruntime; onnxruntime.SessionOptions()"),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_onnxruntime_keeps_no_record_of_its_use(tmp_path: Path, use: str) -> None:
    environment = {key: text for key, text in os.environ.items() if key not in SILENCERS}
    subprocess.run(
        [sys.executable, "-c", use],
        cwd=ROOT,
        env=environment | {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
        check=True,
    )
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
