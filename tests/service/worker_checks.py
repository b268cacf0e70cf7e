"""Checks of a worker's protocols: fields, recordings, one turn of a chat."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from core.serving.fake_backend import FakeTimes
from tests.service.workers import Client, Message, RunningWorker, soon

USER = {"role": "user", "content": "Hello, who are you?"}
TIMES = FakeTimes(prefill_ms=1, unit_ms=2, finalize_ms=1, piece_ms=1)


def check_fields(adapter: TypeAdapter[Any], messages: list[Message]) -> None:
    """Each message is valid and has every field of its type."""
    for message in messages:
        model = adapter.validate_python(message)
        assert set(message) == set(model.model_dump(mode="json"))


def data_dir(worker: RunningWorker) -> Path:
    recordings = worker.sessions.recordings
    assert recordings is not None
    return recordings.data_dir


async def recording(worker: RunningWorker, recording_id: str) -> Message:
    path = data_dir(worker) / "sessions" / recording_id / "recording.json"
    await soon(f"{path.name} is there", path.is_file)
    loaded: Message = json.loads(path.read_text(encoding="utf8"))
    return loaded


def total(turn: Message) -> int:
    return int(turn["done"]["token_stats"]["total_tokens"])


async def one_turn(
    client: Client, session_id: str, messages: list[Message], **fields: object
) -> Message:
    """Run one turn on a separate socket, as the gateway does."""
    async with client.talk("streaming", session_id) as talk:
        fed = await talk.ask("prefill", messages=messages, **fields)
        if fed["type"] != "prefill_done":
            return {"prefill": fed}
        await talk.say("generate", generate_audio=False)
        done = (await talk.hear_until("done"))[-1]
    await client.idle()  # the history is retained after that
    return {"prefill": fed, "done": done}
