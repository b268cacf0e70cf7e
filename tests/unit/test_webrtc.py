"""The pure parts of WebRTC: what is played, what passes, which offers are taken, which ports."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import Settings
from core.errors import BadRequestError
from core.schemas.webrtc import SDP_MAX_CHARS
from settings.webrtc import WebRtcSettings
from webrtc.__main__ import PortRangeLoop
from webrtc.call import (
    AUDIO_MAX,
    CANDIDATES_MAX,
    EVENTS_MAX,
    LABEL,
    Call,
    Outbox,
    check_offer,
    with_address,
)
from webrtc.calls import Calls, GatewayAddress, RefusedError
from webrtc.dialect import (
    SOUND_ON_CHANNEL,
    Finish,
    Flush,
    Live,
    Play,
    Realtime,
    ToClient,
    ToServer,
)
from webrtc.playout import FRAME_BYTES, MS_BYTES, Note, Part, Played, Playout

PART = Part("resp_1", "item_1", 0)
OFFER = """v=0
o=- 1 2 IN IP4 0.0.0.0
s=-
t=0 0
m=audio 9 UDP/TLS/RTP/SAVPF 111
c=IN IP4 0.0.0.0
a=rtpmap:111 opus/48000/2
a=ice-ufrag:abcd
a=ice-pwd:abcdefghijklmnopqrstuv
a=fingerprint:sha-256 00
a=candidate:1 1 udp 2130706431 192.0.2.7 50000 typ host
m=application 9 UDP/DTLS/SCTP webrtc-datachannel
c=IN IP4 0.0.0.0
"""


def sound(ms: int, value: int = 1) -> bytes:
    return value.to_bytes(2, "little") * (ms * MS_BYTES // 2)


def event(kind: str, **fields: object) -> str:
    return json.dumps({"type": kind, **fields})


# --- what is played ---


def test_a_response_starts_with_its_first_sample_and_stops_when_it_is_done_and_played() -> None:
    playout = Playout(1_000)
    assert playout.take() == (bytes(FRAME_BYTES), [])
    playout.add(PART, sound(30))
    assert playout.take() == (sound(20), [Note("started", "resp_1")])
    frame, notes = playout.take()
    assert frame == sound(10) + bytes(FRAME_BYTES // 2)
    assert notes == []
    assert playout.underruns == 1
    playout.add(PART, sound(20))
    playout.finish("resp_1")
    assert playout.take() == (sound(20), [Note("stopped", "resp_1")])
    assert playout.take() == (bytes(FRAME_BYTES), [])


def test_what_was_heard_is_known_when_the_rest_is_dropped_and_nothing_of_it_comes_after() -> None:
    playout = Playout(1_000)
    playout.add(PART, sound(100))
    playout.add(Part("resp_1", "item_2", 0), sound(100))
    playout.take()
    playout.take()
    assert playout.clear() == [Played(PART, 40), Played(Part("resp_1", "item_2", 0), 0)]
    playout.add(PART, sound(100))
    assert playout.take() == (bytes(FRAME_BYTES), [])
    assert playout.clear() == []
    playout.add(Part("resp_2", "item_3", 0), sound(20))
    assert playout.take() == (sound(20), [Note("started", "resp_2")])


def test_a_second_response_stops_the_first() -> None:
    playout = Playout(1_000)
    playout.add(PART, sound(20))
    playout.add(Part("resp_2", "item_2", 0), sound(20))
    assert playout.take()[1] == [Note("started", "resp_1")]
    assert playout.take()[1] == [Note("stopped", "resp_1"), Note("started", "resp_2")]


def test_paced_sound_that_comes_late_or_early_stays_within_its_room() -> None:
    playout = Playout(100, 40, drops_oldest=True)
    playout.add(Part(), sound(100, 1))
    # 40 ms of silence and 20 ms of sound gave way to the newest.
    playout.add(Part(), sound(20, 2))
    frames = [playout.take()[0] for _ in range(6)]
    assert frames == [sound(20, 1)] * 4 + [sound(20, 2), bytes(FRAME_BYTES)]


def frames_left(playout: Playout) -> int:
    """Take all frames; return the number of those with sound."""
    return sum(any(playout.take()[0]) for _ in range(50))


@given(
    st.lists(st.one_of(st.integers(0, 300), st.none()), max_size=60),
    st.booleans(),
    st.sampled_from([0, 40]),
)
def test_every_frame_has_its_length_and_the_queue_its_bound(
    steps: list[int | None], drops_oldest: bool, lead_ms: int
) -> None:
    playout = Playout(200, lead_ms, drops_oldest=drops_oldest)
    for at, step in enumerate(steps):
        if step is None:
            frame, _ = playout.take()
            assert len(frame) == FRAME_BYTES
        else:
            playout.add(Part(f"resp_{at % 3}", "item", 0), sound(step))
        assert 0 <= frames_left(copy.deepcopy(playout)) <= 10
    assert all(heard.played_ms >= 0 for heard in playout.clear())
    assert frames_left(playout) == 0


# --- what passes ---


def test_sound_goes_over_the_track_and_everything_else_passes_unchanged() -> None:
    dialect = Realtime()
    delta = {"response_id": "resp_1", "item_id": "item_1", "content_index": 0}
    pcm = base64.b64encode(sound(10)).decode()
    played = dialect.from_server(event("response.output_audio.delta", delta=pcm, **delta))
    assert played == [Play(PART, sound(10))]
    for text in (event("conversation.item.added", item={}), "{", "[]", '{"type":7}'):
        assert dialect.from_server(text) == [ToClient(text)]
        assert dialect.from_client(text) == [ToServer(text)]
    done = event("response.done", response={"id": "resp_1"})
    assert dialect.from_server(done) == [ToClient(done), Finish("resp_1")]


@pytest.mark.parametrize("dialect", [Realtime(), Live()])
def test_sound_as_an_event_is_refused_by_its_id(dialect: Realtime | Live) -> None:
    (refused,) = dialect.from_client(event(dialect.append, event_id="e7", audio=""))
    assert isinstance(refused, ToClient)
    error = json.loads(refused.text)["error"]
    assert error["message"] == SOUND_ON_CHANNEL
    assert "e7" in error.values()


@pytest.mark.parametrize(
    ("turns", "interrupts"),
    [
        ({"type": "server_vad"}, True),
        ({"type": "server_vad", "interrupt_response": False}, False),
        (None, False),
    ],
)
def test_speech_drops_what_is_not_played_where_the_session_says_so(
    turns: object, interrupts: bool
) -> None:
    dialect = Realtime()
    dialect.from_server(
        event("session.updated", session={"audio": {"input": {"turn_detection": turns}}})
    )
    started = event("input_audio_buffer.speech_started")
    expected = [ToClient(started), Flush()] if interrupts else [ToClient(started)]
    assert dialect.from_server(started) == expected


def test_a_flush_tells_the_client_and_truncates_what_it_has_not_heard() -> None:
    told, truncated = Realtime().flushed(Flush(), [Played(PART, 340)])
    assert isinstance(told, ToClient)
    assert json.loads(told.text)["type"] == "output_audio_buffer.cleared"
    assert json.loads(told.text)["response_id"] == "resp_1"
    assert isinstance(truncated, ToServer)
    assert json.loads(truncated.text) == {
        "type": "conversation.item.truncate",
        "item_id": "item_1",
        "content_index": 0,
        "audio_end_ms": 340,
    }


def test_the_formats_of_the_socket_are_those_of_this_process_whatever_the_client_says() -> None:
    pcm = {"type": "audio/pcm", "rate": 24_000}
    session = {"audio": {"input": {"format": {"type": "audio/pcmu"}}, "output": {"voice": "x"}}}
    wanted = {"input": {"format": pcm}, "output": {"voice": "x", "format": pcm}}
    (sent,) = Realtime().from_client(event("session.update", session=session, event_id="e"))
    assert isinstance(sent, ToServer)
    assert json.loads(sent.text)["session"]["audio"] == wanted
    assert json.loads(sent.text)["event_id"] == "e"
    assert json.loads(Realtime().opening(session))["session"]["audio"] == wanted
    live = json.loads(Live().opening({"audio": {"format": {"type": "audio/pcmu"}}}))
    assert live["session"]["audio"] == {"format": pcm}


# --- what waits for the gateway ---


def test_the_oldest_sound_gives_way_and_one_event_too_many_is_refused() -> None:
    async def fill() -> list[str]:
        outbox = Outbox()
        for number in range(AUDIO_MAX + 2):
            outbox.put_audio(f"sound {number}")
        accepted = [outbox.put_event(f"event {number}") for number in range(EVENTS_MAX + 1)]
        assert accepted == [True] * EVENTS_MAX + [False]
        return [await outbox.get() for _ in range(AUDIO_MAX + EVENTS_MAX)]

    sent = asyncio.run(fill())
    assert sent[:AUDIO_MAX] == [f"sound {number}" for number in range(2, AUDIO_MAX + 2)]
    assert sent[AUDIO_MAX:] == [f"event {number}" for number in range(EVENTS_MAX)]


# --- calls ---


class Channel:
    """A data channel that is open."""

    label, readyState, bufferedAmount = LABEL, "open", 0

    def __init__(self, max_bytes: int = 262_144) -> None:
        self.sent: list[str] = []
        self.max_bytes = max_bytes  # of a message, as the offer says
        self.listeners: dict[str, Any] = {}

    def on(self, event: str, listener: Any) -> None:
        self.listeners[event] = listener

    def send(self, text: str) -> None:
        if len(text.encode()) > self.max_bytes:
            raise ValueError("the remote party only supports shorter messages")
        self.sent.append(text)


def call_of(socket: Any = None) -> Call:
    return Call(socket, Live(), Playout(1_000), WebRtcSettings())


def test_a_second_channel_of_the_same_label_is_not_used() -> None:
    async def open_two() -> None:
        call, first, second = call_of(), Channel(), Channel()
        call._on_channel(first)  # type: ignore[arg-type]
        call._on_channel(second)  # type: ignore[arg-type]
        call.apply([ToClient("hello")])
        assert first.sent == ["hello"]
        assert not second.sent and not second.listeners

    asyncio.run(open_two())


def test_an_event_too_long_for_the_peer_is_shortened_or_named() -> None:
    parts = [{"type": "output_audio", "transcript": "Hello.", "audio": "A" * 1_000}]

    async def send() -> list[Any]:
        call, channel = call_of(), Channel(max_bytes=400)
        call._on_channel(channel)  # type: ignore[arg-type]
        for sent in (
            event("conversation.item.retrieved", item={"content": parts}),
            event("conversation.item.retrieved", item={"arguments": "A" * 1_000}),
            event("session.updated", session={"instructions": "é" * 300}),
            event("response.created"),
        ):
            call.apply([ToClient(sent)])
        return [json.loads(text) for text in channel.sent]

    retrieved, no_item, no_session, created = asyncio.run(send())
    assert retrieved["item"]["content"] == [{"type": "output_audio", "transcript": "Hello."}]
    assert "conversation.item.retrieved" in no_item["error"]["message"]
    assert "session.updated" in no_session["error"]["message"]
    assert created["type"] == "response.created"


def test_an_offer_without_a_codec_in_common_is_refused() -> None:
    async def answer() -> None:
        call = call_of()
        offer = OFFER.replace("m=audio 9 UDP/TLS/RTP/SAVPF 111", "m=audio 9 UDP/TLS/RTP/SAVPF 9")
        with pytest.raises(BadRequestError, match="^sdp: invalid"):
            await call.answer(offer.replace("a=rtpmap:111 opus", "a=rtpmap:9 speex"))
        await call._peer.close()

    asyncio.run(answer())


@pytest.mark.parametrize(
    ("kind", "status"),
    [("invalid_request_error", 400), ("rate_limit_error", 429), ("server_error", 503)],
)
def test_a_refusal_of_the_session_has_the_status_of_its_error(kind: str, status: int) -> None:
    async def events() -> AsyncIterator[str]:
        yield event("error", error={"type": kind, "code": "a", "message": "b"})

    calls = Calls(GatewayAddress("ws://localhost"), WebRtcSettings(), 1.0)
    with pytest.raises(RefusedError) as refused:
        asyncio.run(calls._first(events()))  # type: ignore[arg-type]
    assert refused.value.status == status


# --- offers ---


def test_an_offer_is_taken() -> None:
    check_offer(OFFER)
    check_offer(OFFER.replace("\n", "\r\n"))


@pytest.mark.parametrize(
    ("sdp", "said"),
    [
        ("", "v=0"),
        ("hello", "v=0"),
        (OFFER.replace("opus", "speex"), "opus"),
        (OFFER.replace("m=audio", "m=video"), "0 audio sections"),
        (OFFER.replace("m=application", "m=video"), "one data channel"),
        (OFFER + "m=video 9 UDP/TLS/RTP/SAVPF 96\n", "one data channel"),
        (OFFER.replace("a=fingerprint", "a=footprint"), "a=fingerprint is missing"),
        (OFFER.replace("a=ice-pwd", "a=x"), "a=ice-pwd is missing"),
        (OFFER + "a=x\n" * SDP_MAX_CHARS, f"{SDP_MAX_CHARS} are allowed"),
        (OFFER + "a=\n" * 1_000, "1000 are allowed"),
        (OFFER + "a=candidate:1\n" * CANDIDATES_MAX, f"{CANDIDATES_MAX} are allowed"),
    ],
)
def test_what_is_no_offer_of_a_call_is_refused_with_its_fault(sdp: str, said: str) -> None:
    with pytest.raises(BadRequestError, match=f"^sdp: .*{said}"):
        check_offer(sdp)


def test_a_public_address_is_shown_in_place_of_this_machine_s() -> None:
    shown = with_address(OFFER, "203.0.113.9")
    assert "a=candidate:1 1 udp 2130706431 203.0.113.9 50000 typ host" in shown
    assert "192.0.2.7" not in shown
    assert shown.count("c=IN IP4 203.0.113.9") == 2
    assert with_address(OFFER, None) == OFFER


# --- settings and ports ---


@pytest.mark.parametrize("text", ["5-7", "50010-50000", "50000", "50000-70000"])
def test_a_range_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="udp_ports"):
        Settings.model_validate({"webrtc": {"udp_ports": text}})


def test_an_address_that_cannot_be_bound_is_no_lack_of_ports() -> None:
    async def bind() -> None:
        with pytest.raises(OSError, match="Cannot assign requested address"):
            await asyncio.get_running_loop().create_datagram_endpoint(
                asyncio.DatagramProtocol, local_addr=("192.0.2.1", 0)
            )

    with asyncio.Runner(loop_factory=lambda: PortRangeLoop(range(50_000, 50_100))) as runner:
        runner.run(bind())


def test_udp_ports_come_from_the_range_and_no_more_than_it_has() -> None:
    async def bind(ports: range) -> list[int]:
        loop, made = asyncio.get_running_loop(), []
        try:
            for _ in ports:
                transport, _ = await loop.create_datagram_endpoint(
                    asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0)
                )
                made.append(transport)
            with pytest.raises(OSError, match="is free"):
                await loop.create_datagram_endpoint(
                    asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0)
                )
            return [transport.get_extra_info("sockname")[1] for transport in made]
        finally:
            for transport in made:
                transport.close()

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    ports = WebRtcSettings(udp_ports=f"{free}-{free}").ports
    with asyncio.Runner(loop_factory=lambda: PortRangeLoop(ports)) as runner:
        assert runner.run(bind(ports)) == [free]
    assert not WebRtcSettings().ports
