"""Writes the protocol's documents and types: `python -m core.schemas.export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from core.schemas.export.client_types import events_py, protocol_d_ts, protocol_js
from core.schemas.export.message_schemas import asyncapi_document
from core.schemas.export.pages import pages

ROOT: Final = Path(__file__).parents[3]
PAGES_FOLDER: Final = "docs/protocol"


def exported_files() -> dict[str, str]:
    """Return the text of every file, by its path from the repository's root."""
    document = json.dumps(asyncapi_document(), indent=2, ensure_ascii=False)
    return {
        f"{PAGES_FOLDER}/asyncapi.json": document + "\n",
        **{f"{PAGES_FOLDER}/{name}.md": text for name, text in pages().items()},
        "static/shared/protocol.js": protocol_js(),
        "types/protocol.d.ts": protocol_d_ts(),
        "minicpmo_live/events.py": events_py(),
    }


if __name__ == "__main__":
    for name, text in exported_files().items():
        (ROOT / name).write_bytes(text.encode())
