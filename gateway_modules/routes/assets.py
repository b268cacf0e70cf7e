"""What pages start from: defaults, presets, voices."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import Field
from starlette.responses import FileResponse

from config import FrontendDefaults
from core.errors import NotFoundError
from core.schemas import limits
from core.schemas.common import WireModel
from gateway_modules.service import AdminOnly, GatewayHere
from gateway_modules.voices.presets import Preset, PresetSounds
from gateway_modules.voices.ref_audio_registry import RefAudio
from gateway_modules.web.answers import problems
from gateway_modules.web.files import NO_CACHE

MS_PER_S = 1_000

Name = Annotated[str, Path(max_length=limits.ID_MAX_CHARS)]

router = APIRouter(tags=["assets"])


class DefaultVoice(WireModel):
    """The server's own voice."""

    name: str = Field(description="Its name for people.")
    duration: float = Field(description="Length, s.")
    sample_rate: int = Field(limits.INPUT_SAMPLE_RATE_HZ, description="Samples per second.")
    samples: int = Field(description="How many there are.")
    base64: str = Field(description="Base64 of float32 samples, mono.")


class RefAudioList(WireModel):
    """The uploaded voices."""

    total: int = Field(ge=0, description="How many there are.")
    ref_audios: list[RefAudio] = Field(description="Oldest first.")


class RefAudioUpload(WireModel):
    """A voice to keep."""

    name: str = Field(max_length=limits.ID_MAX_CHARS, description="Its name for people.")
    audio_base64: str = Field(description="Base64 of a sound file of any kind.")


class RefAudioChanged(WireModel):
    """What became of an upload or a deletion."""

    success: bool = Field(description="It worked.")
    id: str = Field(description="The voice.")
    name: str | None = Field(None, description="Its name for people.")
    message: str = Field("", description="What happened, for a person to read.")


@router.get("/api/frontend_defaults")
async def frontend_defaults(gateway: GatewayHere) -> FrontendDefaults:
    """Say what pages start from."""
    return gateway.settings.frontend_defaults(gateway.languages.names)


@router.get("/api/presets")
async def presets(gateway: GatewayHere) -> dict[str, list[Preset]]:
    """List the presets of every mode; sounds are fetched on their own."""
    return await asyncio.to_thread(gateway.presets.list_all)


@router.get("/api/presets/{mode}/{preset_id}/audio", responses=problems(400, 404))
async def preset_audio(mode: Name, preset_id: Name, gateway: GatewayHere) -> PresetSounds:
    """Return the sounds of one preset."""
    return await gateway.voices.run(gateway.presets.sounds_of, mode, preset_id)


@router.get("/api/default_ref_audio", responses=problems(400, 404))
async def default_ref_audio(gateway: GatewayHere) -> DefaultVoice:
    """Return the server's own voice."""
    voice = await gateway.voices.run(gateway.voices.default)
    sound = voice.sound
    return DefaultVoice(
        name=voice.name,
        duration=round(sound.duration_ms / MS_PER_S, 3),
        samples=sound.count,
        base64=sound.to_base64(),
    )


@router.get("/api/assets/ref_audio")
async def ref_audios(gateway: GatewayHere) -> RefAudioList:
    """List the uploaded voices."""
    voices = await asyncio.to_thread(gateway.voices.registry.list_all)
    return RefAudioList(total=len(voices), ref_audios=voices)


@router.get(
    "/api/assets/ref_audio/{ref_id}/audio", response_class=FileResponse, responses=problems(404)
)
async def ref_audio_sound(ref_id: Name, gateway: GatewayHere) -> FileResponse:
    """Return an uploaded voice as a WAV file, or the ranges of it that are asked for."""
    path = await asyncio.to_thread(gateway.voices.registry.get_file_path, ref_id)
    if path is None:
        raise NotFoundError("There is no voice of this id.")
    return FileResponse(path, media_type="audio/wav", headers={"Cache-Control": NO_CACHE})


@router.post(
    "/api/assets/ref_audio",
    dependencies=[AdminOnly],
    responses=problems(400, 401, 403, 413, 422),
)
async def upload_ref_audio(body: RefAudioUpload, gateway: GatewayHere) -> RefAudioChanged:
    """Keep a voice: half a second to 30 s of sound in any file format."""
    registry = gateway.voices.registry
    voice = await gateway.voices.run(registry.upload, body.name, body.audio_base64)
    return RefAudioChanged(success=True, id=voice.id, name=voice.name, message="It is kept.")


@router.delete(
    "/api/assets/ref_audio/{ref_id}", dependencies=[AdminOnly], responses=problems(401, 403, 404)
)
async def delete_ref_audio(ref_id: Name, gateway: GatewayHere) -> RefAudioChanged:
    """Delete an uploaded voice."""
    is_deleted = await asyncio.to_thread(gateway.voices.registry.delete, ref_id)
    if not is_deleted:
        raise NotFoundError("There is no voice of this id.")
    return RefAudioChanged(success=True, id=ref_id, message="It is deleted.")
