"""Writes the protocol's documents and types, or compares them: `python -m core.schemas.export`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from core.schemas.export.asyncapi import asyncapi_document
from core.schemas.export.client_types import events_py, protocol_d_ts, protocol_js
from core.schemas.export.pages import pages

ROOT: Final = Path(__file__).parents[3]
PAGES_FOLDER: Final = "docs/protocol"
DOCUMENT: Final = f"{PAGES_FOLDER}/asyncapi.json"
CONSTANTS: Final = "static/shared/protocol.js"
TYPES: Final = "types/protocol.d.ts"
EVENTS: Final = "minicpmo_live/events.py"


def exported_files() -> dict[str, str]:
    """Return the text of every file, by its path from the repository's root."""
    document = json.dumps(asyncapi_document(), indent=2, ensure_ascii=False)
    return {
        DOCUMENT: document + "\n",
        **{f"{PAGES_FOLDER}/{name}.md": text for name, text in pages().items()},
        CONSTANTS: protocol_js(),
        TYPES: protocol_d_ts(),
        EVENTS: events_py(),
    }


def differences(root: Path, files: Mapping[str, str]) -> list[str]:
    """Return a line for each file that is out of date, missing or superfluous."""
    found = []
    for name, text in files.items():
        path = root / name
        if not path.is_file():
            found.append(f"{name} is missing")
        elif path.read_bytes() != text.encode():
            found.append(f"{name} is out of date")
    present = sorted(path for path in (root / PAGES_FOLDER).glob("*") if path.is_file())
    names = [path.relative_to(root).as_posix() for path in present]
    return found + [f"{name} belongs to no socket" for name in names if name not in files]


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m core.schemas.export", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if files differ")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder of the repository")
    options = parser.parse_args(arguments)
    files = exported_files()
    if not options.check:
        write(options.root, files)
    problems = differences(options.root, files)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
