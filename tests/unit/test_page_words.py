"""The pages' texts: every key exists in every language, is used, and says the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.page_tree import STATIC, Html, Script, html_files, scripts

CATALOGUES = sorted((STATIC / "i18n").glob("*.json"))
LANGUAGES = [path.stem for path in CATALOGUES]
NEEDED = {"en", "zh"}
KEY = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*(?:\.[a-z0-9][A-Za-z0-9_]*)+")
GAP = re.compile(r"\{(\w+)\}")
PLURALS = ("one", "other")

# t("key"), hasText("key"), {titleKey: "key"}, which may go to either; of tn("key") there are two
# forms.
SINGLE = re.compile(r"""\b(?:t|hasText)\(\s*"([^"]+)"|\b\w*[kK]ey:\s*"([^"]+)\"""")
PLURAL = re.compile(r"""\btn\(\s*"([^"]+)\"""")

# Keys that no script or page names, because the server or the browser does: pattern -> who.
NAMED_ELSEWHERE: dict[str, str] = {
    r"language\.name": "gateway_modules/pages.py lists it",
    r"missing\..+": "gateway_modules/pages.py shows it",
}


@cache
def catalogue(lang: str) -> dict[str, str]:
    texts: dict[str, str] = json.loads((STATIC / "i18n" / f"{lang}.json").read_text("utf8"))
    return texts


def rows_of_html(html: Html) -> Iterator[str]:
    """Yield the keys of the settings that `data-rows="TEXTS: NAME …"` lists."""
    for tag in html.tags:
        texts, _, names = tag.attributes.get("data-rows", "").partition(":")
        yield from (f"{texts}.{name}" for name in names.split())


def keys_of_html(html: Html) -> Iterator[str]:
    yield from rows_of_html(html)
    for tag in html.tags:
        if key := tag.attributes.get("data-t"):
            yield key
        for part in filter(None, tag.attributes.get("data-t-attr", "").split(";")):
            yield part.partition(":")[2].strip()


def keys_of_script(script: Script) -> Iterator[str]:
    for one, other in SINGLE.findall(script.text):
        if "." in one + other:  # another's property may be called a key, too
            yield one or other
    for key in PLURAL.findall(script.text):
        yield from (f"{key}.{form}" for form in PLURALS)


def forms(key: str) -> set[str]:
    return {key, *(f"{key}.{form}" for form in PLURALS)}


def pattern_of(template: str) -> re.Pattern[str] | None:
    """Return which keys a template literal may make, None if it makes none."""
    if "${}" not in template:
        return None
    parts = [re.escape(part) for part in template.split("${}")]
    return re.compile(r"[\w.]+".join(parts) + rf"(?:\.(?:{'|'.join(PLURALS)}))?")


def test_the_needed_languages_are_there() -> None:
    assert set(LANGUAGES) >= NEEDED


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_language_has_every_text(lang: str) -> None:
    texts, english = catalogue(lang), catalogue("en")
    assert sorted(set(english) ^ set(texts)) == []
    assert [key for key, text in texts.items() if not text.strip()] == []
    assert [key for key in texts if not KEY.fullmatch(key)] == []
    assert list(texts) == sorted(texts)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_language_fills_the_same_gaps(lang: str) -> None:
    differ = [
        key
        for key, text in catalogue(lang).items()
        # "one worker" need not say its number.
        if set(GAP.findall(text)) - {"n", "count"}
        != set(GAP.findall(catalogue("en").get(key, ""))) - {"n", "count"}
    ]
    assert differ == []


@pytest.mark.parametrize("lang", LANGUAGES)
def test_what_is_a_script_in_a_clone_has_its_counterpart_for_the_wheel(lang: str) -> None:
    scripts_named = [text for text in catalogue(lang).values() if re.search(r"\.(sh|py)\b", text)]
    assert [text for text in scripts_named if "wheel" not in text] == []


def test_both_forms_of_a_plural_are_there() -> None:
    keys = set(catalogue("en"))
    stems = {key.rpartition(".")[0] for key in keys if key.endswith((".one", ".other"))}
    assert [stem for stem in sorted(stems) if not {f"{stem}.{f}" for f in PLURALS} <= keys] == []


def test_every_key_that_is_named_exists() -> None:
    keys = set(catalogue("en"))
    missing = [f"{html.name}: {key}" for html in html_files() for key in keys_of_html(html)]
    missing += [f"{script.name}: {key}" for script in scripts() for key in keys_of_script(script)]
    missing = [line for line in missing if not forms(line.partition(": ")[2]) & keys]
    assert not missing, "\n".join(["", *missing])


def test_every_text_is_used() -> None:
    named = {key for html in html_files() for key in keys_of_html(html)}
    patterns = [re.compile(pattern) for pattern in NAMED_ELSEWHERE]
    rows = [key for html in html_files() for key in rows_of_html(html)]
    patterns += [re.compile(rf"{re.escape(key)}_\w+") for key in rows]  # hints and choices
    for script in scripts():
        strings = {text for text in script.strings if KEY.fullmatch(text)}
        named |= set().union(*map(forms, strings), keys_of_script(script))
        patterns += filter(None, map(pattern_of, script.templates))
    unused = [
        key
        for key in catalogue("en")
        if key not in named and not any(pattern.fullmatch(key) for pattern in patterns)
    ]
    assert not unused, "\n".join(["", *unused])
