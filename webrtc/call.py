"""One call: a peer connection to the client, and a WebSocket to the gateway."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import structlog
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCDataChannel,
    RTCPeerConnection,
    RTCRtpSender,
    RTCSessionDescription,
)
from aiortc.exceptions import InvalidStateError, OperationError
from aiortc.mediastreams import MediaStreamError
from av import AudioFrame
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from core.errors import BadRequestError, QueueFullError
from core.schemas.limits import MIB
from core.schemas.openai_errors import INVALID_EVENT, error_event
from core.schemas.webrtc import SDP_MAX_CHARS
from gateway_modules.web.limits import first_of
from settings.webrtc import WebRtcSettings
from webrtc.audio import Microphone, SpeechTrack
from webrtc.dialect import (
    Dialect,
    Effect,
    Finish,
    Flush,
    Play,
    ToClient,
    ToServer,
    append_event,
    shorter_forms,
)
from webrtc.playout import Note, Playout

LABEL: Final = "oai-events"
WAITING_MAX: Final = 256  # events queued before the channel opens; one more ends the call
UNSENT_MAX_BYTES: Final = MIB  # buffered for a slow peer; more ends the call
AUDIO_MAX: Final = 50  # packets of 20 ms, one second; the oldest is dropped
EVENTS_MAX: Final = 64  # queued; one more is refused
EVENT_CHARS_MAX: Final = MIB  # of all queued events


class TooSlowError(Exception):
    """The peer does not read what is sent to it."""


class EventChannel:
    """Sends events in order over the data channel; queues them until the peer has opened it."""

    def __init__(self) -> None:
        self._channel: RTCDataChannel | None = None
        self._waiting: deque[str] = deque()

    @property
    def is_opened(self) -> bool:
        return self._channel is not None

    async def close(self) -> None:
        """Return once the peer has received every event (RFC 8831, section 6.7)."""
        if self._channel is not None and self._channel.readyState != "closed":
            closed = asyncio.Event()
            self._channel.once("close", closed.set)
            self._channel.close()
            await closed.wait()

    def open(self, channel: RTCDataChannel) -> None:
        """Use the channel, and send the queued events; raises as `send`."""
        self._channel = channel
        while self._waiting:
            self.send(self._waiting.popleft())

    def send(self, text: str) -> None:
        """Send an event, now or when the channel opens; a TooSlowError if too much is queued."""
        if self._channel is None:
            if len(self._waiting) >= WAITING_MAX:
                raise TooSlowError(f"{WAITING_MAX} events wait for the data channel")
            self._waiting.append(text)
        elif self._channel.readyState == "open":
            if self._channel.bufferedAmount > UNSENT_MAX_BYTES:
                raise TooSlowError(f"{UNSENT_MAX_BYTES} bytes wait on the data channel")
            for form in shorter_forms(text):
                with suppress(ValueError):  # longer than the `max-message-size` of the offer
                    return self._channel.send(form)


class Outbox:
    def __init__(self) -> None:
        self._waiting: deque[tuple[bool, str]] = deque()
        self._filled = asyncio.Event()

    def put_audio(self, text: str) -> None:
        """Append audio; drops the oldest audio if there is too much."""
        audio = [at for at, (is_audio, _) in enumerate(self._waiting) if is_audio]
        if len(audio) >= AUDIO_MAX:
            del self._waiting[audio[0]]
        self._put(True, text)

    def put_event(self, text: str) -> bool:
        """Append an event; return False if the queue is full."""
        sizes = [len(waiting) for is_audio, waiting in self._waiting if not is_audio]
        if len(sizes) >= EVENTS_MAX or sum(sizes) + len(text) > EVENT_CHARS_MAX:
            return False
        self._put(False, text)
        return True

    async def get(self) -> str:
        while not self._waiting:
            self._filled.clear()
            await self._filled.wait()
        return self._waiting.popleft()[1]

    def _put(self, is_audio: bool, text: str) -> None:
        self._waiting.append((is_audio, text))
        self._filled.set()


# Raised by aiortc for an invalid offer; RuntimeError is a StopIteration in its coroutine.
SDP_ERRORS: Final = (
    ValueError,
    LookupError,
    AttributeError,
    RuntimeError,
    AssertionError,
    InvalidStateError,
    OperationError,
)
CONNECTED: Final = "connected"
OVER: Final = frozenset({"failed", "closed"})
DRAIN_LIMIT_S: Final = 10.0  # for sending queued events, on a lossy network too, when a call ends


class Call:
    """Relays audio and events in both directions until one side ends it."""

    def __init__(
        self, socket: ClientConnection, dialect: Dialect, playout: Playout, settings: WebRtcSettings
    ) -> None:
        """The socket is open, the first event sent; then come `answer`, `run` and `close`."""
        self._socket, self._dialect, self._playout = socket, dialect, playout
        self._settings = settings
        # No servers; by default aiortc asks Google's STUN server, for up to 5 s, in each call.
        self._peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._outbox, self._channel = Outbox(), EventChannel()
        self._track: MediaStreamTrack | None = None  # None where the client only listens
        self._changed = asyncio.Event()
        self._is_hung_up = False
        self._problem = ""
        self._log = structlog.get_logger("webrtc")

    async def answer(self, sdp: str) -> str:
        """Return the SDP answer with all candidates.

        Raises:
            BadRequestError: The offer is invalid.
            QueueFullError: No UDP port is free.
        """
        peer = self._peer
        peer.on("track", self._on_track)
        peer.on("datachannel", self._on_channel)
        peer.on("connectionstatechange", self._changed.set)
        peer.addTrack(SpeechTrack(self._playout, self._note))
        # Opus only, even if the offer prefers another codec: `SpeechTrack` makes Opus packets.
        codecs = RTCRtpSender.getCapabilities("audio").codecs
        opus = [codec for codec in codecs if codec.mimeType == "audio/opus"]
        peer.getTransceivers()[0].setCodecPreferences(opus)
        # Without the mark aiortc also learns addresses from the client's own checks, as behind NAT
        # or of mDNS names, and tries until `ice_timeout_s`.
        sdp = END_OF_CANDIDATES.sub("", sdp)
        try:
            await peer.setRemoteDescription(RTCSessionDescription(sdp, "offer"))
            await peer.setLocalDescription(await peer.createAnswer())
        except SDP_ERRORS as error:
            raise BadRequestError(f"sdp: invalid ({error}).") from error
        if "a=candidate:" not in peer.localDescription.sdp:
            raise QueueFullError("No UDP port for a call is free; please try again later.")
        return with_address(peer.localDescription.sdp, self._settings.public_address)

    async def run(self) -> None:
        """Serve until the peer disconnects or never connects, the gateway closes, or `hang_up`."""
        works = [self._receive(), self._send(), self._watch()]
        if self._track is not None:
            works.append(self._receive_audio(self._track))
        try:
            await first_of(*works)
        except (ConnectionClosed, TooSlowError) as error:
            self._problem = self._problem or str(error)
        # A peer that is still connecting is sent the events that say why the session has ended.
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.ice_timeout_s):
                await self._until(lambda: self._channel.is_opened)

    def hang_up(self) -> None:
        """End `run`. The call is not cancelled, since aiortc cannot resume a cancelled `close`."""
        self._is_hung_up = True
        self._changed.set()

    async def close(self) -> None:
        """Close the gateway's side, send queued events, and close the peer's side."""
        try:
            await self._socket.close()
            if self._peer.connectionState == CONNECTED:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._channel.close(), DRAIN_LIMIT_S)
        finally:
            await self._peer.close()
            self._log.info("call ended", reason=self._problem, underruns=self._playout.underruns)

    # --- tasks ---

    async def _receive(self) -> None:
        async for text in self._socket:
            if isinstance(text, str):
                self.apply(self._dialect.from_server(text))

    async def _send(self) -> None:
        while True:
            await self._socket.send(await self._outbox.get())

    async def _receive_audio(self, track: MediaStreamTrack) -> None:
        microphone = Microphone()
        while True:
            try:
                frame = await track.recv()
            except MediaStreamError:  # a client without a microphone still listens
                return await self._until(lambda: False)
            assert isinstance(frame, AudioFrame)
            pcm = microphone.samples_of(frame)
            if pcm:
                self._outbox.put_audio(append_event(self._dialect, pcm))

    async def _watch(self) -> None:
        """Return if the peer does not connect in time, or disconnects."""
        try:
            async with asyncio.timeout(self._settings.ice_timeout_s):
                await self._until(lambda: self._peer.connectionState == CONNECTED)
        except TimeoutError:
            self._problem = f"not connected after {self._settings.ice_timeout_s:g} s"
            self.hang_up()
            return
        await self._until(lambda: False)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Return once it is so, or the call is over."""
        while not (self._is_hung_up or self._peer.connectionState in OVER or is_so()):
            self._changed.clear()
            await self._changed.wait()

    # --- callbacks ---

    def _on_track(self, track: MediaStreamTrack) -> None:
        self._track = track

    def _on_channel(self, channel: RTCDataChannel) -> None:
        """Use the first channel with the right label; it is already open."""
        if channel.label == LABEL and not self._channel.is_opened:
            channel.on("message", self._on_message)
            self._guarded(lambda: self._channel.open(channel))
            self._changed.set()

    def _on_message(self, text: str | bytes) -> None:
        if isinstance(text, bytes):
            refused = error_event(INVALID_EVENT, "Events are sent as text, not as bytes.")
            effects: Sequence[Effect] = [ToClient(refused)]
        else:
            effects = self._dialect.from_client(text)
        self._guarded(lambda: self.apply(effects))

    def _note(self, notes: Iterable[Note]) -> None:
        for note in notes:
            self._guarded(partial(self.apply, self._dialect.noted(note)))

    def _guarded(self, act: Callable[[], None]) -> None:
        """Run a callback; if it fails, close the gateway's side, which ends the call."""
        try:
            act()
        except TooSlowError as error:
            self._problem = str(error)
            self._socket.transport.abort()

    def apply(self, effects: Iterable[Effect]) -> None:
        """Apply effects; a TooSlowError if the peer does not read its events."""
        for effect in effects:
            match effect:
                case ToServer(text):
                    if not self._outbox.put_event(text):
                        why = "Too many events at once; this one was dropped."
                        self._channel.send(error_event(INVALID_EVENT, why))
                case ToClient(text):
                    self._channel.send(text)
                case Play(part, pcm):
                    self._playout.add(part, pcm)
                case Finish(response_id):
                    self._playout.finish(response_id)
                case Flush() as flush:
                    self.apply(self._dialect.flushed(flush, self._playout.clear()))


LINES_MAX: Final = 1_000
CANDIDATES_MAX: Final = 32  # each is an address that connectivity checks are sent to
END_OF_CANDIDATES: Final = re.compile(r"^a=end-of-candidates\s*", re.MULTILINE)
OPUS: Final = re.compile(r"^a=rtpmap:\d+ opus/48000/2\s*$", re.IGNORECASE | re.MULTILINE)
HOST_CANDIDATE: Final = re.compile(
    r"^(a=candidate:\S+ \d+ udp \d+ )(\d+\.\d+\.\d+\.\d+)( \d+ typ host.*)$", re.MULTILINE
)
CONNECTION: Final = re.compile(r"^c=IN IP4 \S+", re.MULTILINE)


def check_offer(sdp: str) -> None:
    """Raise a BadRequestError that names the problem if an offer is not valid for a call."""
    if len(sdp) > SDP_MAX_CHARS:
        raise BadRequestError(f"sdp: {len(sdp)} characters; {SDP_MAX_CHARS} are allowed.")
    lines = [line.strip() for line in sdp.splitlines()]
    if not lines or lines[0] != "v=0":
        raise BadRequestError("sdp: it does not begin with v=0.")
    if len(lines) > LINES_MAX:
        raise BadRequestError(f"sdp: {len(lines)} lines; {LINES_MAX} are allowed.")
    candidates = sum(line.startswith("a=candidate:") for line in lines)
    if candidates > CANDIDATES_MAX:
        raise BadRequestError(f"sdp: {candidates} candidates; {CANDIDATES_MAX} are allowed.")
    media = [line[2:].split()[0] for line in lines if line.startswith("m=") and len(line) > 2]
    if media.count("audio") != 1:
        raise BadRequestError(f"sdp: {media.count('audio')} audio sections; there must be one.")
    if media.count("application") != 1 or len(media) != 2:
        raise BadRequestError("sdp: there must be exactly one data channel besides the audio.")
    if OPUS.search(sdp) is None:
        raise BadRequestError("sdp: the audio section has no opus/48000/2.")
    for attribute in ("ice-ufrag", "ice-pwd", "fingerprint"):
        if not any(line.startswith(f"a={attribute}:") for line in lines):
            raise BadRequestError(f"sdp: a={attribute} is missing.")


def with_address(sdp: str, address: str | None) -> str:
    """Return an SDP answer with a public IPv4 address in its host candidates, if given.

    The NAT must forward its ports to the same ports here.
    """
    if address is None:
        return sdp
    shown = HOST_CANDIDATE.sub(rf"\g<1>{address}\g<3>", sdp)
    return CONNECTION.sub(f"c=IN IP4 {address}", shown)
