"""What clients of a load send, how they read answers, and which system is started for them."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from websockets.asyncio.server import ServerConnection, serve

from benchmarks.launched import Device
from benchmarks.paced_client import UNIT_S, Script, Session
from benchmarks.session_load import PICTURE_SIZE, Load, Usage, scripts
from benchmarks.sessions import Options, plan_of

PATIENCE_S = 9.0


def result(wall_clock_ms: float, samples: int = 0, slices: int = 0) -> dict[str, Any]:
    audio = base64.b64encode(np.zeros(samples, "<f4").tobytes()).decode()
    return {
        "type": "result",
        "is_listen": samples == 0,
        "audio_data": audio,
        "wall_clock_ms": wall_clock_ms,
        "vision_slices": slices,
    }


def test_a_load_is_read_from_its_text() -> None:
    assert Load.parse("audio:64:60", PATIENCE_S) == Load(64, 60, patience_s=PATIENCE_S)
    assert Load.parse("omni:1:20", PATIENCE_S).has_pictures
    for wrong in ("video:1:1", "audio:0:1", "audio:1", "audio:1:x"):
        with pytest.raises(ValueError):
            Load.parse(wrong, PATIENCE_S)


def test_clients_are_spread_over_the_second_and_the_pattern_of_sound() -> None:
    first, second = scripts(Load(sessions=2, units=6, has_pictures=True))
    assert (first.begin_s, second.begin_s) == (0.0, 0.5)
    assert len(set(first.sounds)) == 2  # noise and silence
    assert first.sounds[1:] == second.sounds[:-1]
    audible = [
        bool(np.frombuffer(base64.b64decode(json.loads(text)["audio"]), "<f4").any())
        for text in first.sounds
    ]
    assert audible == [True, True, False, False, False, True]
    assert scripts(Load(1, 1))[0].picture == ""


def test_pictures_are_jpegs_of_the_size_a_camera_gives(tmp_path: Path) -> None:
    [script] = scripts(Load(1, 1, has_pictures=True))
    message = json.loads(script.picture)
    assert message["type"] == "video_frame"
    file = tmp_path / "picture"
    file.write_bytes(base64.b64decode(message["frame"]))
    with Image.open(file) as picture:
        assert (picture.format, picture.size) == ("JPEG", PICTURE_SIZE)


def test_an_answer_belongs_to_the_unit_that_came_when_it_says() -> None:
    session = Session(sent_s=[10.0, 11.0, 12.0, 13.0])
    session.take_result(result(300, samples=24_000), 10.3)
    session.take_result(result(1_400, slices=2), 13.4)  # of the third: the second is lost
    assert session.latencies_s == pytest.approx([0.3, 1.4])
    assert (session.dropped, session.settled) == (1, 3)
    assert session.speaking_s == pytest.approx([0.3])
    assert session.received_s == pytest.approx(1.0)
    assert session.slices == 2


def test_whoever_gets_no_place_in_time_leaves() -> None:
    async def turn_nobody_in(socket: ServerConnection) -> None:
        await socket.send(json.dumps({"type": "queued", "position": 1}))
        await socket.wait_closed()

    async def wait() -> Session:
        async with serve(turn_nobody_in, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            session = Session()
            await session.run(f"ws://127.0.0.1:{port}", Script(["{}"], patience_s=0.05))
            return session

    session = asyncio.run(wait())
    assert session.problem == "ProtocolError: no place in 0.05 s"
    assert session.ended_s is not None and session.late == 0


@pytest.mark.parametrize(("latency_s", "late"), [(0.5, 0), (1.5, 1), (2.5, 1)])
def test_a_result_after_the_next_unit_was_due_is_late(latency_s: float, late: int) -> None:
    begin_s = time.monotonic()
    session = Session(sent_s=[begin_s + second * UNIT_S for second in range(3)])
    session.take_result(result(1_000 * latency_s), begin_s + latency_s)
    assert session.latencies_s == [pytest.approx(latency_s)] and session.late == late


def test_units_without_a_result_are_late() -> None:
    now_s = time.monotonic()
    session = Session(sent_s=[now_s - age_s for age_s in (3.5, 2.5, 1.5, 0.5)])
    assert (session.late, session.overdue) == (3, 3)
    session.take_result(result(2_500), now_s)  # the server gave up the first
    assert session.latencies_s == [pytest.approx(2.5)]
    assert (session.late, session.dropped, session.overdue) == (3, 1, 1)
    session.ended_s = now_s + 0.4  # the newest was not due yet
    assert (session.late, session.settled + session.overdue) == (3, 3)


def test_an_endless_session_repeats_its_sounds_until_the_server_ends_it() -> None:
    received: list[str] = []

    async def serve_three_units(socket: ServerConnection) -> None:
        await socket.send(json.dumps({"type": "queue_done", "worker_id": "seat_1"}))
        await socket.recv()
        await socket.send(json.dumps({"type": "prepared"}))
        for _ in range(3):
            received.append(str(await socket.recv()))
            await socket.send(json.dumps(result(1)))
        await socket.send(json.dumps({"type": "error", "message": "The worker has ended."}))

    async def run() -> Session:
        async with serve(serve_three_units, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            session = Session()
            await session.run(f"ws://127.0.0.1:{port}", Script(["a", "b"], is_endless=True))
            return session

    session = asyncio.run(run())
    assert received == ["a", "b", "a"]
    assert session.problem == "ProtocolError: The worker has ended."
    assert (session.worker_id, len(session.latencies_s)) == ("seat_1", 3)


def test_a_cards_worker_chooses_its_slots_and_sees_the_card() -> None:
    on_card = Options((Load(80, 1),), checkpoint=Path("full"), device=Device.CUDA, cache="int8")
    plan = plan_of(on_card)
    assert "worker_slots" not in plan.config["service"]
    assert (plan.backend, plan.device) == ("real", Device.CUDA)
    assert plan.config["model"] == {
        "model_path": str(Path("full").resolve()),
        "cache": "int8",
        "weights": "bf16",
    }
    on_cpu = plan_of(Options((Load(3, 1),), checkpoint=Path("tiny")))
    assert on_cpu.config["service"]["worker_slots"] == 3
    assert (on_cpu.backend, on_cpu.device) == ("real", Device.CPU)


def test_usage_keeps_the_most_memory_and_the_last_capacity() -> None:
    class System:
        plan = plan_of(Options((Load(1, 1),)))
        resident = iter((5, 9, 7))
        health = iter(((8, 2.0), (4, 3.0), (6, 1.0)))

        def resident_bytes(self) -> dict[str, int]:
            return {"worker_0": next(self.resident)}

        def worker_health(self, _index: int) -> dict[str, Any]:
            capacity, vram_mb = next(self.health)
            return {"slots": 58, "capacity": capacity, "vram_used_mb": vram_mb}

    usage, system = Usage(), System()
    for _ in range(3):
        usage.sample(system)  # type: ignore[arg-type]
    assert usage.resident_bytes == {"worker_0": 9}
    assert usage.card_bytes == {"worker_0": 3_000_000}
    assert (usage.slots, usage.capacity) == ({"worker_0": 58}, {"worker_0": 6})
