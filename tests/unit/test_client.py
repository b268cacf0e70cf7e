"""The Python client without a server: inbox, audio and messages."""

from __future__ import annotations

import asyncio
import ctypes
import json
import socket
import subprocess
import sys
import threading
import wave
from array import array
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from core.schemas import half_duplex
from minicpmo_live import (
    AsyncClient,
    Client,
    LiveError,
    ProtocolError,
    SoundError,
    events,
    read_wav,
)
from minicpmo_live.blocking import Chat, _iterates
from minicpmo_live.link import (
    INBOX_EVENTS,
    SEND_LIMIT_S,
    Address,
    Inbox,
    TimedConnection,
    _build,
    _parse,
)
from minicpmo_live.sessions import MS_PER_S, AsyncChat
from minicpmo_live.sound import INPUT_RATE_HZ, float_samples, to_base64
from tests.fakes.full_buffer import with_a_full_buffer
from tests.fakes.virtual_time import in_virtual_time
from tests.source_tree import ROOT

HEAVY = ("torch", "numpy", "pydantic", "fastapi", "core")
PLACE: dict[str, Any] = {
    "estimated_wait_s": 1.0,
    "eta_seconds": 1.0,
    "queue_length": 3,
    "return_ticket": "",
}
RESULT = _build(events.Result, dict.fromkeys([field.name for field in fields(events.Result)], 0))


def test_it_imports_nothing_heavy() -> None:
    program = f"import sys, minicpmo_live; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@in_virtual_time
async def test_a_full_inbox_holds_its_reader_back() -> None:
    inbox: Inbox[int] = Inbox()
    for number in range(INBOX_EVENTS):
        await inbox.put(number)
    late = asyncio.create_task(inbox.put(INBOX_EVENTS))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not late.done()
    assert await inbox.get() == 0
    await late
    assert [await inbox.get() for _ in range(INBOX_EVENTS)] == list(range(1, INBOX_EVENTS + 1))


@in_virtual_time
async def test_a_newer_queue_position_replaces_an_older_one() -> None:
    inbox: Inbox[Any] = Inbox()
    for position in range(2 * INBOX_EVENTS, 0, -1):
        await inbox.put(events.QueueUpdate("queue_update", "t", position=position, **PLACE))
    await inbox.end(LiveError("over"))
    newest = await inbox.get()
    assert newest is not None and newest.position == 1
    with pytest.raises(LiveError, match="over"):
        await inbox.get()
    assert await inbox.get() is None


PCM = array("h", [0, 16_384, -32_768])
FLOATS = [0.0, 0.5, -1.0]


@pytest.mark.parametrize(
    "sound",
    [
        PCM,
        PCM.tobytes(),
        bytearray(PCM.tobytes()),
        array("f", FLOATS),
        np.array(FLOATS, np.float32),
        (ctypes.c_int16 * len(PCM))(*PCM),
        (ctypes.c_float * len(FLOATS))(*FLOATS),
    ],
    ids=lambda sound: type(sound).__name__,
)
def test_audio_of_each_type_is_converted_alike(sound: Any) -> None:
    samples = float_samples(sound)
    assert list(samples) == FLOATS
    assert to_base64(samples) == "AAAAAAAAAD8AAIC/"


@pytest.mark.parametrize(
    ("sound", "why"),
    [
        (np.zeros(3), "format 'd'"),
        (np.zeros((2, 2), np.float32), "mono"),
        (np.zeros(4, np.float32)[::2], "one contiguous row"),
        (b"123", "even number"),
        (Path("hello.wav"), "read_wav"),
    ],
)
def test_other_audio_is_refused(sound: Any, why: str) -> None:
    with pytest.raises(SoundError, match=why):
        float_samples(sound)


def test_a_file_of_another_rate_is_refused(tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(44_100)
    with pytest.raises(SoundError, match="44100 Hz; the server needs 16 bit, mono, 16000 Hz"):
        read_wav(tmp_path / "a.wav")


@pytest.mark.parametrize("content", [b"", b"RIFF", b"no WAV file, but longer than its header"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(SoundError, match=r"a\.wav: .*; the server needs 16 bit"):
        read_wav(tmp_path / "a.wav")


@pytest.mark.parametrize(
    "url",
    ["localhost:8006", "http://:8006", "http://[::1", "http://host:80O6", "http://host:99999"],
)
def test_what_is_no_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(LiveError, match="is not an address like"):
        Client(url)


def test_a_session_that_is_not_open_says_so_instead_of_waiting() -> None:
    call, chat = Client().duplex(), Client().chat()
    with pytest.raises(LiveError, match="inside a `with` statement"):
        call.send_audio(PCM)
    with pytest.raises(LiveError, match="inside a `with` statement"):
        list(chat.ask("Hello?"))
    with chat, pytest.raises(LiveError, match="open already"):
        chat.__enter__()
    with pytest.raises(LiveError, match="inside a `with` statement"):
        list(chat.ask("Hello?"))


async def test_sound_for_a_session_that_is_not_open_is_refused_instead_of_waiting() -> None:
    with pytest.raises(LiveError, match="inside an `async with` statement"):
        await AsyncClient("http://localhost:1").duplex().send_audio(np.zeros(16_000, np.float32))


def test_closing_a_session_ends_the_wait_of_another_thread() -> None:
    problems: list[LiveError] = []

    def ask(chat: Any) -> None:
        try:
            list(chat.ask("Hello?"))
        except LiveError as error:
            problems.append(error)

    with socket.create_server(("127.0.0.1", 0)) as mute:
        with Client(f"http://127.0.0.1:{mute.getsockname()[1]}").chat() as chat:
            asking = threading.Thread(target=ask, args=(chat,), daemon=True)
            asking.start()
            accepted, _ = mute.accept()  # the handshake has begun, and gets no reply
        asking.join(10)
        accepted.close()
    assert not asking.is_alive()
    assert [str(problem) for problem in problems] == ["another thread has closed the session"]


def test_an_iterator_that_is_interrupted_is_closed_once_its_last_step_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_begun, ends = threading.Event(), list[str]()

    class Session(AsyncChat):
        async def wait(self) -> AsyncGenerator[None, None]:
            try:
                has_begun.set()
                await asyncio.Event().wait()
                yield
            finally:
                for _ in range(1_000):
                    await asyncio.sleep(0)
                ends.append("wait")

    class Waiting(Chat):
        wait = _iterates(Session.wait)

    def interrupted(*_: Any) -> None:
        """Do what Ctrl-C does to a thread that waits for an event."""
        has_begun.wait()
        monkeypatch.undo()
        raise KeyboardInterrupt

    with Waiting(Session(Address("ws://nowhere"), {})) as chat:
        monkeypatch.setattr(Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(chat.wait())
        assert ends == ["wait"]


def test_a_long_recording_is_sent_no_further_ahead_than_the_server_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call, slept_s, sent = AsyncClient().half_duplex(), list[float](), list[Any]()

    async def sleep(delay_s: float) -> None:
        slept_s.append(delay_s)

    async def send(message: Any) -> bool:
        sent.append(message)
        return True

    monkeypatch.setattr(call._link, "send", send)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    call._prepared.set()
    asyncio.run(call._send_ahead(array("f", [0.0]) * 16_000 * 30))
    assert len(sent) == 60
    assert slept_s[:40] == [0.0] * 40 and max(slept_s) == pytest.approx(9.5, abs=0.5)


def test_a_recording_begins_after_the_half_second_that_the_server_ignores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call, sent = AsyncClient().half_duplex(), list[Any]()

    async def send_audio(sound: Any) -> bool:
        sent.append(sound)
        return True

    async def play() -> None:
        playing = call.play(array("f", [0.5]) * 16_000, rest_s=0)
        first = asyncio.create_task(anext(playing))
        for _ in range(100):  # every piece is sent at once
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])

    monkeypatch.setattr(call, "send_audio", send_audio)
    call._prepared.set()
    asyncio.run(play())
    ignored = half_duplex.COLD_START_MS * INPUT_RATE_HZ // MS_PER_S
    assert sum(sent, array("f")) == array("f", [0.0] * ignored + [0.5] * 16_000)


@in_virtual_time
async def test_a_recording_that_is_paused_on_a_result_goes_on_after_the_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call, sent = AsyncClient().duplex(), list[str]()
    answers: dict[str, Any] = {
        "pause": events.Paused("paused", 5.0),
        "resume": events.Resumed("resumed"),
    }

    async def send(message: dict[str, Any]) -> bool:
        """A server that drops what is sent during a pause."""
        kind = message["type"]
        is_dropped = sent.count("pause") > sent.count("resume") and kind == "audio_chunk"
        sent.append(kind)
        if kind == "audio_chunk" and not is_dropped:
            await call._link.inbox.put(RESULT)
        elif kind in answers:
            await call._link.inbox.put(answers[kind])
        return True

    monkeypatch.setattr(call._link, "send", send)
    call._prepared.set()
    await call._link.inbox.put(RESULT)  # in place of `prepared`
    seen = list[str]()
    async with asyncio.timeout(60.0):
        async for event in call.play(array("f", [0.5]) * 32_000, rest_s=0):
            seen.append(type(event).__name__)
            if seen == ["Result", "Result"]:
                await call.pause()
            if isinstance(event, events.Paused):
                await call.resume()
        assert seen == ["Result", "Result", "Paused", "Resumed", "Result"]
        assert sent == ["audio_chunk", "pause", "resume", "audio_chunk"]
        again = [event async for event in call.play(array("f", [0.5]) * 16_000, rest_s=0)]
    assert again == [RESULT], "another recording of the same session"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"type": 1}', "hello", b"\xff"])
def test_invalid_messages_are_refused(text: str | bytes) -> None:
    with pytest.raises(ProtocolError, match="not a message"):
        _parse(text)


def test_unknown_fields_are_ignored_and_missing_ones_refused() -> None:
    message = {"type": "paused", "timeout": 5.0, "since": "the next version"}
    assert _build(events.Paused, _parse(json.dumps(message))) == events.Paused("paused", 5.0)
    with pytest.raises(ProtocolError, match="paused without 'timeout'"):
        _build(events.Paused, {"type": "paused"})


@in_virtual_time
async def test_a_server_that_vanished_while_sound_is_sent_to_it_is_detected() -> None:
    connection = with_a_full_buffer(TimedConnection, ping_interval=20.0, ping_timeout=20.0)
    connection.start_keepalive()
    with pytest.raises(ConnectionClosed):
        await connection.recv()
    assert asyncio.get_running_loop().time() == pytest.approx(20.0 + SEND_LIMIT_S)


@in_virtual_time
async def test_a_message_to_a_server_that_vanished_waits_no_longer_than_its_limit() -> None:
    connection = with_a_full_buffer(TimedConnection)
    with pytest.raises(ConnectionClosed):
        await connection.send("{}")
    assert asyncio.get_running_loop().time() == pytest.approx(SEND_LIMIT_S)
