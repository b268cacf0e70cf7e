"""The commands and programs in the documentation, and which test executes each."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.source_tree import ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
RUNNABLE = {"sh", "python", "javascript", "js", "json", "nginx", "ini"}
BLOCK = re.compile(
    r"(?:^<!-- Not executed by a test: (?P<reason>[^\n]+) -->\n\n?)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
PROGRAMS = "tests/system/test_documented_programs.py::test_a_program_runs_as_it_stands"
COMMANDS = "tests/unit/test_documented_commands.py::"
EXECUTED = {
    ("deploy.md", 0): COMMANDS + "test_settings_in_the_documentation_are_valid",
    ("deploy.md", 12): COMMANDS + "test_variables_of_services_are_valid",
    ("embedded.md", 0): COMMANDS + "test_settings_in_the_documentation_are_valid",
    ("openai.md", 0): PROGRAMS,
    ("openai-realtime.md", 0): PROGRAMS,
    ("operate.md", 2): COMMANDS + "test_the_trace_id_is_what_the_command_prints",
    ("operate.md", 3): PROGRAMS,
    ("operate.md", 4): COMMANDS + "test_the_state_is_what_was_backed_up",
    ("operate.md", 5): COMMANDS + "test_the_state_is_what_was_backed_up",
    ("operate.md", 6): COMMANDS + "test_what_would_be_deleted_is_listed",
    **{("talk.md", number): PROGRAMS for number in range(6)},
    ("transformers.md", 0): "tests/model/test_auto.py::test_documented_example_runs",
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        reason: why no test executes it, where the page says so.
    """

    language: str
    text: str
    reason: str | None


def blocks(page: str) -> list[Block]:
    """Return the runnable blocks of a page by its file name, in order."""
    (path,) = (path for path in PAGES if path.name == page)
    found = BLOCK.finditer(path.read_text(encoding="utf8"))
    return [Block(**each.groupdict()) for each in found if each["language"] in RUNNABLE]
