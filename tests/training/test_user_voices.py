"""Voices of training and of evaluation, the engines, and the cache of synthesised speech."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import pytest

from core.packages import AssetsError
from training.nano.user_voices.engines import STYLE_WIDTH, Hibari, Kokoro
from training.nano.user_voices.make import HELD_OUT, SHARES, Order, draw_voice, folders, record

DRAWS = 2000


@pytest.mark.parametrize("engine", SHARES)
def test_training_and_evaluation_voices_are_disjoint(engine: str) -> None:
    random = Random(1)
    people = {
        person for _ in range(DRAWS) for person in draw_voice(engine, random).split("+", maxsplit=1)
    }
    whole = {draw_voice(engine, random) for _ in range(DRAWS)}
    held_out = set(HELD_OUT.get(engine, ()))
    assert people
    assert held_out.isdisjoint(whole)
    if engine == "kokoro":  # mixtures of two
        assert held_out.isdisjoint(people)


@pytest.mark.parametrize("engine", HELD_OUT)
def test_every_evaluation_voice_is_drawn(engine: str) -> None:
    random = Random(2)
    drawn = {draw_voice(engine, random, held_out=True) for _ in range(DRAWS)}
    assert drawn == set(HELD_OUT[engine])


@pytest.mark.parametrize(
    ("engines", "held_out", "named"),
    [
        (("kokorro",), False, "'kokorro'"),
        (("kokoro",), False, "its model and its voices"),
        (("pico",), False, "folder of its package"),
        (("flite",), False, "apt-get install flite"),
        (("hibari",), True, "kokoro, flite, espeak have"),
    ],
)
def test_engine_that_cannot_speak_is_refused_before_recording(
    engines: tuple[str, ...],
    held_out: bool,
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    order = Order(0.0, 1, 0, engines, held_out=held_out)
    with pytest.raises(AssetsError, match=named):
        record(tmp_path / "bank", order)
    assert not (tmp_path / "bank").exists()


def test_bank_without_recordings_is_refused(tmp_path: Path) -> None:
    (tmp_path / "00").mkdir()
    with pytest.raises(AssetsError, match="holds no recordings"):
        folders([tmp_path])


class Pronouncing:
    """Fake Hibari: each letter is a phoneme."""

    def phonemes(self, text: str) -> str:
        return text

    def ids(self, phonemes: str) -> list[int]:
        return [ord(letter) for letter in phonemes]


class Computing:
    """Fake network: returns noise and counts calls."""

    def __init__(self) -> None:
        self.times = 0

    def run(self, outputs: None, inputs: dict[str, Any]) -> list[Any]:
        self.times += 1
        return [np.random.default_rng(self.times).standard_normal(24_000).astype(np.float32)]


def a_voice(folder: Path, network: Computing) -> Kokoro:
    styles = {"anna": folder / "anna.bin"}
    np.ones((40, STYLE_WIDTH), np.float32).tofile(styles["anna"])
    hibari = cast("Hibari", Pronouncing())
    return Kokoro(folder / "model", styles, hibari, folder / "spoken", network)


def test_repeated_synthesis_is_cached(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"weights")
    network = Computing()
    first = a_voice(tmp_path, network).speak("Hello.", "anna", Random(1))
    again = a_voice(tmp_path, network).speak("Hello.", "anna", Random(1))
    np.testing.assert_array_equal(first, again)
    assert network.times == 1


def test_cache_key_includes_text_speed_and_model(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"weights")
    network = Computing()
    a_voice(tmp_path, network).speak("Hello.", "anna", Random(1))
    a_voice(tmp_path, network).speak("Good-bye.", "anna", Random(1))
    a_voice(tmp_path, network).speak("Hello.", "anna", Random(2))
    (tmp_path / "model").write_bytes(b"other weights")
    a_voice(tmp_path, network).speak("Hello.", "anna", Random(1))
    assert network.times == 4
    assert len(list((tmp_path / "spoken").iterdir())) == 4
