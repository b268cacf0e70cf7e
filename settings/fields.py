"""Field types of the sections, and the folders of the program and its data."""

from __future__ import annotations

import json
import os
import re
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Final, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from settings.workers import WorkerAddress

PROJECT_ROOT = Path(__file__).resolve().parents[1]
"""Folder of the programs and their read-only files."""

IS_INSTALLED: Final = not (PROJECT_ROOT / "pyproject.toml").is_file()
"""Installed from a wheel, whose folder must not hold user files."""

HOME_VARIABLE: Final = "MINICPMO_HOME"


def install_command(what: str) -> str:
    """Return the command that adds an extra, which later upgrades of a clone keep, or `pages`."""
    if not IS_INSTALLED:
        return f"scripts/setup.sh {what}"
    # The wheel contains the built pages; it is a file, since no index has it.
    return (
        "pip install --force-reinstall --no-deps minicpmo_live-*.whl"
        if what == "pages"
        else f"pip install 'minicpmo-live[{what}]'"
    )


def _home() -> Path:
    given = os.environ.get(HOME_VARIABLE)
    if given:
        return Path(given).expanduser().absolute()
    if not IS_INSTALLED:
        return PROJECT_ROOT
    # Source: XDG Base Directory Specification, section 3.
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser().absolute() / "minicpmo-live"


HOME: Final = _home()
"""Base of relative paths, independent of the working directory."""

NO_LIMIT = -1
AnyItem = TypeVar("AnyItem")
ORIGIN = re.compile(r"\*|https?://(\[[0-9A-Fa-f:.]+\]|[^/?#@\[\]\s:]+)(:\d+)?/?", re.IGNORECASE)


class Section(BaseModel):
    """Base class of the sections: frozen, with validated defaults."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        allow_inf_nan=False,
        protected_namespaces=(),
        validate_by_name=True,
        validate_by_alias=True,
        validate_default=True,
        use_attribute_docstrings=True,
    )


def _below_home(path: str | Path) -> Path:
    try:
        return HOME / Path(path).expanduser()
    except RuntimeError as error:  # ~NAME of a user that does not exist
        raise ValueError(str(error)) from error


def _model_place(place: str) -> str:
    """Make a local folder absolute; anything else is a hub id."""
    local = _below_home(place)
    is_local = place.startswith((".", "/", "~")) or local.exists()
    return str(local) if is_local else place


def _split_list(value: object) -> object:
    """Parse a list in an environment variable: JSON, or comma-separated."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)
    return [part.strip() for part in value.split(",") if part.strip()]


def _is_network(network: str) -> str:
    ip_network(network, strict=False)
    return network


def _as_browsers_send(origin: str) -> str:
    """Write an origin in lower case, without a trailing slash or the default port."""
    if ORIGIN.fullmatch(origin) is None:
        raise ValueError('an origin is scheme and host, such as "https://example.com"')
    origin = origin.lower().removesuffix("/")
    return origin.removesuffix(":443" if origin.startswith("https:") else ":80")


ProjectPath = Annotated[Path, AfterValidator(_below_home)]
"""A path, relative to `HOME` unless absolute."""

RecordingPlace = Annotated[str, Field(pattern=r"^$|^(s3|gs|az|file)://")]
"""URL of an object store, or empty."""

ModelPlace = Annotated[str, Field(min_length=1, max_length=4_096), AfterValidator(_model_place)]
"""A checkpoint: folder or hub id."""

Port = Annotated[int, Field(ge=1, le=65_535)]
"""A TCP port. Source: RFC 9293, section 3.1 (16 bits)."""

Listed = Annotated[tuple[AnyItem, ...], BeforeValidator(_split_list)]
"""In an environment variable a list is JSON, or comma-separated."""

TextList = Listed[str]
SecretList = Listed[Annotated[SecretStr, Field(min_length=1)]]
NetworkList = Listed[Annotated[str, AfterValidator(_is_network)]]
"""IP addresses and networks such as 10.0.0.0/8."""

OriginList = Listed[Annotated[str, AfterValidator(_as_browsers_send)]]
"""Origins of web pages such as https://example.com; "*" is any."""

WorkerList = Listed[WorkerAddress]

DAYS_MAX: Final = 36_500  # a hundred years, which date arithmetic can represent
GIGABYTES_MAX: Final = 1_000_000  # beyond any file system

DayLimit = Annotated[
    int,
    Field(ge=NO_LIMIT, le=DAYS_MAX),
    AfterValidator(lambda days: days if days > 0 else NO_LIMIT),
]
"""Days; -1 is no limit, and 0 is read as -1."""

GigabyteLimit = Annotated[
    float,
    Field(ge=NO_LIMIT, le=GIGABYTES_MAX),
    AfterValidator(lambda room: room if room > 0 else float(NO_LIMIT)),
]
"""Gigabytes; -1 is no limit, and 0 is read as -1."""

UpperCase = BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value)
"""Makes a value case-insensitive."""
