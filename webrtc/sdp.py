"""Checks of clients' offers, and the address in answers. Pure.

Source: RFC 8866 (SDP), RFC 8839 (ICE in SDP), RFC 7587 (Opus).
"""

from __future__ import annotations

import re
from typing import Final

from core.errors import BadRequestError
from core.schemas.webrtc import SDP_MAX_CHARS

LINES_MAX: Final = 1_000
CANDIDATES_MAX: Final = 32  # each is an address that we send checks to
OPUS: Final = re.compile(r"^a=rtpmap:\d+ opus/48000/2\s*$", re.IGNORECASE | re.MULTILINE)
HOST_CANDIDATE: Final = re.compile(
    r"^(a=candidate:\S+ \d+ udp \d+ )(\d+\.\d+\.\d+\.\d+)( \d+ typ host.*)$", re.MULTILINE
)
CONNECTION: Final = re.compile(r"^c=IN IP4 \S+", re.MULTILINE)


def check_offer(sdp: str) -> None:
    """Raise a BadRequestError, which names the fault, for an offer that is not one of a call."""
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
        raise BadRequestError("sdp: beside the audio there must be one data channel, and no more.")
    if OPUS.search(sdp) is None:
        raise BadRequestError("sdp: the audio section has no opus/48000/2.")
    for attribute in ("ice-ufrag", "ice-pwd", "fingerprint"):
        if not any(line.startswith(f"a={attribute}:") for line in lines):
            raise BadRequestError(f"sdp: a={attribute} is missing.")


def with_address(sdp: str, address: str | None) -> str:
    """Return an answer whose host candidates show a public IPv4 address, if one is given.

    Ports of the address lead to the same ports here.
    """
    if address is None:
        return sdp
    shown = HOST_CANDIDATE.sub(rf"\g<1>{address}\g<3>", sdp)
    return CONNECTION.sub(f"c=IN IP4 {address}", shown)
