"""The recorded transcripts of Realtime and GPT-Live are what the server says today."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.transcripts import FOLDER, played, read

FILES = sorted(FOLDER.glob("*.jsonl"))
SCENARIOS = {*(f"S{number}" for number in range(1, 13)), *(f"L{number}" for number in range(1, 8))}


def test_there_is_one_of_every_scenario() -> None:
    assert {read(file)[0]["scenario"] for file in FILES} == SCENARIOS


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_transcript_is_what_happens(file: Path) -> None:
    """Written anew by `python -m tests.fakes.transcripts`."""
    lines = read(file)
    assert list(played(lines)) == lines
    assert any("server" in line for line in lines)
