"""The exported pages name every field, code, event and phase; the JavaScript module is valid."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import core.protocols
from core.errors import CloseCode, ErrorCode
from core.protocols.tables import ends_of_all, mermaid, transitions
from core.schemas import limits
from core.schemas.common import WireModel
from core.schemas.duplex_calls import DuplexConfig
from core.schemas.export.client_types import protocol_d_ts, protocol_js
from core.schemas.export.message_schemas import definitions_of
from core.schemas.export.pages import MACHINES, pages, table
from core.schemas.export.sockets import SOCKETS, Side, Socket, message_type, public_names, uses_on
from core.schemas.streaming import Generate
from tests.source_tree import ROOT

PAGES = pages()
SCRIPT = protocol_js()
TYPES = protocol_d_ts()
DEFINITIONS = definitions_of()
LINK = re.compile(r"(?<!`)\]\(([\w/.]*)#?([\w-]*)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
ARROW = re.compile(r"^    (\w+) --> (\w+): (.*)$", re.MULTILINE)


def sections(page: str) -> dict[str, str]:
    parts = re.split(r"^###? (.*)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def told_on(socket: Socket) -> Iterator[tuple[Side, type[WireModel], str]]:
    """Each message with the section about it."""
    own, shared = sections(PAGES[socket.name]), sections(PAGES["queue"])
    for side in Side:
        for message in socket.messages(side):
            heading = f"`{message_type(message)}`"
            yield side, message, own.get(heading) or shared[heading]


def test_there_is_a_page_for_each_socket() -> None:
    assert set(PAGES) == {"queue", "streaming", "half_duplex", "duplex", "chat", "live", "realtime"}
    for socket in SOCKETS:
        assert socket.address in PAGES[socket.name] and socket.address in PAGES["queue"]


@pytest.mark.parametrize("socket", SOCKETS, ids=lambda socket: socket.name)
def test_every_field_of_every_message_has_a_row(socket: Socket) -> None:
    for side, message, section in told_on(socket):
        assert " ".join((message.__doc__ or "").split()) in section
        fields = set(message.model_fields) | set(message.model_computed_fields)
        for name in fields - {"type"}:
            row = next(line for line in section.splitlines() if line.startswith(f"| `{name}`"))
            field = message.model_fields.get(name)
            if field is not None:
                assert (field.description or "").replace("|", r"\|") in row
            assert row.count("|") == (6 if side is Side.CLIENT else 5)


@pytest.mark.parametrize("socket", SOCKETS, ids=lambda socket: socket.name)
def test_every_object_has_a_section(socket: Socket) -> None:
    told = sections(PAGES[socket.name])
    for name, schema in definitions_of([socket]).items():
        for field in schema.get("properties", {}):
            assert f"| `{field}` |" in told[name]


def test_a_row_has_default_and_range() -> None:
    page = PAGES["duplex"]
    assert "| `top_p` | number | `0.8` | above 0, at most 1 | Nucleus" in page
    assert (
        "| `audio` (or `audio_base64`) | string | required | at most 170,668 characters |" in page
    )
    content = "string or list of ([TextContent](#textcontent) or "
    assert content in PAGES["streaming"]
    assert "| at most 200,000 characters or at most 256 items |" in PAGES["streaming"]
    assert (
        '| `generation` | [GenerationConfig](#generationconfig) | `{"max_new_tokens": 256}`'
        in (PAGES["chat"])
    )


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_headings(name: str) -> None:
    for target, anchor in LINK.findall(PAGES[name]):
        page = PAGES[target.removesuffix(".md") or name]
        words = [re.sub(r"[^\w -]", "", heading).lower() for heading in HEADING.findall(page)]
        assert not anchor or anchor in [word.replace(" ", "-") for word in words]


@pytest.mark.parametrize("name", PAGES)
def test_no_row_breaks_its_table(name: str) -> None:
    columns = None
    for line in PAGES[name].splitlines():
        count = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else None
        assert columns is None or count is None or count == columns, line
        columns = count


@pytest.mark.parametrize("socket", SOCKETS, ids=lambda socket: socket.name)
def test_every_code_has_a_row(socket: Socket) -> None:
    for code in (use.code for use in uses_on(socket.name)):
        assert f"| `{code}` | " in PAGES[socket.name]
        assert f"| `{code}` | " in PAGES["queue"]
    for close in CloseCode:
        assert f"| {int(close)} | " in PAGES[socket.name]


# --- machines ---


def test_every_table_has_its_page() -> None:
    names = [module.name for module in pkgutil.iter_modules(core.protocols.__path__)]
    modules = [importlib.import_module(f"core.protocols.{name}") for name in names]
    names = ["TABLE", "CHAT_TABLE"]
    tables = [vars(module)[name] for module in modules for name in names if name in vars(module)]
    assert tables
    assert {id(table) for table in tables} == {id(page.table) for page in MACHINES.values()}


@pytest.mark.parametrize("name", MACHINES)
def test_every_row_and_limit_is_on_the_page(name: str) -> None:
    page, machine = PAGES[name], MACHINES[name]
    assert page.count("```mermaid") == 1
    assert f"```mermaid\n{mermaid(machine.table)}```" in page
    for row in machine.table:
        for event in row.events.split():
            assert f"| `{event}` | {', '.join(row.phases.split())} | " in page
    for limit in dataclasses.fields(machine.limits):
        assert f"| `{limit.name}` | `{json.dumps(limit.default)}` | " in page


@pytest.mark.parametrize("name", MACHINES)
def test_every_change_of_phase_is_drawn_or_named(name: str) -> None:
    table = MACHINES[name].table
    drawn = {
        (phase, event, target)
        for phase, target, events in ARROW.findall(mermaid(table))
        for event in events.split(", ")
    }
    arrows = transitions(table)
    changes = {(a.phase, a.event, a.target) for a in arrows if a.phase != a.target}
    assert drawn <= changes
    left_out = changes - drawn
    assert {event for _, event, _ in left_out} == set(ends_of_all(table))
    assert {target for _, _, target in left_out} == {"closed"}
    ends = {"disconnected", "shutting_down"} | ({"rejected"} if name != "live" else set())
    assert ends <= set(ends_of_all(table)), "only GPT-Live goes on after what it cannot read"


def test_a_bar_in_a_cell_is_escaped() -> None:
    assert table(("a",), [("b | c",)]) == "| a |\n|---|\n| b \\| c |"
    assert table(("a",), []) == ""


# --- the JavaScript module ---

USE = """\
// @ts-check
import { CLOSE_CODES, ERROR_CODES, LIMITS } from "./protocol.js";
import { DUPLEX_CONFIG_DEFAULTS, GENERATE_RANGES } from "./protocol.js";

/** @param {import("./types/protocol.js").DuplexServerMessage} message */
export function narrowed(message) {
  switch (message.type) {
    case "result": return message.is_listen ? "" : message.text;
    case "queued": return String(message.eta_seconds);
    case "warning": return message.code === ERROR_CODES.LATE_CHUNK ? "late" : message.message;
    // @ts-expect-error: no such message
    case "vad_state": return "";
  }
  // @ts-expect-error: not every message has it
  return message.text;
}

/** @type {import("./types/protocol.js").DuplexClientMessage} */
export const prepare = { type: "prepare", config: { chunk_ms: DUPLEX_CONFIG_DEFAULTS.chunk_ms } };
/** @type {import("./types/protocol.js").DuplexClientMessage} */
// @ts-expect-error: no sound
export const chunk = { type: "audio_chunk" };
/** @type {import("./types/protocol.js").StreamingClientMessage} */
export const prefill = {
  type: "prefill",
  messages: [{ role: "user", content: [{ type: "text", text: "a" }] }],
};
/** @type {import("./types/protocol.js").StreamingClientMessage} */
// @ts-expect-error: no such role
export const nobody = { type: "prefill", messages: [{ role: "nobody", content: "a" }] };
/** @type {import("./types/protocol.js").ChatClientMessage} */
export const request = { messages: [{ role: "user", content: "a" }] };
/** @type {1011} */
export const close = CLOSE_CODES.INTERNAL;
/** @type {number} */
export const number = LIMITS.INPUT_SAMPLE_RATE_HZ + GENERATE_RANGES.temperature.max;
"""
TSC_OPTIONS = "--checkJs --allowJs --strict --noEmit --target es2022 --module es2022".split()


def test_types_narrow(tmp_path: Path) -> None:
    tsc = ROOT / "node_modules/.bin/tsc"
    (tmp_path / "protocol.js").write_text(SCRIPT, encoding="utf8")
    (tmp_path / "types").mkdir()
    (tmp_path / "types" / "protocol.d.ts").write_text(TYPES, encoding="utf8")
    (tmp_path / "use.js").write_text(USE, encoding="utf8")
    done = subprocess.run(
        [tsc, *TSC_OPTIONS, "--moduleResolution", "bundler", "use.js"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def constants() -> dict[str, object]:
    found = re.findall(
        r"^export const (\w+) = /\*\* @type {const} \*/ \((.*?)\);$",
        SCRIPT,
        re.MULTILINE | re.DOTALL,
    )
    lines = re.compile(r"^  (\w+): (.*),$", re.MULTILINE)
    return {
        name: {key: json.loads(text) for key, text in lines.findall(value)} for name, value in found
    }


def test_constants_are_those_of_the_server(constants: dict[str, dict[str, object]]) -> None:
    assert constants["ERROR_CODES"] == {code.name: code.value for code in ErrorCode}
    assert constants["CLOSE_CODES"] == {code.name: int(code) for code in CloseCode}
    assert constants["LIMITS"]["FRAME_MAX_BYTES"] == limits.FRAME_MAX_BYTES
    assert constants["DUPLEX_CONFIG_DEFAULTS"] == DuplexConfig().model_dump(mode="json")
    generate = Generate().model_dump(mode="json", exclude={"type"})
    assert constants["GENERATE_DEFAULTS"] == generate
    ranges = constants["GENERATE_RANGES"]
    assert isinstance(ranges, dict) and ranges["top_p"] == {"above": 0, "max": 1}


def test_every_message_has_a_type() -> None:
    for name in (*public_names().values(), *DEFINITIONS):
        assert len(re.findall(rf"^export type {name} = ", TYPES, re.MULTILINE)) == 1
    for socket in SOCKETS:
        camel = socket.name.title().replace("_", "")
        for side in Side:
            assert f"export type {camel}{side.value.title()}Message = " in TYPES


def test_node_reads_it(tmp_path: Path, constants: dict[str, object]) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    module = tmp_path / "protocol.mjs"
    module.write_text(SCRIPT, encoding="utf8")
    program = f"import({json.dumps(module.as_uri())}).then(m => console.log(JSON.stringify(m)))"
    done = subprocess.run([node, "-e", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {**constants, "SESSION_ID_PATTERN": {}}
