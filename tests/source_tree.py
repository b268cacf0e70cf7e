"""Reads the repository's own source for the tests that guard its shape."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]

CODE_FOLDERS = tuple(sorted(path.parent.name for path in ROOT.glob("[!.]*/__init__.py")))
"""Packages of our own; programs lie at the top."""

TEXT_SUFFIXES = (".md", ".py", ".sh", ".toml", ".svg", ".js", ".html", ".css", ".yaml", ".yml")


@dataclass(frozen=True)
class SourceFile:
    """One Python file."""

    path: Path

    @cached_property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def module(self) -> str:
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.name)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree: a dozen rules look through them, and walking takes long."""
        return tuple(ast.walk(self.tree))

    @property
    def package(self) -> list[str]:
        parts = self.module.split(".")
        return parts if self.path.name == "__init__.py" else parts[:-1]


def python_files(*, with_tests: bool = True) -> list[SourceFile]:
    paths = sorted(ROOT.glob("*.py"))
    for folder in CODE_FOLDERS:
        if folder != "tests" or with_tests:
            paths += sorted((ROOT / folder).rglob("*.py"))
    return [_source_file(path) for path in paths]


@functools.cache
def _source_file(path: Path) -> SourceFile:
    """Return the same object for each call, so that a file is read and parsed once."""
    return SourceFile(path)


def text_files() -> Iterator[Path]:
    """Every text a reader of the repository may open, code included."""
    for path in sorted(ROOT.iterdir()):
        if path.is_file() and (path.suffix in TEXT_SUFFIXES or path.name == "Makefile"):
            yield path
    for folder in (*CODE_FOLDERS, "assets", "docs", "examples", "scripts", "static", ".ci"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and (path.suffix in TEXT_SUFFIXES or folder == ".ci"):
                yield path


def imported_modules(source: SourceFile) -> Iterator[tuple[str, int]]:
    """(dotted name, line) of everything `source` imports, wherever the import stands.

    `from a import b` gives both `a` and `a.b`, since `b` may be a module.
    """
    for node in source.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                start = source.package[: len(source.package) - node.level + 1]
                base = ".".join([*start, base] if base else start)
            yield base, node.lineno
            for alias in node.names:
                yield f"{base}.{alias.name}", node.lineno
