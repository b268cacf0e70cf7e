"""Languages of the pages: a new one is one file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway_modules.pages import Languages
from tests.page_tree import STATIC


def folder_with(folder: Path, **catalogues: object) -> Path:
    for code, words in catalogues.items():
        (folder / f"{code}.json").write_text(json.dumps(words), "utf8")
    return folder


ENGLISH = {"language.name": "English", "missing.home": "Home", "missing.page.title": "Not here"}
FRENCH = {"language.name": "Français", "missing.home": "Accueil"}


def test_a_language_needs_only_a_file(tmp_path: Path) -> None:
    languages = Languages(folder_with(tmp_path, en=ENGLISH, fr=FRENCH), "fr")
    assert languages.names == {"en": "English", "fr": "Français"}
    assert languages.texts("fr")["missing.home"] == "Accueil"


def test_the_pages_offer_every_catalogue() -> None:
    codes = {path.stem for path in (STATIC / "i18n").glob("*.json")}
    assert set(Languages(STATIC / "i18n").names) == codes >= {"en", "zh"}


@pytest.mark.parametrize(
    ("wishes", "picked"),
    [
        (["fr"], "fr"),
        ([None, "", "de", "fr-CA"], "fr"),
        (["FR-ca", "en"], "fr"),
        ([" fr "], "fr"),
        (["xx", "../fr"], "en"),
        ([], "en"),
    ],
)
def test_the_first_available_language_is_chosen(
    tmp_path: Path, wishes: list[str | None], picked: str
) -> None:
    assert Languages(folder_with(tmp_path, en=ENGLISH, fr=FRENCH)).pick(wishes) == picked


def test_a_configured_language_must_exist(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, en=ENGLISH, fr=FRENCH)
    with pytest.raises(ValueError, match=r"service.default_lang = 'de': there are en, fr"):
        Languages(folder, "de")


@pytest.mark.parametrize("broken", [["a list"], {"language.name": 1}, {"other": "words"}])
def test_an_invalid_catalogue_is_named_in_the_error(tmp_path: Path, broken: object) -> None:
    with pytest.raises(ValueError, match="fr.json"):
        Languages(folder_with(tmp_path, en=ENGLISH, fr=broken))


@pytest.mark.parametrize("code", ["pt-BR", "zh_CN", "FR", "f", "klingon"])
def test_a_catalogue_is_named_after_a_language_alone(tmp_path: Path, code: str) -> None:
    """Regions of wishes are cut off, so nobody would ever see it."""
    with pytest.raises(ValueError, match=rf"{code}\.json"):
        Languages(folder_with(tmp_path, **{"en": ENGLISH, code: FRENCH}))


def test_a_text_that_is_missing_is_english(tmp_path: Path) -> None:
    words = Languages(folder_with(tmp_path, en=ENGLISH, fr=FRENCH)).texts("fr")
    assert (words["missing.home"], words["missing.page.title"]) == ("Accueil", "Not here")


def test_english_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="en.json"):
        Languages(folder_with(tmp_path, fr=FRENCH))
