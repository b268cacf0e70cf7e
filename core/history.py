"""Pure: the canonical form of a conversation's history and its SHA-256, the key of KV caches.

Gateway and worker must agree on it, so both use this module.
"""

from __future__ import annotations

import binascii
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from core.schemas.common import Message
from core.schemas.streaming import Prefill

RawMessage = Message | Mapping[str, object]
"""A parsed message, or the `{role, content}` object a client sent."""

Value = Callable[[str], Iterable[str]]
"""Returns what a string of a message stands for, in parts."""

DEFAULT_STACK_FRAMES = 1  # default of a video item
BASE64_GROUP_CHARS: Final = 4  # encode three bytes


def itself(string: str) -> list[str]:
    return [string]


@dataclass(frozen=True)
class CacheOptions:
    """Settings that affect the content of the KV cache, and are part of its key.

    None is the worker's default.
    """

    omni_mode: bool | None = None
    use_tts_template: bool | None = None
    enable_thinking: bool = False
    max_slice_nums: int | None = None

    @classmethod
    def of(cls, prefill: Prefill) -> CacheOptions:
        return cls(
            omni_mode=prefill.omni_mode,
            use_tts_template=prefill.use_tts_template,
            enable_thinking=prefill.enable_thinking,
            max_slice_nums=prefill.slice_limit,
        )


def compute_history_hash(
    messages: Sequence[RawMessage], options: CacheOptions | None = None, value: Value = itself
) -> str:
    """Hash a history, so that equivalent spellings have equal hashes.

    A content string equals one text item, empty text items do not count, and media are compared by
    their bytes, not by their Base64, whose parts `value` returns. The hash has 64 hexadecimal
    digits; that of an empty history is "", which matches nothing.

    Source: docs/specification/service.md#2.3.3.
    """
    if not messages:
        return ""
    canonical: object = [_canonical_message(message, value) for message in messages]
    if options is not None and options != CacheOptions():
        canonical = {"messages": canonical, "options": asdict(options)}
    text = json.dumps(canonical, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    # A lone surrogate is legal in a JSON string and must not end a conversation.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def canonical_history(messages: Sequence[RawMessage]) -> list[RawMessage]:
    """Return the small canonical form of a history, which has the same hash."""
    return [_canonical_message(message, itself) for message in messages]


def request_history_hash(
    messages: Sequence[RawMessage], options: CacheOptions | None = None, value: Value = itself
) -> str:
    """Hash the history before the new user message; "" if the last message is not a user's."""
    if not messages or _as_mapping(messages[-1]).get("role") != "user":
        return ""
    return compute_history_hash(messages[:-1], options, value)


def next_history_hash(
    messages: Sequence[RawMessage],
    reply: str,
    options: CacheOptions | None = None,
    value: Value = itself,
) -> str:
    """Hash the history of the next turn: this request and its reply."""
    said = {"role": "assistant", "content": reply}
    return compute_history_hash([*messages, said], options, value)


def _as_mapping(message: RawMessage) -> Mapping[str, object]:
    return message.model_dump(mode="json") if isinstance(message, Message) else message


def _canonical_message(message: RawMessage, value: Value) -> dict[str, object]:
    raw = _as_mapping(message)
    content = raw.get("content")
    items: Iterable[object]
    if isinstance(content, str):
        items = [{"type": "text", "text": content}]
    else:
        items = content if isinstance(content, Sequence) else []
    canonical = [_canonical_item(item, value) for item in items]
    return {"role": raw.get("role"), "content": [item for item in canonical if item is not None]}


def _canonical_item(item: object, value: Value) -> object:
    if not isinstance(item, Mapping):
        return item
    kind = item.get("type")
    if kind == "text":
        return {"type": kind, "text": item.get("text")} if item.get("text") else None
    media = item.get("data")
    if not isinstance(media, str):
        return dict(item)
    canonical: dict[str, object] = {"type": kind, "sha256": _media_hash(media, value)}
    if kind == "video":
        canonical["stack_frames"] = item.get("stack_frames", DEFAULT_STACK_FRAMES)
    return canonical


def _media_hash(encoded: str, value: Value) -> str:
    """Hash the bytes of a medium, or its characters if they are no Base64."""
    digest, waiting = hashlib.sha256(), ""
    try:
        for part in value(encoded):  # which may end anywhere in a group
            waiting += "".join(part.split())
            end = len(waiting) - len(waiting) % BASE64_GROUP_CHARS
            digest.update(binascii.a2b_base64(waiting[:end]))
            waiting = waiting[end:]
        digest.update(binascii.a2b_base64(waiting))
    except ValueError:
        digest = hashlib.sha256()
        for part in value(encoded):
            digest.update(part.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
