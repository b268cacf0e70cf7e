"""Prompt presets: YAML files in `assets/presets/<mode>/`, re-read when they change.

Invalid files are logged and skipped. Blocks on the disk: call from a thread.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import structlog
import yaml
from pydantic import Field, ValidationError

from core.errors import NotFoundError
from core.schemas import limits
from core.schemas.common import WireModel
from gateway_modules.voices import DEFAULT_VOICE, VoiceLibrary, wav_duration_s

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


Stamp: TypeAlias = tuple[tuple[str, int, int], ...]
"""Fingerprint of a folder: name, time and size of each file."""


class PresetLibrary:
    """The presets of every mode; any thread may call it."""

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
        content = [
            item if isinstance(item, PresetText) else self._described_audio(item)
            for item in preset.system_content
        ]
        path = preset.ref_audio_path
        voice = self._described_audio(PresetAudio(path=path)) if path else None
        return preset.model_copy(
            update={
                "system_content": [item for item in content if item is not None],
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
