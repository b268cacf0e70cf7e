"""The record of reference defects: one switch for all, and no switch without an effect."""

from __future__ import annotations

import ast
import re
from dataclasses import FrozenInstanceError, fields

import pytest

from MiniCPMO45.compat import Compat
from tests.source_tree import SourceFile, python_files

NAMES = tuple(each.name for each in fields(Compat))
NUMBERED = 34  # defects D1 ... D34; a few fields more have no number


def test_every_defect_is_off_by_default() -> None:
    assert set(vars(Compat()).values()) == {False}


def test_the_reference_has_every_defect() -> None:
    assert set(vars(Compat.reference()).values()) == {True}


def test_there_is_one_field_per_defect() -> None:
    source = next(each for each in python_files() if each.name == "MiniCPMO45/compat.py")
    numbers = [int(number) for number in re.findall(r"= False  # D(\d+) ", source.text)]
    assert numbers == list(range(1, NUMBERED + 1))


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Compat().merge_clips = True  # type: ignore[misc]


def _reads(source: SourceFile) -> set[str]:
    """Names read as an attribute of something called compat."""
    return {
        node.attr
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute) and _ends_in_compat(node.value)
    }


def _ends_in_compat(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr.endswith("compat")
    return isinstance(node, ast.Name) and node.id.endswith("compat")


@pytest.fixture(scope="module")
def read_by() -> dict[str, set[str]]:
    """Which program files read which field."""
    found: dict[str, set[str]] = {name: set() for name in NAMES}
    for source in python_files(with_tests=False):
        for name in _reads(source) & set(NAMES):
            found[name].add(source.name)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_field_is_read_somewhere(name: str, read_by: dict[str, set[str]]) -> None:
    assert read_by[name], f"nothing asks for {name}"
