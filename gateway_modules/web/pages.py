"""The pages: location of built files, sources and libraries, languages, and the 404 page.

Pages are built by `scripts/build_pages.mjs`, or served as sources. A build is served only while it
matches the sources.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final

import structlog
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.types import Scope

from core.errors import NotFoundError
from gateway_modules.web.responses import IMMUTABLE_MARK

STATIC_FOLDER: Final = "static"
BUILT_FOLDER: Final = Path("build") / "pages"
BUILD_COMMAND: Final = "scripts/setup.sh pages"
VERSIONED: Final = re.compile(r"/static/v-(?P<version>[0-9a-f]{12})/")

VOICE_DETECTOR: Final = "silero"
VOICE_DETECTOR_PACKAGE: Final = "silero_vad"  # its file comes with the worker's Python packages
VOICE_DETECTOR_FILE: Final = "silero_vad.onnx"
VOICE_DETECTOR_COMMAND: Final = "scripts/setup.sh worker"


class Manifest(BaseModel):
    """A build's version, which is part of its URLs, and the SHA-256 of each source by path."""

    version: str
    sources: dict[str, str]


@dataclass(frozen=True)
class Pages:
    """HTML and files of `/static`: a versioned build, or sources, which are not cached."""

    folder: Path
    libraries: Path
    version: str = ""

    def resolved(self, scope: Scope) -> Scope:
        """Rewrite a versioned URL, and mark the request as immutable if the version is current.

        Pages loaded before an update of the server still find their libraries.
        """
        found = VERSIONED.match(scope["path"])
        if found is None:
            return scope
        plain = {**scope, "path": f"/static/{scope['path'][found.end() :]}"}
        if scope["method"] in ("GET", "HEAD") and found["version"] == self.version:
            plain[IMMUTABLE_MARK] = True
        return plain

    def library_file(self, library: str, name: str) -> Path:
        is_detector = (library, name) == (VOICE_DETECTOR, VOICE_DETECTOR_FILE)
        with suppress(OSError, ValueError):  # what cannot be a path
            if is_detector:
                path = _package_folder(VOICE_DETECTOR_PACKAGE) / "data" / name
            else:
                path = (self.libraries / library / name).resolve()
            if path.is_file() and (is_detector or path.is_relative_to(self.libraries.resolve())):
                return path
        command = VOICE_DETECTOR_COMMAND if is_detector else BUILD_COMMAND
        raise NotFoundError(
            f"The library file {library}/{name} is not installed on this server. "
            f"Run {command} there and reload this page."
        )


def find_pages(root: Path, *, wants_sources: bool) -> Pages:
    build = None if wants_sources else find_build(root)
    if build is not None:
        return build
    if not wants_sources:
        log = structlog.get_logger("pages")
        log.warning("serving unbundled pages", to_build_them=BUILD_COMMAND)
    builds = [folder for folder, _ in _builds(root / BUILT_FOLDER)]
    return Pages(root / STATIC_FOLDER, [root / BUILT_FOLDER, *builds][-1] / "vendor")


def find_build(root: Path) -> Pages | None:
    for folder, manifest in reversed(_builds(root / BUILT_FOLDER)):
        if _sources(root, manifest) == manifest.sources:
            return Pages(folder, folder / "vendor", manifest.version)
    return None


def _builds(folder: Path) -> list[tuple[Path, Manifest]]:
    found = []
    for path in folder.glob("v-*/manifest.json"):
        with suppress(OSError, ValueError):  # removed meanwhile, or damaged
            found.append((path.parent, Manifest.model_validate_json(path.read_bytes())))
    return sorted(found, key=lambda build: build[0].stat().st_mtime_ns)


def _sources(root: Path, manifest: Manifest) -> dict[str, str]:
    others = {name for name in manifest.sources if not name.startswith(f"{STATIC_FOLDER}/")}
    names = others | {
        path.relative_to(root).as_posix()
        for path in (root / STATIC_FOLDER).rglob("*")
        if path.is_file()
    }
    return {
        name: hashlib.sha256((root / name).read_bytes()).hexdigest()
        for name in names
        if (root / name).is_file()
    }


def _package_folder(package: str) -> Path:
    """Return a package's folder; a path that does not exist if it is not installed."""
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(folders))) if folders else Path(package)


MISSING_PAGE: Final = """<!doctype html>
<html lang="{lang}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="/static/shared/icons/favicon-idle.svg">
<link rel="stylesheet" href="/static/shared/tokens.css">
<link rel="stylesheet" href="/static/shared/base.css">
<script src="/static/shared/early-theme.js"></script>
</head>
<body>
<main class="stack">
<h1>{title}</h1>
<p>{text}</p>
<p><a class="button button-primary" href="/">{home}</a></p>
</main>
</body>
</html>
"""


ENGLISH: Final = "en"  # the fallback
NAME: Final = "language.name"
CODE: Final = re.compile(r"[a-z]{2,3}")  # primary subtag of a language tag
CATALOGUE: Final[TypeAdapter[dict[str, str]]] = TypeAdapter(dict[str, str])


class Languages:
    def __init__(self, folder: Path, default: str | None = None) -> None:
        """Raises ValueError for an unusable catalogue, or a default language without one."""
        self._words = {path.stem: _catalogue(path) for path in sorted(folder.glob("*.json"))}
        if ENGLISH not in self._words:
            raise ValueError(f"{folder} holds no {ENGLISH}.json")
        if default is not None and default not in self._words:
            there = ", ".join(self._words)
            raise ValueError(f"service.default_lang = {default!r}: there are {there}")

    @property
    def names(self) -> dict[str, str]:
        return {code: texts[NAME] for code, texts in self._words.items()}

    def texts(self, code: str) -> Mapping[str, str]:
        return MappingProxyType(self._words[ENGLISH] | self._words[code])

    def pick(self, preferences: Iterable[str | None]) -> str:
        """Return the first available language of tags such as "zh" or "zh-CN", else English."""
        for preference in preferences:
            code = (preference or "").strip().partition("-")[0].lower()
            if code in self._words:
                return code
        return ENGLISH


def _catalogue(path: Path) -> dict[str, str]:
    if not CODE.fullmatch(path.stem):
        raise ValueError(f"{path} is not named after a language: two or three small letters")
    try:
        texts = CATALOGUE.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ValueError(f"{path} cannot be used: {error}") from error
    if NAME not in texts:
        raise ValueError(f"{path} does not say {NAME}")
    return texts
