"""The model card of the embedded checkpoint."""

from __future__ import annotations

from pathlib import Path

from core.nano_assets import verify
from core.processors.backend import read_card
from core.schemas.worker import ModelKind
from training.nano.domain.catalogue import intents, words_of
from training.nano.export import write_card


def test_card_is_readable_and_suggests_known_questions(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf8")
    write_card(tmp_path)
    verify(tmp_path)
    card = read_card(tmp_path)
    assert card.kind is ModelKind.NANO
    assert "demonstration" in card.name
    asked = {tuple(words_of(q.text)) for each in intents().values() for q in each.questions}
    assert [text for text in card.try_saying if tuple(words_of(text)) not in asked] == []
    assert "MIT" in (tmp_path / "NOTICE").read_text(encoding="utf8")
