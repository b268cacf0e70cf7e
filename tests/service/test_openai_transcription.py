"""`POST /v1/audio/transcriptions` as OpenAI's own client uses it, unmodified."""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np
import openai
import pytest
from openai import AsyncOpenAI

from benchmarks.interruption import read_speech
from core.audio import FloatArray, resample
from core.errors import GenerationFailedError, NotAvailableError
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, JSON_VALUES_MAX, OUTPUT_SAMPLE_RATE_HZ
from core.schemas.worker import TranscriptPassage
from core.serving.fake_backend import FakeBackend, FakeTranscriber
from core.serving.routes import transcription
from core.serving.runtime import WorkerRuntime
from core.serving.transcribers import passages_of
from core.transcription import DEFAULT_OPTIONS, Transcript, TranscriptionOptions
from core.vad import SileroVad
from gateway_modules.queue.worker_connection import WorkerConnection
from recording.folder import wav_header
from tests.fakes.gateway_stage import Stage, on_stage, until
from tests.fakes.pools import new_ticket
from tests.service.test_openai_chat import client_of, wav

FILE = ("said.wav", base64.b64decode(wav(1.5)))
LINES = (
    {"start_s": 0.0, "end_s": 0.5, "text": "Hello", "language": "en"},
    {"start_s": 0.5, "end_s": 61.25, "text": "there.", "language": "en"},
)


async def able(stage: Stage, by: str = "whisper") -> AsyncOpenAI:
    stage.worker.script.transcript = LINES
    stage.worker.script.health = {"transcribes_by": by}
    workers = stage.gateway.pool.workers.values()

    def kinds() -> set[str | None]:
        return {each.service.latest.transcribes_by for each in workers if each.service.latest}

    for worker in workers:
        stage.gateway.pool.directory.recheck(worker)
    await until(lambda: by in kinds())
    return client_of(stage)


@on_stage()
async def test_a_recording_is_transcribed_in_every_format(stage: Stage) -> None:
    async with await able(stage) as client:
        create = client.audio.transcriptions.create
        plain = await create(
            model="whisper-1", file=FILE, language="en", prompt="Ada", temperature=0.2
        )
        assert plain.text == "Hello there."
        assert plain.usage is not None and plain.usage.type == "duration"
        assert plain.usage.seconds == 1.5
        told = stage.worker.queries[-1]
        assert told == {"language": "en", "prompt": "Ada", "temperature": "0.2", "bytes": "96000"}
        full = await create(model="x", file=FILE, response_format="verbose_json")
        assert (full.language, full.duration, full.text) == ("en", 1.5, "Hello there.")
        assert full.segments is not None
        assert [(s.id, s.start, s.end, s.text) for s in full.segments] == [
            (0, 0.0, 0.5, "Hello"),
            (1, 0.5, 61.25, "there."),
        ]
        assert await create(model="x", file=FILE, response_format="text") == "Hello there.\n"
        first = "00:00:00,000 --> 00:00:00,500\nHello\n"
        assert await create(model="x", file=FILE, response_format="srt") == (
            f"1\n{first}\n2\n00:00:00,500 --> 00:01:01,250\nthere.\n"
        )
        vtt: Any = await create(model="x", file=FILE, response_format="vtt")
        assert vtt.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:00.500\nHello\n")


@on_stage()
async def test_the_bytes_of_a_recording_are_not_counted_as_values_of_json(stage: Stage) -> None:
    samples = b"," * 2 * JSON_VALUES_MAX
    file = ("commas.wav", wav_header(16_000, 1, len(samples)) + samples)
    async with await able(stage) as client:
        answer = await client.audio.transcriptions.create(model="x", file=file)
    assert answer.text == "Hello there."


@on_stage()
async def test_webvtt_markup_is_escaped(stage: Stage) -> None:
    async with await able(stage) as client:
        stage.worker.script.transcript = ({"start_s": 0.0, "end_s": 1.0, "text": "R&B <b> -->"},)
        create = client.audio.transcriptions.create
        vtt: Any = await create(model="x", file=FILE, response_format="vtt")
        assert vtt.endswith("\nR&amp;B &lt;b&gt; --&gt;\n")


@on_stage(decodes_apart=True)
async def test_a_stream_sends_each_passage_and_then_the_whole_text(stage: Stage) -> None:
    async with await able(stage) as client:
        stream = await client.audio.transcriptions.create(model="x", file=FILE, stream=True)
        events = [event async for event in stream]
    assert [event.type for event in events] == ["transcript.text.delta"] * 2 + [
        "transcript.text.done"
    ]
    assert "".join(event.delta for event in events[:2]) == events[2].text == "Hello there."  # type: ignore[union-attr]


@on_stage()
async def test_the_model_queues_and_whisper_does_not(
    stage: Stage,
) -> None:
    async with await able(stage, by="model") as client:
        create = client.audio.transcriptions.create
        before = stage.worker.queries.copy()
        with stage.gateway.pool.enqueue(new_ticket("chat", "another")) as ticket:
            await ticket.wait(_never, 1.0)
            asked = asyncio.create_task(create(model="x", file=FILE))
            await until(lambda: stage.gateway.pool.queue_length == 1)
            assert stage.worker.queries == before
        assert (await asked).text == "Hello there."
        await able(stage)
        with stage.gateway.pool.enqueue(new_ticket("chat", "another")) as ticket:
            await ticket.wait(_never, 1.0)
            assert (await create(model="x", file=FILE)).text == "Hello there."


@on_stage(workers=2)
async def test_a_draining_worker_gets_no_recording_to_transcribe(stage: Stage) -> None:
    pool, idle = stage.gateway.pool, stage.workers[0]
    for fake in stage.workers:
        fake.script.transcript, fake.script.health = LINES, {"transcribes_by": "whisper"}
    draining, busy = pool.workers.values()
    await until(lambda: all(_has_whisper(worker) for worker in (draining, busy)))
    pool.drain_worker(draining)
    with pool.enqueue(new_ticket("chat", "another")) as ticket:
        assert await ticket.wait(_never, 1.0) is busy
        async with client_of(stage) as client:
            transcript = await client.audio.transcriptions.create(model="x", file=FILE)
    assert transcript.text == "Hello there."
    assert idle.queries == []


@on_stage()
async def test_a_stop_of_the_gateway_lets_a_transcript_finish(stage: Stage) -> None:
    may_end = asyncio.Event()

    async def transcribe(*_: object) -> AsyncGenerator[TranscriptPassage]:
        await may_end.wait()
        yield TranscriptPassage(start_s=0.0, end_s=0.5, text="Hello there.")

    vars(stage.gateway.pool.client)["transcribe"] = transcribe
    async with await able(stage) as client:
        asked = asyncio.create_task(client.audio.transcriptions.create(model="x", file=FILE))
        await until(lambda: stage.gateway.transcriptions.held)
        drain = asyncio.create_task(stage.gateway.drain(600.0))
        finished, _ = await asyncio.wait({drain}, timeout=0.5)
        assert not finished
        may_end.set()
        assert (await asked).text == "Hello there."
        await drain


def _has_whisper(worker: WorkerConnection) -> bool:
    latest = worker.service.latest
    return latest is not None and latest.transcribes_by == "whisper"


async def _never(ticket: object) -> None:
    """Go on waiting."""


@on_stage()
async def test_errors_name_the_field(stage: Stage) -> None:
    async with client_of(stage) as client:
        with pytest.raises(openai.APIStatusError) as none:
            await client.audio.transcriptions.create(model="x", file=FILE)
        assert (none.value.status_code, none.value.code) == (501, "not_available")
    async with await able(stage) as client:
        create = client.audio.transcriptions.create
        for fields, named in (
            ({"response_format": "diarized_json"}, "response_format"),
            ({"temperature": 3}, "temperature"),
            ({"language": "x"}, "language"),
        ):
            wrong: Any = {"model": "x", "file": FILE, **fields}
            with pytest.raises(openai.BadRequestError, match=named):
                await create(**wrong)
        with pytest.raises(openai.APIStatusError, match="sound|audio|decoded") as useless:
            await create(model="x", file=("noise.wav", b"no sound at all"))
        assert (useless.value.param, useless.value.code) == ("file", "bad_audio")
        answer = await stage.http.post("/v1/audio/transcriptions", data={"model": "x"})
        fault = answer.json()["error"]
        assert (fault["param"], fault["code"]) == ("file", "missing_required_parameter")
        stage.worker.script.transcript = (*LINES[:1], {"problem": "It broke."})
        with pytest.raises(openai.InternalServerError, match="It broke"):
            await create(model="x", file=FILE)


def test_a_worker_transcribes_a_recording_and_reports_failures() -> None:
    async def talk() -> None:
        runtime = WorkerRuntime(FakeBackend, 1, make_transcriber=lambda backend: FakeTranscriber())
        silence = np.zeros(16_000, "<f4").tobytes()
        with pytest.raises(NotAvailableError):
            await transcription(runtime, silence, DEFAULT_OPTIONS)
        await runtime.load()
        assert runtime.health().transcribes_by == "whisper"
        answer = await transcription(runtime, silence, DEFAULT_OPTIONS)
        assert [line async for line in answer.body_iterator] == [], "nobody speaks"
        runtime.close()

    asyncio.run(talk())


def test_an_unexpected_failure_of_a_transcriber_is_reported_and_counted() -> None:
    class Broken(FakeTranscriber):
        calls = 0

        async def transcribe(
            self, samples: FloatArray, options: TranscriptionOptions = DEFAULT_OPTIONS
        ) -> Transcript:
            self.calls += 1
            if self.calls == 2:
                return await super().transcribe(samples, options)
            raise RuntimeError("secret of the machine")

    async def talk() -> None:
        runtime = WorkerRuntime(FakeBackend, 1, make_transcriber=lambda backend: Broken())
        await runtime.load()
        said = resample(read_speech(), OUTPUT_SAMPLE_RATE_HZ, INPUT_SAMPLE_RATE_HZ)
        pause = np.zeros(INPUT_SAMPLE_RATE_HZ, np.float32)
        sound = np.concatenate([said, pause, said]).astype("<f4").tobytes()
        with pytest.raises(GenerationFailedError):
            await transcription(runtime, sound, DEFAULT_OPTIONS)
        assert runtime.threads.failures == 1, "the device will be checked"
        answer = await transcription(runtime, sound, DEFAULT_OPTIONS)
        *_, last = [line async for line in answer.body_iterator]
        assert "problem" in str(last) and "secret" not in str(last)
        assert runtime.threads.failures == 2
        runtime.close()

    asyncio.run(talk())


def test_no_passage_is_longer_than_its_speech() -> None:
    """Whisper's window of 30 s may end a passage after the audio."""

    class Late(FakeTranscriber):
        async def transcribe(
            self, samples: FloatArray, options: TranscriptionOptions = DEFAULT_OPTIONS
        ) -> Transcript:
            passage = TranscriptPassage(start_s=0.0, end_s=30.0, text="Hello.")
            return Transcript("Hello.", "en", (passage,))

    async def found() -> list[TranscriptPassage]:
        said = resample(read_speech(), OUTPUT_SAMPLE_RATE_HZ, INPUT_SAMPLE_RATE_HZ)
        sound = np.concatenate([said, np.zeros(INPUT_SAMPLE_RATE_HZ, np.float32), said])
        return [passage async for passage in passages_of(Late(), SileroVad(), sound)]

    passages = asyncio.run(found())
    assert len(passages) > 1
    for first, second in itertools.pairwise(passages):
        assert first.start_s < first.end_s <= second.start_s


@on_stage()
async def test_one_client_leaves_the_transcriber_to_others(stage: Stage) -> None:
    """Conversations may share it, and its queue is short."""
    held = stage.gateway.transcriptions
    async with await able(stage) as client:
        mine = held.lease("203.0.113.9")
        mine.add(held.per_client)
        client = client.with_options(max_retries=0)
        create = client.audio.transcriptions.create
        with pytest.raises(openai.RateLimitError):
            await create(model="x", file=FILE, extra_headers={"X-Forwarded-For": "203.0.113.9"})
        elsewhere = {"X-Forwarded-For": "203.0.113.10"}
        assert (await create(model="x", file=FILE, extra_headers=elsewhere)).text == "Hello there."
    mine.release()
    assert held.held == 0
