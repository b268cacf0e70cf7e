"""Transcribers: what they answer, what they refuse, and what becomes of a process that fails."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from config import Settings
from core.audio import FloatArray
from core.errors import (
    ModelError,
    NotAvailableError,
    TranscriberBusyError,
    TranscriptionFailedError,
)
from core.schemas.worker import ModelFacts, ModelKind, TranscriptPassage
from core.serving import transcribers
from core.serving.fake_backend import FakeBackend, FakeChatView, FakeTimes, FakeTranscriber
from core.serving.transcribers import (
    ModelTranscriber,
    Waiting,
    WhisperTranscriber,
    transcribe_or_error,
    transcriber_beside,
)
from core.transcription import (
    DEFAULT_OPTIONS,
    MODEL_FILE,
    Transcript,
    TranscriptionOptions,
)
from tests.source_tree import ROOT
from tests.system.loops import in_loop

SECOND = np.zeros(16_000, np.float32)
# Answers as `core.whisper_program` does, without a model; a prompt may say how it fails.
SCRIPT = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from core.media_process import pack, unpack
while sys.stdin.buffer.peek(1):
    options, [sound] = unpack(sys.stdin.buffer)
    if options["prompt"] == "crash":
        os._exit(1)
    if options["prompt"] == "nonsense":
        sys.stdout.buffer.write(b"what?\\n")
        sys.stdout.buffer.flush()
        continue
    text = f"{{len(sound)}} bytes in {{os.getpid()}}"
    passages = [{{"start_s": 0.0, "end_s": 1.0, "text": text}}]
    pack(sys.stdout.buffer, {{"text": text, "language": "en", "passages": passages}}, [])
"""


def whisper_in(folder: Path) -> WhisperTranscriber:
    return WhisperTranscriber(folder, (sys.executable, "-c", SCRIPT))


def options(prompt: str = "") -> TranscriptionOptions:
    return TranscriptionOptions(prompt=prompt)


@in_loop
async def test_a_process_that_cannot_be_started_fails_its_request(tmp_path: Path) -> None:
    with pytest.raises(TranscriptionFailedError):
        await WhisperTranscriber(tmp_path, ("/no/such/program",)).transcribe(SECOND)


@in_loop
async def test_one_process_answers_every_request_and_is_replaced_when_it_fails(
    tmp_path: Path,
) -> None:
    whisper = whisper_in(tmp_path)
    first, second = await whisper.transcribe(SECOND), await whisper.transcribe(SECOND)
    assert first.text == second.text and first.text.startswith("64000 bytes")
    assert first.language == "en"
    assert first.passages == (TranscriptPassage(start_s=0.0, end_s=1.0, text=first.text),)
    for prompt in ("crash", "nonsense"):
        with pytest.raises(TranscriptionFailedError):
            await whisper.transcribe(SECOND, options(prompt))
        again = await whisper.transcribe(SECOND)
        assert again.text != first.text, "another process"
    whisper.close()
    with pytest.raises(TranscriptionFailedError, match="shutting down"):
        await whisper.transcribe(SECOND)


def test_what_waits_is_bounded_and_the_newest_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcribers, "WAITING_MAX", 2)
    monkeypatch.setattr(transcribers, "WAITING_MAX_S", 3.0)
    waiting = Waiting()
    with waiting.place(SECOND):
        with waiting.place(SECOND), pytest.raises(TranscriberBusyError), waiting.place(SECOND):
            pass
        with pytest.raises(TranscriberBusyError), waiting.place(np.tile(SECOND, 3)):
            pass
    with waiting.place(np.tile(SECOND, 9)), pytest.raises(TranscriberBusyError):
        with waiting.place(SECOND):
            pass
    with waiting.place(SECOND), waiting.place(SECOND):
        pass


@in_loop
async def test_a_request_that_was_given_up_leaves_its_place(tmp_path: Path) -> None:
    transcriber = whisper_in(tmp_path)
    asked = [asyncio.create_task(transcriber.transcribe(SECOND)) for _ in range(4)]
    await asyncio.sleep(0)
    asked[3].cancel()
    done = await asyncio.gather(*asked, return_exceptions=True)
    assert [isinstance(each, BaseException) for each in done] == [False] * 3 + [True]
    transcriber.close()
    with pytest.raises(TranscriptionFailedError):
        await transcriber.transcribe(SECOND)


class BrokenTranscriber(FakeTranscriber):
    """Fails unexpectedly."""

    async def transcribe(
        self, samples: FloatArray, options: TranscriptionOptions = DEFAULT_OPTIONS
    ) -> Transcript:
        raise RuntimeError("secret of the machine")


class SilentTranscriber(FakeTranscriber):
    """Never answers."""

    async def transcribe(
        self, samples: FloatArray, options: TranscriptionOptions = DEFAULT_OPTIONS
    ) -> Transcript:
        await asyncio.Event().wait()
        raise AssertionError


@in_loop
async def test_a_conversation_never_fails_because_of_a_transcript(tmp_path: Path) -> None:
    failures: list[None] = []

    def count() -> None:
        failures.append(None)

    _, late = await transcribe_or_error(SilentTranscriber(), SECOND.tobytes(), count, limit_s=0.01)
    assert isinstance(late, TranscriptionFailedError)
    whisper = whisper_in(tmp_path)
    whisper.close()
    _, broken = await transcribe_or_error(whisper, SECOND.tobytes(), count)
    assert isinstance(broken, TranscriptionFailedError)
    assert not failures
    _, failed = await transcribe_or_error(BrokenTranscriber(), SECOND.tobytes(), count)
    assert len(failures) == 1, "the device is not checked"
    assert isinstance(failed, TranscriptionFailedError) and "secret" not in failed.message
    _, none = await transcribe_or_error(None, SECOND.tobytes(), count)
    assert isinstance(none, NotAvailableError)


@in_loop
async def test_the_model_is_asked_with_its_transcription_prompt() -> None:
    views: list[FakeChatView] = []

    def open_view() -> FakeChatView:
        # No session and no threads: one request at once.
        views.append(FakeChatView(FakeTimes(), None))  # type: ignore[arg-type]
        return views[-1]

    transcript = await ModelTranscriber(open_view).transcribe(SECOND, options("Names: Ada."))
    said = views[0]._lines[0]
    assert "transcribe the content" in said and "Names: Ada." in said and "audio" in said
    assert transcript.text.startswith("This is a fixed answer")
    assert transcript.passages == (TranscriptPassage(start_s=0.0, end_s=1.0, text=transcript.text),)


@pytest.mark.parametrize("length_s", [520, 610])  # a longer text, and longer audio, than allowed
@in_loop
async def test_the_model_transcribes_long_speech_in_parts(length_s: int) -> None:
    transcriber = ModelTranscriber(lambda: FakeChatView(FakeTimes(), None))  # type: ignore[arg-type]
    transcript = await transcriber.transcribe(np.zeros(16_000 * length_s, np.float32))
    first, second = transcript.passages
    assert (first.start_s, first.end_s) == (0.0, length_s / 2)
    assert (second.start_s, second.end_s) == (length_s / 2, length_s)
    assert transcript.text == f"{first.text} {second.text}"


def chosen(by: str, kind: ModelKind, folder: Path) -> str | None:
    wanted = Settings.model_validate({"transcription": {"by": by}}).transcription
    facts = ModelFacts(name="", kind=kind, device="cpu")
    loaded: Any = FakeBackend() if kind is ModelKind.FAKE else SimpleNamespace(facts=lambda: facts)
    made = transcriber_beside(loaded, wanted.by, folder)
    if made is not None:
        made.close()
    return None if made is None else made.kind


def test_the_settings_choose_the_transcriber(tmp_path: Path) -> None:
    there, missing = tmp_path / "there", tmp_path / "missing"
    there.mkdir()
    (there / MODEL_FILE).write_bytes(b"")
    assert chosen("auto", ModelKind.NANO, there) == "whisper"
    assert chosen("auto", ModelKind.FULL, there) == "whisper"
    assert chosen("auto", ModelKind.FULL, missing) == "model"
    assert chosen("auto", ModelKind.NANO, missing) is None
    assert chosen("model", ModelKind.NANO, there) == "model"
    assert chosen("none", ModelKind.FULL, there) is None
    assert chosen("whisper", ModelKind.FULL, there) == "whisper"
    assert chosen("auto", ModelKind.FAKE, missing) == "whisper"
    assert chosen("none", ModelKind.FAKE, missing) is None
    with pytest.raises(ModelError, match="whisper_assets"):
        chosen("whisper", ModelKind.FULL, missing)
