"""Keeps docs/module-map.md true: `python -m scripts.module_map`.

A table stands between `<!-- map: PATTERN... -->` and `<!-- end -->`. It names every module that
fits one of its patterns and no earlier table's, with the first paragraph of the module's docstring.
"""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatch

from tests.source_tree import ROOT, SourceFile, python_files

PAGE = ROOT / "docs" / "module-map.md"
TABLE = re.compile(r"(<!-- map: (?P<patterns>[^>]*) -->\n).*?(<!-- end -->)", re.DOTALL)
HEAD = "| file | one sentence |\n|---|---|\n"


def _fits(name: str, pattern: str) -> bool:
    """Whether a path fits a pattern; a star does not cross a slash."""
    folder, _, file = name.rpartition("/")
    wanted_folder, _, wanted = pattern.rpartition("/")
    return folder == wanted_folder and fnmatch(file, wanted)


def _row(source: SourceFile) -> str:
    docstring = ast.get_docstring(source.tree) or ""
    sentence = " ".join(docstring.split("\n\n")[0].split()).replace("|", "\\|")
    return f"| `{source.name}` | {sentence} |\n"


def rewritten(page: str) -> str:
    """Return the page with current tables; a LookupError names modules without one."""
    left = [
        source for source in python_files(with_tests=False) if source.path.name != "__init__.py"
    ]

    def table(match: re.Match[str]) -> str:
        patterns = match["patterns"].split()
        mine = [s for s in left if any(_fits(s.name, pattern) for pattern in patterns)]
        left[:] = [source for source in left if source not in mine]
        return match[1] + HEAD + "".join(map(_row, mine)) + match[3]

    page = TABLE.sub(table, page)
    if left:
        raise LookupError(f"in no table: {', '.join(source.name for source in left)}")
    return page


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf8")), encoding="utf8")
