"""The pages: location of built files, sources and libraries, languages, the 404 page, presets.

Pages are built by `scripts/build_pages.mjs`, or served as sources. A build is served only while it
matches the sources. Presets of prompts are YAML files, re-read when they change.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeAlias

import structlog
import yaml
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from starlette.types import Scope

from config import install_command
from core.errors import NotFoundError
from core.schemas import limits
from core.schemas.common import WireModel
from gateway_modules.voices import DEFAULT_VOICE, VoiceLibrary, wav_duration_s
from gateway_modules.web.responses import IMMUTABLE_MARK, WebFiles

STATIC_FOLDER: Final = "static"
BUILT_FOLDER: Final = Path("build") / "pages"
VERSIONED: Final = re.compile(r"/static/v-(?P<version>[0-9a-f]{12})/")

VOICE_DETECTOR: Final = "silero"
VOICE_DETECTOR_PACKAGE: Final = "silero_vad"  # its file comes with the worker's Python packages
VOICE_DETECTOR_FILE: Final = "silero_vad.onnx"


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

    @functools.cached_property
    def files(self) -> WebFiles:
        return WebFiles(self.folder)

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
        command = install_command("worker" if is_detector else "pages")
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
        log.warning("serving unbundled pages", to_build_them=install_command("pages"))
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


MODES: Final = ("turnbased", "half_duplex_audio", "omni", "audio_duplex")
LAST_ORDER: Final = 999  # source: docs/specification/service.md#6.1
FILE_MAX_BYTES: Final = 256 * 1024
PRESETS_MAX: Final = 200  # per mode; the last by name are skipped

Localized: TypeAlias = str | dict[str, str]
"""A text, or a text per language."""


class PresetText(WireModel):
    """Text of the system content."""

    type: Literal["text"] = Field("text", description="Kind of item.")
    text: str = Field(max_length=limits.TEXT_MAX_CHARS, description="The text.")


class PresetAudio(WireModel):
    """A voice sample of the system content; its audio is fetched separately."""

    type: Literal["audio"] = Field("audio", description="Kind of item.")
    data: None = Field(None, description="Always null in a list.")
    path: str = Field(description="Below the assets folder; `default` is the server's own voice.")
    name: str = Field("", description="Display name.")
    duration: float | None = Field(None, description="Length, s, if known.")


class Preset(WireModel):
    """A preset of a mode."""

    id: str = Field(min_length=1, max_length=limits.ID_MAX_CHARS, description="Unique in its mode.")
    order: int = Field(LAST_ORDER, description="Sort key.")
    name: Localized = Field("", description="Display name.")
    description: Localized = Field("", description="Description.")
    system_prompt: str | None = Field(None, description="Duplex: the system prompt.")
    ref_audio_path: str | None = Field(None, description="Duplex: the voice, as in `path`.")
    ref_audio: PresetAudio | None = Field(None, description="Duplex: the same as an item.")
    system_content: list[Annotated[PresetText | PresetAudio, Field(discriminator="type")]] = Field(
        default_factory=list, description="Turn-based and half duplex: the system message."
    )
    # Any: settings of the page by name, passed on unchanged.
    settings: dict[str, Any] | None = Field(None, description="Settings of the page.")


class PresetSound(WireModel):
    """A voice sample with its audio."""

    data: str = Field(description="Base64 of float32 samples, mono, 16 kHz.")
    name: str = Field(description="Display name.")
    duration: float = Field(description="Length, s.")


class PresetSounds(WireModel):
    """Answer to `GET /api/presets/{mode}/{preset_id}/audio`."""

    system_content_audio: list[PresetSound] = Field(description="In the order of the audio items.")
    ref_audio: PresetSound | None = Field(description="Of duplex presets.")


Stamp: TypeAlias = tuple[tuple[str, int, int], ...]  # name, time and size of each file


class PresetLibrary:
    """The presets of every mode in `assets/presets/<mode>/`; any thread may call it, and blocks.

    Invalid files are logged and skipped.
    """

    def __init__(self, folder: Path, voices: VoiceLibrary) -> None:
        self._folder = folder
        self._assets = folder.parent.resolve()
        self._voices = voices
        self._presets = functools.lru_cache(len(MODES))(self._read_folder)
        self._log = structlog.get_logger("presets")

    def list_all(self) -> dict[str, list[Preset]]:
        return {mode: self._of_mode(mode) for mode in MODES}

    def sounds_of(self, mode: str, preset_id: str) -> PresetSounds:
        presets = self._of_mode(mode) if mode in MODES else []
        preset = next((one for one in presets if one.id == preset_id), None)
        if preset is None:
            raise NotFoundError("There is no such preset.")
        items = [item for item in preset.system_content if isinstance(item, PresetAudio)]
        return PresetSounds(
            system_content_audio=[self._sound(item) for item in items],
            ref_audio=self._sound(preset.ref_audio) if preset.ref_audio else None,
        )

    def _of_mode(self, mode: str) -> list[Preset]:
        # Described on each call, since the default voice may appear or disappear.
        presets = self._presets(mode, _stamp(self._folder / mode))
        return [self._described(preset) for preset in presets]

    def _read_folder(self, mode: str, stamp: Stamp) -> list[Preset]:
        presets: dict[str, Preset] = {}
        for name, _, _ in stamp[:PRESETS_MAX]:
            path = self._folder / mode / name
            try:
                preset = _read_preset(path)
                if presets.setdefault(preset.id, preset) is not preset:
                    raise ValueError("same id")
            except (OSError, ValueError, yaml.YAMLError) as error:
                self._log.warning("preset left out", path=str(path), reason=str(error))
        return sorted(presets.values(), key=lambda preset: (preset.order, preset.id))

    def _described(self, preset: Preset) -> Preset:
        items = [
            item if isinstance(item, PresetText) else self._described_audio(item)
            for item in preset.system_content
        ]
        path = preset.ref_audio_path
        voice = self._described_audio(PresetAudio(path=path)) if path else None
        return preset.model_copy(
            update={
                "system_content": _present(items),
                "ref_audio": voice,
                "ref_audio_path": path if voice else None,
            }
        )

    def _described_audio(self, item: PresetAudio) -> PresetAudio | None:
        path = self._path_of(item.path)
        if path is None:
            return None
        duration_s = item.duration if item.duration is not None else wav_duration_s(path)
        return item.model_copy(update={"name": item.name or path.stem, "duration": duration_s})

    def _sound(self, item: PresetAudio) -> PresetSound:
        path = self._path_of(item.path)
        if path is None:
            raise NotFoundError("An audio file of this preset is missing.")
        audio, name = self._voices.read(path), item.name or path.stem
        duration_s = round(audio.count / limits.INPUT_SAMPLE_RATE_HZ, 3)
        return PresetSound(data=audio.to_base64(), name=name, duration=duration_s)

    def _path_of(self, name: str) -> Path | None:
        if name == DEFAULT_VOICE:
            return self._voices.default_path
        try:
            path = (self._assets / name).resolve()
            return path if path.is_relative_to(self._assets) and path.is_file() else None
        except (OSError, RuntimeError, ValueError):
            return None


def _present(items: Sequence[PresetText | PresetAudio | None]) -> list[PresetText | PresetAudio]:
    """Leave out missing samples, and a text directly before one, which introduces it.

    The last text is the prompt, and stays.
    """
    last_text = max(
        (at for at, item in enumerate(items) if isinstance(item, PresetText)), default=0
    )
    return [
        item
        for at, item in enumerate(items)
        if item is not None
        and not (isinstance(item, PresetText) and at < last_text and items[at + 1] is None)
    ]


def _stamp(folder: Path) -> Stamp:
    try:
        files = sorted(folder.glob("*.yaml"))
        stats = [(file.name, file.stat()) for file in files if file.is_file()]
    except OSError:
        return ()
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


def _read_preset(path: Path) -> Preset:
    if path.stat().st_size > FILE_MAX_BYTES:
        raise ValueError("the file is too large")
    try:
        return Preset.model_validate(yaml.safe_load(path.read_text(encoding="utf8")))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise ValueError(f"{where}: {problem['msg']}") from None
