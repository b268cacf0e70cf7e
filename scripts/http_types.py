"""Writes types of HTTP's JSON answers for the pages, from the OpenAPI document.

`python -m scripts.http_types` writes `types/http.d.ts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from config import PROJECT_ROOT, Settings
from core.schemas.export.client_types import type_text
from core.schemas.export.message_schemas import Schema, reference_name
from gateway import create_app, describe
from gateway_modules.web.responses import OPENAI_PREFIX

FILE: Final = PROJECT_ROOT / "types" / "http.d.ts"
HEAD: Final = """\
// What the server answers over HTTP, from its OpenAPI document. Written by `make protocol`.

declare namespace Http {
"""


def http_types() -> str:
    document = describe(create_app(Settings()))
    answers = list(_answers(document["paths"]))
    used: dict[str, Schema] = {}
    for _, _, answer in answers:
        _collect(answer, document["components"]["schemas"], used)
    gets = [
        f'    "{path}": {type_text(schema)};\n'
        for method, path, schema in answers
        if method == "get"
    ]
    types = [_declaration(name, used[name]) for name in sorted(used)]
    last = f"  /** What GET answers, by path. */\n  type GetAnswers = {{\n{''.join(gets)}  }};\n"
    return HEAD + "\n".join([*types, last]) + "}\n"


def _declaration(name: str, schema: Schema) -> str:
    comment = f"  /** {_one_line(schema) or name} */\n"
    if "properties" not in schema:
        return f"{comment}  type {name} = {type_text(schema)};\n"
    # An answer is always whole, also where the document names a default.
    fields = "".join(
        f"    {name}: {type_text(field)}; // {_one_line(field)}".rstrip(" /") + "\n"
        for name, field in schema["properties"].items()
    )
    return f"{comment}  type {name} = {{\n{fields}  }};\n"


def _answers(paths: Mapping[str, Schema]) -> Iterator[tuple[str, str, Schema]]:
    """Yield method, path and schema of the answer of each route of ours."""
    for path, methods in paths.items():
        for method, route in methods.items():
            content = route["responses"].get("200", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema")
            if schema and not path.startswith(OPENAI_PREFIX):
                yield method, path, schema


def _one_line(schema: Schema) -> str:
    return " ".join(schema.get("description", "").split())


def _collect(schema: object, schemas: Mapping[str, Schema], used: dict[str, Schema]) -> None:
    """Add every schema that `schema` refers to."""
    if isinstance(schema, list):
        for part in schema:
            _collect(part, schemas, used)
    if isinstance(schema, dict):
        name = reference_name(schema)
        if name is not None and name not in used:
            used[name] = schemas[name]
            _collect(schemas[name], schemas, used)
        for part in schema.values():
            _collect(part, schemas, used)


if __name__ == "__main__":
    FILE.write_text(http_types(), encoding="utf8")
