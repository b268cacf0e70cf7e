"""A compressed bank says the same, word by word and sample for sample in length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from training.nano.bank import Bank, BankWriter
from training.nano.domain.catalogue import intents
from training.nano.travelling import SOUND_FILE, compress, expand

SECOND = np.arange(16_000) / 16_000


def test_recordings_come_back_where_they_were(tmp_path: Path) -> None:
    questions = next(iter(intents().values())).questions[:3]
    for number in range(2):
        writer = BankWriter(tmp_path / "bank" / str(number))
        for at, question in enumerate(questions):
            tone = 0.3 * np.sin(2 * np.pi * (300 + 200 * at) * SECOND[: 9_000 + 2_000 * at])
            writer.add(question, "tone", tone.astype(np.float32))
        writer.close()
    BankWriter(tmp_path / "bank" / "in no time").close()
    compress(tmp_path / "bank", tmp_path / "small")
    expand(tmp_path / "small", tmp_path / "again")

    def opened(name: str) -> Bank:
        return Bank(sorted((tmp_path / name).iterdir()))

    before, after = opened("bank"), opened("again")
    assert before.recordings == after.recordings
    for index in range(len(before.recordings)):
        played, heard = before.samples(index)[500:-500], after.samples(index)[500:-500]
        assert np.corrcoef(played, heard)[0, 1] > 0.95
    small = sum(path.stat().st_size for path in tmp_path.glob(f"small/*/{SOUND_FILE}"))
    assert small < 0.3 * sum(2 * each.n_samples for each in before.recordings)


def test_a_folder_without_recordings_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        compress(tmp_path, tmp_path / "small")
