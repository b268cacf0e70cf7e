"""What browsers get is shorter than what is in the repository, and does the same."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from gateway_modules import compact as module
from gateway_modules.compact import as_written, compact

SCRIPT = (
    b"// @ts-check\n/** Why. */\nexport function sum(left, right) {\n  return left + right;\n}\n"
)


def test_comments_and_blanks_do_not_travel() -> None:
    short = compact(PurePath("a.js"), SCRIPT)
    assert b"Why" not in short and b"export function sum(" in short
    assert len(short) < len(SCRIPT) * 0.7
    assert compact(PurePath("a.css"), b"a { color: red; }\n\n/* Why. */") == b"a{color:red}"


@pytest.mark.parametrize(
    ("name", "body"), [("a.json", b'{ "a" : 1 }'), ("a.js", b"let x = ;"), ("a.js", b"\xff\xfe")]
)
def test_what_cannot_be_shortened_goes_out_as_it_is(name: str, body: bytes) -> None:
    assert compact(PurePath(name), body) == body


def test_without_the_library_everything_goes_out_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "minify", None)
    assert compact(PurePath("a.js"), SCRIPT) == SCRIPT == as_written(PurePath("a.js"), SCRIPT)
