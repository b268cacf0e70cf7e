"""Generates `config.example.json` and `docs/settings.md` from the settings' declarations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from config import PROJECT_ROOT, Settings
from core.schemas.export.message_schemas import Schema
from core.schemas.export.pages import range_words, table, type_words
from settings.sources import environment_name

HEAD = """\
# Settings

<!-- Written by `make settings` from settings/sections.py; do not edit. -->

Settings are read from the command line, the environment, `config.json` and the defaults, in this
order of precedence. `config.json` holds the keys that you change, as in `config.example.json`.
The environment variable of a key is `OMNI_<SECTION>_<KEY>`: `service.gateway_port` is
`OMNI_SERVICE_GATEWAY_PORT`. Lists in variables are separated by commas. Relative paths are
relative to the project's folder, or to `MINICPMO_HOME` if that is set. An invalid value is
reported at start-up with its source and its limits.
"""


def example() -> str:
    sections = {
        name: {key: field["default"] for key, field in fields.items()}
        for name, _, fields in _sections()
    }
    return json.dumps(sections, indent=2) + "\n"


def page() -> str:
    parts = [HEAD]
    for name, section, fields in _sections():
        head = ("key", "type", "default", "range", "meaning")
        rows = table(head, (_row(key, field) for key, field in fields.items()))
        prefix = environment_name(f"{name}.")
        parts.append(
            f"## {name}\n\n{section.__doc__} Environment variables: `{prefix}…`.\n\n{rows}\n"
        )
    return "\n".join(parts)


def _sections() -> Iterator[tuple[str, type[BaseModel], dict[str, Schema]]]:
    for name, field in Settings.model_fields.items():
        section = field.annotation
        assert isinstance(section, type) and issubclass(section, BaseModel)
        yield name, section, section.model_json_schema()["properties"]


def _row(key: str, field: Schema) -> Sequence[str]:
    default = json.dumps(field["default"])
    kind = type_words(field, {})
    return (
        f"`{key}`",
        kind,
        f"`{default}`",
        range_words(field),
        " ".join(field["description"].split()),
    )


FILES = {"config.example.json": example, "docs/settings.md": page}

if __name__ == "__main__":
    for path, text in FILES.items():
        (PROJECT_ROOT / path).write_text(text(), encoding="utf8")
