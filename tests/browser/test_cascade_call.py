"""A voice call with the cascade's real models on its page; it runs where their files are."""

from __future__ import annotations

import os
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from benchmarks.embedded_speech import by_cascade
from benchmarks.launched import Plan
from core.cascade.synthesis import HibariSynthesizer
from settings.embedded import CascadeFiles, find_cascade
from tests.browser import calls
from tests.browser.devices import Devices, keep_voice, say, wait_until_quiet
from tests.browser.media_files import INPUT_RATE_HZ, silence_16k
from tests.browser.visits import Visits
from tests.fakes.embedded import nano_checkpoint
from tests.source_tree import ROOT
from tests.system.running import RunningSystem, start_command

pytestmark = pytest.mark.gate

FOLDER: Final = ROOT / "data" / "cascade"
KEEP: Final = "MINICPMO_KEEP_CALL"  # a folder that gets the call's sound, words and picture
QUESTIONS: Final = (
    "What can I plant on a small balcony?",
    "How do I teach my dog to sit?",
    "Why do old houses creak at night?",
)
ANSWERED_QUIET_MS: Final = 2_500


@pytest.fixture
def files() -> CascadeFiles:
    found = find_cascade(FOLDER)
    if found is None:
        pytest.skip(f"python -m core.cascade.assets {FOLDER.relative_to(ROOT)}")
    return found


@pytest.fixture
def system(files: CascadeFiles, tmp_path: Path) -> Iterator[RunningSystem]:
    data = tmp_path / "system" / "data"
    data.mkdir(parents=True)
    (data / "cascade").symlink_to(FOLDER)
    (data / "nano").symlink_to(nano_checkpoint())
    config = {"model": {"embedded": "cascade"}}
    plan = Plan(backend="real", config=config, command=start_command())
    with RunningSystem(data.parent, plan) as running:
        yield running


def test_a_call_about_three_things_is_answered_and_recorded(
    visit: Visits, files: CascadeFiles, system: RunningSystem, tmp_path: Path
) -> None:
    page = visit("/audio_duplex", at=system, devices=Devices(microphone="scripted", has_tap=True))
    user = HibariSynthesizer(files.voice)
    calls.start(page)
    calls.wait_for_units(page, 1)
    answers = page.locator(".turn[data-who=model][data-open=false]")
    for number, question in enumerate(QUESTIONS):
        keep_voice(page, question, np.concatenate([by_cascade(user, question), silence_16k(2)]))
        said = answers.count()
        say(page, question)
        expect(answers).not_to_have_count(said, timeout=calls.CALL_LIMIT_MS)
        wait_until_quiet(page, ANSWERED_QUIET_MS, calls.CALL_LIMIT_MS)
        assert answers.count() > number
    calls.stop(page)
    recorded = _downloaded(page, Path(os.environ.get(KEEP, tmp_path)))
    with wave.open(str(recorded)) as sound:
        assert sound.getnchannels() == 2 and sound.getnframes() > len(QUESTIONS) * INPUT_RATE_HZ


def _downloaded(page: Page, folder: Path) -> Path:
    """Save the call's sound, user left and model right, with its words and a screenshot."""
    folder.mkdir(parents=True, exist_ok=True)
    with page.expect_download() as download:
        calls.press(page, "download")
    download.value.save_as(folder / "call.wav")
    words = page.locator("#transcript").inner_text()
    (folder / "call.txt").write_text(words, encoding="utf8")
    page.screenshot(path=folder / "call.png")
    return folder / "call.wav"
