"""The fields of every message the published protocol lists, with their types and ranges.

Written from the protocol, not from the server's models.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from tests.system.client import Message, from_base64

OUTPUT_RATE_HZ = 24_000
CLOCK_TOLERANCE_S = 60.0

# Any: a field's content, as JSON has it.
Check = Callable[[Any], bool]


def text(value: Any) -> bool:
    return isinstance(value, str)


def name(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def secret(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 32 and int(value, 16) >= 0


def flag(value: Any) -> bool:
    return isinstance(value, bool)


def count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def positive(value: Any) -> bool:
    return count(value) and value >= 1


def amount(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value >= 0


def sound(value: Any) -> bool:
    return text(value) and bool((abs(from_base64(value)) <= 1.0).all())


def unix_time(value: Any) -> bool:
    return amount(value) and abs(value - time.time()) < CLOCK_TOLERANCE_S


def or_null(check: Check) -> Check:
    return lambda value: value is None or check(value)


def exactly(*values: Any) -> Check:
    return lambda value: value in values


def stats(value: Any) -> bool:
    names = {"cached_tokens", "input_tokens", "generated_tokens", "total_tokens"}
    return isinstance(value, dict) and value.keys() == names and all(map(count, value.values()))


PLACE: dict[str, Check] = {
    "ticket_id": name,
    "position": positive,
    "estimated_wait_s": amount,
    "eta_seconds": amount,
    "queue_length": positive,
}
CHUNK: dict[str, Check] = {
    "chunk_index": count,
    "text_delta": or_null(text),
    "audio_data": or_null(sound),
    "audio_sample_rate": exactly(OUTPUT_RATE_HZ),
    "is_final": flag,
    "duration_ms": amount,
}
STOPPED: dict[str, Check] = {"session_id": name, "recording_session_id": or_null(name)}
COMMON: dict[str, dict[str, Check]] = {
    "queued": PLACE | {"session_secret": secret, "return_ticket": name},
    "queue_update": PLACE | {"return_ticket": name},
    "queue_done": {"worker_id": name, "position": exactly(0), "session_secret": secret},
    "error": {"error": name, "message": name, "code": name, "fatal": exactly(True)},
    "warning": {"code": name, "message": name},
}
STREAMING: dict[str, dict[str, Check]] = COMMON | {
    "prefill_done": {
        "cached_tokens": count,
        "input_tokens": positive,
        "message_count": positive,
        "prompt_length": positive,
        "cache_hit": flag,
        "recording_session_id": or_null(name),
    },
    "chunk": CHUNK,
    "done": {
        "session_id": name,
        "text": text,
        "elapsed_ms": amount,
        "stopped": flag,
        "token_stats": stats,
        "recording_session_id": or_null(name),
    },
}
HALF_DUPLEX: dict[str, dict[str, Check]] = COMMON | {
    "prepared": {
        "session_id": name,
        "timeout_s": amount,
        "recording_session_id": or_null(name),
        "session_secret": secret,
    },
    "vad_state": {"speaking": flag},
    "generating": {"speech_duration_ms": positive},
    "chunk": CHUNK,
    "turn_done": {
        "turn_index": count,
        "text": text,
        "interrupted": flag,
        "elapsed_ms": amount,
        "kv_cache_length": count,
        "token_stats": stats,
    },
    "timeout": {"elapsed_s": amount, "reason": exactly("inactivity", "max_session")},
    "stopped": STOPPED,
}
DUPLEX: dict[str, dict[str, Check]] = COMMON | {
    "prepared": {
        "prompt_length": positive,
        "prompt_tokens": positive,
        "recording_session_id": or_null(name),
        "session_id": name,
        "session_secret": secret,
        "chunk_ms": exactly(1_000),
        "max_kv_tokens": positive,
        "pause_timeout": amount,
    },
    "result": {
        "is_listen": flag,
        "text": text,
        "audio_data": sound,
        "end_of_turn": flag,
        "current_time": positive,
        "cost_llm_ms": amount,
        "cost_read_ms": amount,
        "cost_tts_ms": amount,
        "cost_tts_prep_ms": or_null(amount),
        "cost_token2wav_ms": or_null(amount),
        "cost_all_ms": amount,
        "n_tokens": count,
        "n_tts_tokens": count,
        "server_send_ts": unix_time,
        "wall_clock_ms": amount,
        "prefill_ms": amount,
        "kv_cache_length": positive,
        "vision_slices": count,
        "vision_tokens": count,
        "turn_id": count,
        "step": count,
        "barge_in": flag,
    },
    "paused": {"timeout": amount},
    "resumed": {},
    "interrupted": {},
    "stopped": STOPPED,
    "timeout": {
        "reason": exactly("pause", "max_session", "inactivity"),
        "elapsed_s": amount,
        "session_id": name,
    },
}
NO_RETURN = {"return_ticket": exactly("")}  # the next socket has another session id
CHAT: dict[str, dict[str, Check]] = COMMON | {
    "queued": COMMON["queued"] | NO_RETURN,
    "queue_update": COMMON["queue_update"] | NO_RETURN,
    "prefill_done": {"input_tokens": positive},
    "chunk": {"text_delta": or_null(text), "audio_data": or_null(sound)},
    "done": {
        "text": text,
        "generated_tokens": count,
        "input_tokens": count,
        "stopped": flag,
        "audio_data": or_null(sound),
        "recording_session_id": or_null(name),
    },
}


def offences(messages: list[Message], shapes: dict[str, dict[str, Check]]) -> list[str]:
    """Return what in some messages is not as the protocol says."""
    found = []
    for message in messages:
        kind = message["type"]
        if kind not in shapes:
            found.append(f"{kind} is no message of this protocol")
            continue
        fields = {key: value for key, value in message.items() if key != "type"}
        if fields.keys() != shapes[kind].keys():
            found.append(f"{kind}: fields differ: {sorted(fields.keys() ^ shapes[kind].keys())}")
        for key in fields.keys() & shapes[kind].keys():
            if not shapes[kind][key](fields[key]):
                found.append(f"{kind}.{key} = {str(fields[key])[:60]!r}")
    return found
