"""Well-formed messages with useless content: told by a code, and only their own session ends."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from tests.system import shapes
from tests.system.client import (
    RATE_HZ,
    DuplexClient,
    HalfDuplexClient,
    Samples,
    StreamingClient,
    to_base64,
)
from tests.system.loops import in_loop, new_id
from tests.system.running import RunningSystem

NOT_A_NUMBER = to_base64(np.full(RATE_HZ, np.nan, np.float32))
USELESS_SOUNDS = {
    "not a number": NOT_A_NUMBER,
    "infinite": to_base64(np.full(RATE_HZ, np.inf, np.float32)),
    "odd length": base64.b64encode(bytes(4 * RATE_HZ + 1)).decode(),
    "too long": to_base64(np.zeros(3 * RATE_HZ, np.float32)),
    "not base64": "§" * 100,
    "no text": 17,
    "missing": None,
}
# Nested more deeply than any parser takes, yet of fewer values than a message may have.
DEEP = '{"type": "audio_chunk", "audio": ' + "[" * 50_000 + "]" * 50_000 + "}"
SECRET_FILE = "/etc/passwd"


@pytest.mark.parametrize("sound", USELESS_SOUNDS.values(), ids=USELESS_SOUNDS)
@pytest.mark.parametrize("mode", ["duplex", "half_duplex"])
@in_loop
async def test_useless_sound_ends_a_session(crowd: RunningSystem, mode: str, sound: Any) -> None:
    is_half = mode == "half_duplex"
    prefix = "hdx" if is_half else "adx"
    url = crowd.ws(f"/ws/{mode}/{new_id(prefix)}")
    async with HalfDuplexClient.connected(url) as client:
        await client.prepare()
        if is_half:  # the first half second is ignored unheard
            await client.send_sound(np.zeros(RATE_HZ // 2, np.float32))
        await client.say("audio_chunk", **{"audio_base64" if is_half else "audio": sound})
        assert (await client.hear("error"))["code"] == "bad_audio"
        assert await client.closed() == 1007


@pytest.mark.parametrize(
    ("prepare", "code"),
    [
        ({"config": {"sample_rate": 8_000}}, "bad_config"),
        ({"config": {"temperature": -1}}, "bad_config"),
        ({"config": {"ls_mode": "telepathic"}}, "bad_config"),
        ({"config": {"chunk_ms": 37}}, "bad_config"),
        ({"config": []}, "bad_config"),
        ({"ref_audio_base64": NOT_A_NUMBER}, "bad_audio"),
        ({"ref_audio_base64": to_base64(np.zeros(31 * RATE_HZ, np.float32))}, "bad_audio"),
        ({"ref_audio_id": "../../etc/passwd"}, "not_found"),
        ({"prefix_system_prompt": 3}, "bad_json"),
    ],
    ids=lambda value: str(value)[:40],
)
@in_loop
async def test_useless_settings_end_a_session_before_it_begins(
    system: RunningSystem, prepare: dict[str, Any], code: str
) -> None:
    async with DuplexClient.connected(system.ws(f"/ws/duplex/{new_id('adx')}")) as client:
        await client.hear("queue_done")
        await client.say("prepare", **prepare)
        assert (await client.hear("error"))["code"] == code
        assert await client.closed() in (1007, 1008)
    assert shapes.offences(client.messages, shapes.DUPLEX) == []


@in_loop
async def test_files_of_the_server_are_not_voices(crowd: RunningSystem, speech: Samples) -> None:
    async with DuplexClient.connected(crowd.ws(f"/ws/duplex/{new_id('adx')}")) as client:
        await client.prepare(ref_audio_path=SECRET_FILE)
        assert (await client.hear("warning"))["code"] == "bad_audio"  # follows `prepared`
        await client.unit(speech[:RATE_HZ])
        await client.say("stop")
        await client.hear("stopped")


@pytest.mark.parametrize("picture", ["", "AAAA", "§", base64.b64encode(b"GIF89a").decode()])
@in_loop
async def test_a_useless_picture_is_left_out(
    crowd: RunningSystem, speech: Samples, picture: str
) -> None:
    second = speech[:RATE_HZ]
    async with DuplexClient.connected(crowd.ws(f"/ws/duplex/{new_id('omni')}")) as client:
        await client.prepare()
        result = await client.unit(second, frame_base64_list=[picture])
        assert result["vision_slices"] == 0
        assert {warning["code"] for warning in client.all_of("warning")} == {"bad_frame"}
        await client.say("video_frame", frame=picture)
        assert (await client.unit(second))["vision_slices"] == 0
        await client.say("stop")
        await client.hear("stopped")
    assert shapes.offences(client.messages, shapes.DUPLEX) == []


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "hello",
        [{"role": "nobody", "content": "Hello."}],
        [{"role": "user"}],
        [{"role": "user", "content": [{"type": "audio", "data": NOT_A_NUMBER}]}],
        [{"role": "user", "content": [{"type": "audio", "data": "§"}]}],
        [{"role": "user", "content": [{"type": "image", "data": "AAAA"}]}],
        [{"role": "user", "content": [{"type": "smell", "data": "AAAA"}]}],
    ],
    ids=lambda value: str(value)[:60],
)
@in_loop
async def test_a_useless_history_ends_the_socket(system: RunningSystem, messages: Any) -> None:
    async with StreamingClient.connected(system.ws(f"/ws/streaming/{new_id('s')}")) as client:
        await client.say("prefill", messages=messages)
        assert (await client.hear("error"))["code"] in ("bad_json", "bad_audio", "bad_frame")
        assert await client.closed() == 1007
    assert shapes.offences(client.messages, shapes.STREAMING) == []


@pytest.mark.parametrize("text", ["[]", "3", "null", '"stop"', DEEP, '{"type": 3}', "{}"])
@pytest.mark.parametrize("path", ["duplex", "half_duplex", "streaming"])
@in_loop
async def test_what_is_no_message_is_refused_or_warned_of(
    crowd: RunningSystem, path: str, text: str
) -> None:
    async with DuplexClient.connected(crowd.ws(f"/ws/{path}/{new_id('x')}")) as client:
        if path != "streaming":
            await client.prepare()
        await client.say_text(text)
        answer = await client.hear("error", "warning")
        if text in ("{}", '{"type": 3}'):
            assert (answer["type"], answer["code"]) == ("warning", "unknown_type")
            assert client.is_open
        else:
            assert (answer["type"], answer["code"]) == ("error", "bad_json")
            assert await client.closed() == 1007
