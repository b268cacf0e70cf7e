"""Writes what follows from the OpenAPI document: `python -m scripts.http_types`.

`types/http.d.ts` has the types of JSON answers for the pages, `docs/http.md` lists the routes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from config import PROJECT_ROOT, Settings
from core.schemas.export.client_types import type_text
from core.schemas.export.message_schemas import Schema, reference_name
from core.schemas.export.pages import codes, table
from gateway import create_app, describe
from gateway_modules.web.responses import OPENAI_PREFIX

HEAD: Final = """\
// What the server answers over HTTP, from its OpenAPI document. Written by `make protocol`.

declare namespace Http {
"""

PAGE_HEAD: Final = """\
# HTTP interface

<!-- Written by `make protocol`; do not edit. -->

A running gateway shows this interface with the fields of requests and answers at `/api/docs`, and
as an OpenAPI document at `/api/openapi.json`. [OpenAI's interface](openai.md) has its own page.

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


def http_page() -> str:
    document = describe(create_app(Settings()))
    sections: dict[str, list[tuple[str, str, str]]] = {}
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            meaning = route["description"].partition("\n\n")[0]
            refusals = codes(sorted(route["responses"].keys() - {"200"}))
            row = (f"`{method.upper()} {path}`", " ".join(meaning.split()), refusals)
            sections.setdefault(route["tags"][0], []).append(row)
    tables = (
        f"## {name.capitalize()}\n\n{table(('route', 'meaning', 'refused with'), rows)}\n"
        for name, rows in sorted(sections.items())
    )
    return f"{PAGE_HEAD}{document['info']['description']}\n\n" + "\n".join(tables)


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


FILES: Final = {"types/http.d.ts": http_types, "docs/http.md": http_page}

if __name__ == "__main__":
    for path, text in FILES.items():
        (PROJECT_ROOT / path).write_text(text(), encoding="utf8")
