"""Sources of settings: file, environment and command line, and error messages about them.

Every source is read into `{"section.key": value}`; later sources override earlier ones.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, SecretStr
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource

ENVIRONMENT_PREFIX = "OMNI_"
ENVIRONMENT = "in the environment"
COMMAND_LINE = "on the command line"
SHOWN_VALUE_CHARS = 80  # a longer value is cut in a message


class SettingsError(Exception):
    """The configuration is invalid; the text names key, value and reason."""


@dataclass(frozen=True)
class Source:
    """Values by "section.key"; `where` is its name in messages."""

    where: str
    values: Mapping[str, object]


def read_file(path: Path, *, is_required: bool) -> Source:
    """Read a JSON file of sections; an optional file may be missing.

    Raises:
        SettingsError: It is required and missing, not JSON, or not an object of sections.
    """
    try:
        sections = json.loads(path.read_text(encoding="utf8"))
    except FileNotFoundError:
        if is_required:
            raise SettingsError(f"{path} does not exist; start from config.example.json") from None
        return Source(f"in {path.name}", {})
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise SettingsError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(sections, dict):
        raise SettingsError(f"{path} holds {shown(sections)} instead of an object of sections")
    return Source(f"in {path.name}", flat(sections, path.name))


def found_in_text(path: Path, keys: Collection[str]) -> dict[str, object]:
    """Search a file that is not valid JSON for members named like the keys."""
    values: dict[str, object] = {}
    with suppress(OSError):
        text = path.read_text(encoding="utf8", errors="replace")
        for key in keys:
            name = key.partition(".")[2]
            member = re.search(rf'"{name}"\s*:\s*("(?:[^"\\\n]|\\.)*"|[0-9.]+)', text)
            with suppress(ValueError):
                values |= {key: json.loads(member[1])} if member else {}
    return values


def read_environment(model: type[BaseSettings]) -> Source:
    """Read the variables `OMNI_<SECTION>_<KEY>`."""
    values = flat(EnvSettingsSource(model)(), "the environment")
    known = {environment_name(key).upper() for key in values}
    for name in os.environ:
        if name.upper().startswith(ENVIRONMENT_PREFIX) and name.upper() not in known:
            if os.environ[name]:  # empty: not set
                values[name] = os.environ[name]  # reported as unknown
    return Source(ENVIRONMENT, values)


def flat(sections: Mapping[str, object], place: str) -> dict[str, object]:
    """Flatten sections to "section.key"; a SettingsError if a section is not an object."""
    values: dict[str, object] = {}
    for section, keys in sections.items():
        if section.startswith("$"):
            continue  # "$schema" and the like are for editors
        if not isinstance(keys, Mapping):
            raise SettingsError(f"{section} in {place} is {shown(keys)} instead of an object")
        values.update({f"{section}.{key}": value for key, value in keys.items()})
    return values


def nested(values: Mapping[str, object]) -> dict[str, dict[str, object]]:
    sections: dict[str, dict[str, object]] = {}
    for name, value in values.items():
        section, _, key = name.partition(".")
        sections.setdefault(section, {})[key] = value
    return sections


def known_keys(model: type[BaseModel]) -> dict[str, bool]:
    """Return every valid "section.key", and whether its value is secret."""
    keys = {}
    for section, field in model.model_fields.items():
        part = field.annotation
        assert isinstance(part, type) and issubclass(part, BaseModel), f"{section} is no section"
        for name, entry in part.model_fields.items():
            keys[f"{section}.{entry.alias or name}"] = "SecretStr" in repr(entry.annotation)
    return keys


def unknown_keys(source: Source, known: Collection[str]) -> Iterator[str]:
    """Yield a message for each unknown key, with its source and similar keys."""
    spell = environment_name if source.where == ENVIRONMENT else str
    for key in source.values:
        if key in known:
            continue
        near = [other for other in known if other.partition(".")[2] == key.partition(".")[2]]
        names = [spell(other) for other in near or known]
        meant = names if near else difflib.get_close_matches(spell(key), names, n=2)
        hint = f" (did you mean {' or '.join(meant)}?)" if meant else ""
        yield f"unknown setting {spell(key)} {source.where} is ignored{hint}"


def environment_name(key: str) -> str:
    return key if "." not in key else ENVIRONMENT_PREFIX + key.replace(".", "_").upper()


def explain(
    errors: list[ErrorDetails], sources: Collection[Source], secrets: Collection[str]
) -> str:
    """Describe validation errors: key, value, source and limit.

    Args:
        errors: From pydantic.
        sources: In the order in which they were read; the last one with a key set its value.
        secrets: Keys whose values are never shown.
    """
    lines = []
    for error in errors:
        key = ".".join(str(part) for part in error["loc"][:2])
        places = [source.where for source in sources if key in source.values]
        place = f" {places[-1]}" if places else ""
        if place.endswith(ENVIRONMENT):
            place = f" in {environment_name(key)}"
        is_secret = key in secrets or isinstance(error["input"], SecretStr)
        is_whole_section = "." not in key
        value = "" if is_secret or is_whole_section else f" = {shown(error['input'])}"
        lines.append(f"{key}{value}{place}: {error['msg'].removeprefix('Value error, ')}")
    return "\n".join(lines)


def shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN_VALUE_CHARS else f"{text[:SHOWN_VALUE_CHARS]}…"
