"""Calls over WebRTC, real ICE and DTLS on this machine, through gateway and worker."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from aiortc import RTCPeerConnection, RTCRtpSender

from benchmarks.launched import free_ports
from core.modes import Chunks, Threads
from core.schemas import streaming
from core.schemas.webrtc import SDP_MAX_CHARS
from core.serving.fake_backend import FakeBackend, FakeStreamingView, FakeTimes
from tests.fakes.gateway_stage import HURRY, LIMIT_S, Stage, on_stage, settings_for, until
from tests.fakes.webrtc_peer import RATE_HZ, Peer, call, webrtc_process
from tests.source_tree import ROOT
from webrtc.call import LABEL, EventChannel
from webrtc.calls import Calls
from worker import create_app

KEY = "sk-the-right-one"
TIMES = FakeTimes(prefill_ms=1, piece_ms=1, unit_ms=5)
ANSWER_S = 60  # longer than a busy machine takes to detect speech
HELLOS = 20  # a slow machine drops some of what the microphone records
FADE_MS = 40  # frames that the codec's delay adds at both ends
EVENTS = 8
BAD_OFFER = "v=0\r\n"


class LongAnswer(FakeStreamingView):
    def reply(self, wanted: streaming.Generate) -> Chunks:
        return self._say("word " * ANSWER_S, ANSWER_S)


class LongAnswers(FakeBackend):
    def open_streaming(self, threads: Threads) -> FakeStreamingView:
        return LongAnswer(self.times, threads)


class Scene:
    """A gateway before a worker, the WebRTC process, and the peers that call."""

    def __init__(self, stage: Stage, calls: Calls, stack: AsyncExitStack) -> None:
        self.stage, self.calls, self._stack = stage, calls, stack

    def peer(self, **options: bool) -> Peer:
        """Return a client that hangs up at the end."""
        peer = Peer(**options)
        self._stack.push_async_callback(peer.close)
        return peer

    async def called(self, peer: Peer | None = None, **session: Any) -> tuple[Peer, str]:
        """Return a client whose session has begun, and where its call is."""
        peer = peer or self.peer()
        answer = await call(self.stage, peer, **session)
        assert answer.status_code == 201, answer.text
        assert answer.headers["content-type"] == "application/sdp"
        await peer.accept(answer.text)
        await peer.hear("session.created")
        return peer, answer.headers["location"]


Test = Callable[..., Coroutine[Any, Any, None]]


def played(slots: int = 4, **webrtc: Any) -> Callable[[Test], Callable[[Path], None]]:
    """Run a test on a scene; afterwards no call, socket, ticket or task is left."""

    def decorate(test: Test) -> Callable[[Path], None]:
        async def play(folder: Path) -> None:
            settings = settings_for(
                folder,
                recording={"enabled": False},
                service={"worker_slots": slots},
                security={"api_keys": [KEY], "worker_secret": "shared by the programs"},
                webrtc={"enabled": True, "port": free_ports(1), **webrtc},
            )
            before = asyncio.all_tasks()
            stage = Stage(settings, 1, HURRY)
            app = create_app(settings, lambda: LongAnswers(TIMES))
            stage.workers[0].app = app  # type: ignore[assignment]
            await stage.start()
            stage.http.headers["Authorization"] = f"Bearer {KEY}"
            try:
                async with asyncio.timeout(LIMIT_S), webrtc_process(settings, stage.port) as calls:
                    async with AsyncExitStack() as stack:
                        await test(Scene(stage, calls, stack))
                await stage.check_quiet()
            finally:
                await stage.stop()
            await until(lambda: not asyncio.all_tasks() - before, "a task is left")

        @functools.wraps(test)
        def run(tmp_path: Path) -> None:
            asyncio.run(play(tmp_path))

        del run.__wrapped__  # type: ignore[attr-defined]  # pytest would ask it for its arguments
        return run

    return decorate


def speech() -> np.ndarray:
    samples, rate_hz = soundfile.read(ROOT / "examples" / "hello.wav", dtype="int16")
    at = np.linspace(0, len(samples) - 1, len(samples) * RATE_HZ // rate_hz)
    return np.interp(at, np.arange(len(samples)), samples).astype(np.int16)


@played()
async def test_an_answer_is_heard_and_speech_cuts_it_at_what_was_heard(scene: Scene) -> None:
    # A second answer would be heard before a slow machine sees that the first was cut.
    turns = {"type": "server_vad", "create_response": False}
    peer, place = await scene.called(audio={"input": {"turn_detection": turns}})
    peer.say("response.create")
    started = await peer.hear("output_audio_buffer.started")
    await until(lambda: peer.loud_ms, "nothing was heard")
    peer.mouth.sound = np.tile(speech(), HELLOS)
    await peer.hear("input_audio_buffer.speech_started")
    cleared = await peer.hear("output_audio_buffer.cleared")
    assert cleared["response_id"] == started["response_id"]
    truncated = await peer.hear("conversation.item.truncated")
    assert 0 < truncated["audio_end_ms"] < ANSWER_S * 1_000
    await until(lambda: not peer.is_loud, "it is still heard")
    assert 0 < peer.loud_ms <= truncated["audio_end_ms"] + FADE_MS
    assert (await scene.stage.http.post(f"{place}/hangup")).status_code == 200
    await until(lambda: peer.connection.connectionState == "closed", "it did not end")
    gone = await scene.stage.http.delete(place)
    assert gone.status_code == 404


@played()
async def test_a_client_clears_what_it_does_not_want_to_hear(scene: Scene) -> None:
    session = {"instructions": "Sing.", "model": "fake-turn"}
    secret = await scene.stage.http.post("/v1/realtime/client_secrets", json={"session": session})
    peer = scene.peer()
    answer = await scene.stage.http.post(
        "/v1/realtime/calls",
        content=await peer.offer(),
        headers={
            "content-type": "application/sdp",
            "authorization": f"Bearer {secret.json()['value']}",
        },
    )
    assert answer.status_code == 201, answer.text
    await peer.accept(answer.text)
    updated = (await peer.hear("session.updated"))["session"]
    assert {name: updated[name] for name in session} == session
    peer.say("input_audio_buffer.append", audio="", event_id="mine")
    async with asyncio.timeout(LIMIT_S):
        refused = await peer.arrived.get()
        while refused["type"] != "error":
            refused = await peer.arrived.get()
    assert refused["error"]["event_id"] == "mine"
    peer.say("response.create")
    await peer.hear("output_audio_buffer.started")
    peer.say("response.cancel")
    peer.say("output_audio_buffer.clear")
    await peer.hear("output_audio_buffer.cleared")


@played()
async def test_an_item_too_long_for_the_channel_comes_without_its_audio(scene: Scene) -> None:
    peer, _ = await scene.called(audio={"input": {"turn_detection": None}})
    peer.mouth.sound = np.tile(speech(), 12)[: 7 * RATE_HZ]
    await until(lambda: not len(peer.mouth.sound), "the microphone is slow")
    peer.say("input_audio_buffer.commit")
    committed = await peer.hear("input_audio_buffer.committed")
    peer.say("conversation.item.retrieve", item_id=committed["item_id"])
    retrieved = await peer.hear("conversation.item.retrieved")
    assert retrieved["item"]["content"] == [{"type": "input_audio", "transcript": None}]
    peer.say("response.create")
    await peer.hear("response.done")


def test_the_last_events_arrive_before_the_channel_closes() -> None:
    async def play() -> None:
        server, client = RTCPeerConnection(), RTCPeerConnection()
        events, channel = EventChannel(), server.createDataChannel(LABEL)
        received: list[str] = []
        client.on("datachannel", lambda opened: opened.on("message", received.append))
        await server.setLocalDescription(await server.createOffer())
        await client.setRemoteDescription(server.localDescription)
        await client.setLocalDescription(await client.createAnswer())
        await server.setRemoteDescription(client.localDescription)
        try:
            await until(lambda: channel.readyState == "open", "it did not open")
            events.open(channel)
            for number in range(EVENTS):
                events.send(str(number) * 60_000)
            await events.close()
            assert [text[0] for text in received] == [str(number) for number in range(EVENTS)]
        finally:
            await asyncio.gather(server.close(), client.close())

    asyncio.run(play())


@played()
async def test_gpt_live_goes_over_tracks_too(scene: Scene) -> None:
    peer = scene.peer()
    transport = {"type": "webrtc", "sdp": await peer.offer()}
    identifier = "a" * 40_000
    settings = {"model": "gpt-live-1", "safety_identifier": identifier}
    body = {"session": settings, "transport": transport}
    answer = await scene.stage.http.post("/v1/live/sessions", json=body)
    assert answer.status_code == 200, answer.text
    await peer.accept(answer.json()["transport"]["sdp"])
    started = await peer.hear("session.started")
    assert started["session"]["id"] == answer.json()["session"]["id"]
    assert started["session"]["safety_identifier"] == identifier
    await until(lambda: peer.loud_ms, "nothing was heard")
    peer.say("session.close")
    assert (await peer.hear("session.closed"))["reason"] == "close_requested"


@played()
async def test_a_client_that_only_listens_is_served(scene: Scene) -> None:
    peer, _ = await scene.called(scene.peer(only_listens=True))
    peer.say("response.create")
    await until(lambda: peer.loud_ms, "nothing was heard")


@played()
async def test_sound_is_opus_even_if_the_offer_prefers_another_codec(scene: Scene) -> None:
    peer = scene.peer()
    codecs = RTCRtpSender.getCapabilities("audio").codecs
    others = [codec for codec in codecs if codec.mimeType != "audio/opus"]
    peer.connection.getTransceivers()[0].setCodecPreferences([*others, *codecs])
    await scene.called(peer)
    answered = peer.connection.remoteDescription.sdp
    assert re.findall(r"a=rtpmap:\d+ (\S+)", answered) == ["opus/48000/2"]
    await until(lambda: peer.heard, "nothing was sent")
    assert not peer.is_loud


@played()
async def test_a_client_whose_microphone_ends_goes_on_listening(scene: Scene) -> None:
    peer, _ = await scene.called()
    await until(lambda: peer.heard, "nothing was sent")
    ((served, _),) = scene.calls._calls.values()
    track = served._track
    assert track is not None
    await peer.connection.getSenders()[0].stop()
    await until(lambda: track.readyState == "ended", "the track has not ended")
    peer.say("response.create")
    await until(lambda: peer.loud_ms, "nothing was heard")


@played()
async def test_a_call_that_is_ended_twice_at_once_is_closed_whole(scene: Scene) -> None:
    peer, place = await scene.called()
    http = scene.stage.http
    answers = await asyncio.gather(
        http.delete(place), http.post(f"{place}/hangup"), http.delete(place)
    )
    assert {answer.status_code for answer in answers} <= {200, 404}
    await until(lambda: peer.connection.connectionState == "closed", "it did not end")


@played(slots=1)
async def test_a_client_that_leaves_the_queue_is_called_no_more(scene: Scene) -> None:
    _, place = await scene.called()
    transport = {"type": "webrtc", "sdp": await scene.peer().offer()}
    body = {"session": {"model": "gpt-live-1"}, "transport": transport}
    with pytest.raises(httpx.ReadTimeout):
        await scene.stage.http.post("/v1/live/sessions", json=body, timeout=0.7)
    await scene.stage.http.delete(place)
    await until(lambda: not len(scene.calls), "it waits for a peer that has left")


@played()
async def test_why_a_gpt_live_session_does_not_begin_is_the_answer(scene: Scene) -> None:
    transport = {"type": "webrtc", "sdp": await scene.peer().offer()}
    settings = {"model": "gpt-live-1", "audio": {"output": {"voice": 7}}}
    body = {"session": settings, "transport": transport}
    answer = await scene.stage.http.post("/v1/live/sessions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("session.audio.output.voice")


@played(max_peers=1)
async def test_a_peer_too_many_is_refused(scene: Scene) -> None:
    absent, other = scene.peer(), scene.peer()
    waited_for = await call(scene.stage, absent)
    assert waited_for.status_code == 201
    full = await call(scene.stage, other)
    assert full.status_code == 503
    assert "1 calls" in full.json()["error"]["message"]
    await scene.stage.http.delete(waited_for.headers["location"])


@played()
async def test_a_peer_that_connects_after_its_session_has_ended_is_told_why(scene: Scene) -> None:
    peer = scene.peer()
    answer = await call(scene.stage, peer)
    (relay,) = scene.stage.gateway.live.all()
    relay.end()
    await until(lambda: not scene.stage.gateway.live.all(), "the session has not ended")
    await peer.accept(answer.text)
    async with asyncio.timeout(LIMIT_S):
        while (event := await peer.arrived.get())["type"] != "error":
            pass
    assert event["error"]["code"] == "ended_by_admin"
    await until(lambda: peer.connection.connectionState == "closed", "it did not end")


@played()
async def test_a_client_whose_candidates_are_all_useless_connects_by_its_own_checks(
    scene: Scene,
) -> None:
    peer = scene.peer()
    offer = re.sub(r"a=candidate:.*\r\n", "", await peer.offer())
    assert "a=end-of-candidates" in offer
    sdp = {"content-type": "application/sdp"}
    answer = await scene.stage.http.post("/v1/realtime/calls", content=offer, headers=sdp)
    assert answer.status_code == 201, answer.text
    await peer.accept(answer.text)
    await peer.hear("session.created")


@played(ice_timeout_s=0.5)
async def test_a_peer_that_never_comes_is_dropped(scene: Scene) -> None:
    assert (await call(scene.stage, scene.peer())).status_code == 201
    await until(lambda: not len(scene.calls), "it still waits")


@played()
async def test_bad_offers_are_refused_with_their_fault(scene: Scene) -> None:
    async def post(**request: Any) -> httpx.Response:
        return await scene.stage.http.post("/v1/realtime/calls", **request)

    sdp = {"content-type": "application/sdp"}
    files, surrogate, nested = [
        {"sdp": (None, BAD_OFFER), "session": (None, session)}
        for session in ("no JSON", '{"instructions":"\\ud800"}', '{"a":' * 300 + "0" + "}" * 300)
    ]
    for answer, said in (
        (await post(content=BAD_OFFER, headers=sdp), "audio"),
        (await post(content="v=0\r\n" * SDP_MAX_CHARS, headers=sdp), f"{SDP_MAX_CHARS}"),
        (await post(content="", headers=sdp), "missing"),
        (await post(files=files), "session: not valid JSON"),
        (await post(files=surrogate), "session: not valid JSON"),
        (await post(files=nested), "session: not valid JSON"),
        (await post(json={}), "content-type"),
    ):
        assert answer.status_code == 400, answer.text
        assert said in answer.json()["error"]["message"]
    fault = (await post(content=BAD_OFFER, headers=sdp)).json()["error"]
    assert fault["param"] == "sdp"
    absent = (await post(content="", headers=sdp)).json()["error"]
    assert (absent["param"], absent["code"]) == ("sdp", "missing_required_parameter")
    wrong_key = sdp | {"authorization": "Bearer wrong"}
    assert (await post(content=BAD_OFFER, headers=wrong_key)).status_code == 401
    page = sdp | {"origin": "https://evil.example"}
    assert (await post(content=BAD_OFFER, headers=page)).status_code == 403
    async with httpx.AsyncClient(trust_env=False, verify=False, timeout=None) as stranger:
        url = f"{scene.stage.settings.webrtc.url}/calls"
        assert (await stranger.post(url, json={})).status_code == 401


@on_stage(webrtc={"enabled": True})
async def test_an_id_that_no_address_holds_is_no_internal_error(stage: Stage) -> None:
    answer = await stage.http.post("/v1/realtime/calls/%00/hangup")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "worker_unreachable")


@on_stage()
async def test_without_the_process_the_answer_says_how_to_have_it(stage: Stage) -> None:
    for path in ("/v1/realtime/calls", "/v1/live/sessions", "/v1/realtime/calls/rtc_1/hangup"):
        answer = await stage.http.post(path, json={})
        assert answer.status_code == 501
        assert "scripts/setup.sh webrtc and set" in answer.json()["error"]["message"]
