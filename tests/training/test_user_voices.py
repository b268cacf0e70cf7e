"""Cache of the synthesised speech of Kokoro."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np

from training.nano.user_voices.engines import STYLE_WIDTH, Hibari, Kokoro


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
