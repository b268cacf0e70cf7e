"""What a stranger sees of other people's conversations: that they are there, not their ids.

An id is the key to its conversation, and the hash of a history confirms a guess at its text.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection
from typing import Final, TypeVar

from pydantic import BaseModel

# Every field of an answer that names a conversation or a place in the queue, or that can only be
# computed by those who know what was said.
MASKED_FIELDS: Final = frozenset(
    {"session_id", "current_session_id", "ticket_id", "cached_hash", "messages_hash"}
)
MASK_CHARS: Final = 8
KEY_BYTES: Final = 16

Answer = TypeVar("Answer", bound=BaseModel)


class Masks:
    """Stands one mask in for each id, the same one for as long as the gateway runs."""

    def __init__(self) -> None:
        """Draw the key, without which a mask confirms no guess."""
        self._key = secrets.token_bytes(KEY_BYTES)

    def mask(self, name: str) -> str:
        """Return what stands for an id; it cannot be taken for one: ids hold no ellipsis."""
        digest = hmac.digest(self._key, name.encode("utf-8", "surrogatepass"), "sha256")
        return f"…{digest.hex()[:MASK_CHARS]}"

    def masked(self, answer: Answer, own: Collection[str] = ()) -> Answer:
        """Return an answer for somebody who is no administrator.

        Args:
            answer: Of a route; its lists are masked too.
            own: Ids of the caller's own sessions, which stay readable.
        """
        fields = dict(answer)
        if fields.get("session_id") in own:
            return answer
        changes = {name: self._shown(name, value, own) for name, value in fields.items()}
        return answer.model_copy(update=changes)

    def _shown(self, name: str, value: object, own: Collection[str]) -> object:
        if isinstance(value, BaseModel):
            return self.masked(value, own)
        if isinstance(value, list):
            return [self._shown(name, one, own) for one in value]
        is_secret = name in MASKED_FIELDS and isinstance(value, str) and value != ""
        return self.mask(str(value)) if is_secret and value not in own else value
