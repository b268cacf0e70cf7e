"""`GET` and `POST /v1/audio/voices`: the uploaded voices in OpenAI's words."""

from __future__ import annotations

import base64
from typing import Any, Final

from starlette.datastructures import UploadFile
from starlette.requests import Request

from core.errors import BadRequestError
from gateway_modules.voices.ref_audio_registry import NAME_MAX_CHARS, RefAudio, RefAudioRegistry

FIELDS_MAX: Final = 16  # ours: parts of a form beside the file

Json = dict[str, Any]  # Any: a JSON object


async def uploaded_voice(request: Request) -> tuple[str, str]:
    """Return name and sound of a voice, the sound as Base64 of its file.

    Raises:
        BadRequestError: One of them is missing, or the voice is to be made of something else.
    """
    async with request.form(max_files=1, max_fields=FIELDS_MAX) as form:
        if form.get("type", "audio_sample") != "audio_sample":
            raise BadRequestError("type: voices are made from an audio_sample only.")
        name, sample = form.get("name"), form.get("audio_sample")
        if not isinstance(name, str) or not 0 < len(name.strip()) <= NAME_MAX_CHARS:
            raise BadRequestError(f"name: a text of 1 to {NAME_MAX_CHARS} characters is needed.")
        if not isinstance(sample, UploadFile):
            raise BadRequestError("audio_sample: a sound file is needed.")
        return name, base64.b64encode(await sample.read()).decode("ascii")


def voice_object(voice: RefAudio) -> Json:
    """Return a voice as OpenAI's clients read it."""
    return {
        "id": voice.id,
        "object": "audio.voice",
        "type": "audio_sample",
        "name": voice.name,
        "created_at": int(voice.created_at.timestamp()),
    }


def voice_list(registry: RefAudioRegistry) -> Json:
    """Return all voices, oldest first."""
    found = [voice_object(voice) for voice in registry.list_all()]
    ends = {"first_id": found[0]["id"], "last_id": found[-1]["id"]} if found else {}
    return {"object": "list", "data": found, "has_more": False, **ends}
