"""What is remembered for OpenAI's clients, in memory and for a while.

Client secrets are keys that expire, for programs that are not to know an API key: a server of
one's own makes one with its API key and hands it to a page or a telephone. Transcripts say what
spoken answers said. Source: OpenAI's API reference, "Create client secret".
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import Field

from core.errors import BadRequestError, RateLimitedError
from core.protocols.realtime_session import OutputConfig, SessionConfig
from core.schemas.common import WireModel
from core.schemas.realtime_session import SessionPatch

PREFIX: Final = "ek_"
VALUE_BYTES: Final = 24
ID_BYTES: Final = 12
SECONDS_MIN, SECONDS_MAX, SECONDS_USUAL = 10, 7_200, 600  # Source: the API reference
SECRETS_MAX: Final = 1_000  # ours: at once; one more is refused until one expires
SESSION_MAX_CHARS: Final = 64 * 1024  # ours: of a session as JSON

Json = dict[str, Any]  # Any: a JSON object


class ExpiresAfter(WireModel):
    """How long a secret opens sessions."""

    anchor: Literal["created_at"] = "created_at"
    seconds: int = Field(SECONDS_USUAL, ge=SECONDS_MIN, le=SECONDS_MAX)


class ClientSecretRequest(WireModel):
    """The body of a request; both may be left out."""

    expires_after: ExpiresAfter = ExpiresAfter()
    session: SessionPatch = SessionPatch()


@dataclass(frozen=True)
class ClientSecret:
    """`expires_at` in Unix seconds."""

    value: str
    expires_at: int


@dataclass(frozen=True)
class _Kept:
    expires_at: int
    session: str  # JSON: no object of a thousand values waits in memory


class ClientSecrets:
    """Unexpired secrets by their hash, with the settings of their sessions."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._kept: dict[str, _Kept] = {}

    def make(self, settings: SessionPatch, seconds: int) -> ClientSecret:
        """Raises BadRequestError for long settings, RateLimitedError at too many secrets."""
        text = settings.model_dump_json(exclude_unset=True)
        if len(text) > SESSION_MAX_CHARS:
            raise BadRequestError(f"session: longer than {SESSION_MAX_CHARS} characters of JSON.")
        now_s = self._clock()
        self._kept = {key: kept for key, kept in self._kept.items() if kept.expires_at > now_s}
        if len(self._kept) >= SECRETS_MAX:
            raise RateLimitedError(f"There are {SECRETS_MAX} client secrets; wait for one to end.")
        made = ClientSecret(PREFIX + secrets.token_hex(VALUE_BYTES), int(now_s) + seconds)
        self._kept[_hash(made.value)] = _Kept(made.expires_at, text)
        return made

    def find(self, value: str) -> Json | None:
        """Return the settings of a secret's sessions, None if it is unknown or has expired."""
        kept = self._kept.get(_hash(value)) if value.startswith(PREFIX) else None
        if kept is None or kept.expires_at <= self._clock():
            return None
        session: Json = json.loads(kept.session)
        return session


def session_object(settings: SessionPatch, model: str, expires_at: int) -> Json:
    config = SessionConfig(OutputConfig("")).patched(settings)
    session = config.wire(f"sess_{secrets.token_hex(ID_BYTES)}", model, expires_at)
    if settings.instructions is None:
        del session["instructions"]  # those of the worker
    return session


def _hash(value: str) -> str:
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


KEPT_S: Final = 3_600  # as OpenAI's server keeps them
KEPT_MAX: Final = 1_000  # ours: the oldest of more is forgotten; 4 MB at most


class Transcripts:
    """Texts by the id of their audio. An id is random, so it cannot be guessed."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._kept: OrderedDict[str, tuple[int, str]] = OrderedDict()

    def keep(self, audio_id: str, text: str) -> int:
        """Keep a text; return until when, in Unix seconds."""
        expires_s = int(self._clock()) + KEPT_S
        self._kept[audio_id] = expires_s, text
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return expires_s

    def find(self, audio_id: str) -> str | None:
        """Return a text, None if it has expired."""
        expires_s, text = self._kept.get(audio_id, (0, ""))
        return text if expires_s > self._clock() else None
