"""The launcher as a person meets it: real processes, real signals, stand-ins for the programs."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import stat
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.launched import free_ports
from launcher.run_folder import Phase
from tests.fakes.stand_in import Deeds
from tests.pairing import by_default, taking_turns
from tests.service.launched import LIMIT_S, Launched, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

STOP_ORDER = ["gateway term", "gateway end", "worker_0 term", "worker_0 end"]


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Launched]:
    """A folder to launch from; nothing of it is left running."""
    system = Launched(tmp_path)
    yield system
    system.close()


def test_start_shows_loading_and_ctrl_c_stops_in_order(launched: Launched) -> None:
    launched.deeds = {"worker_0": Deeds(load_s=0.6), "worker_1": Deeds(load_s=0.2)}
    process = launched.start("--workers", "2")
    printed = launched.output
    assert "worker_0: pretending to load" in printed
    assert "worker_0: ready 100%" in printed
    assert f"https://127.0.0.1:{launched.port}" in printed
    assert "the toy model" in printed
    assert launched.trace[0] == "checkpoint start"
    assert launched.trace[-1] == "gateway start"

    key = launched.data / "certs" / "key.pem"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    trusted = ssl.create_default_context(cafile=str(key.with_name("cert.pem")))
    url = f"https://localhost:{launched.port}/health"
    with urllib.request.urlopen(url, context=trusted, timeout=60) as answer:
        assert answer.status == 200
    assert {"gateway.pid", "launcher.pid", "worker_0.pid"} <= set(launched.left_files())
    flags = (launched.data / "logs" / "worker_1.log").read_text(encoding="utf8")
    assert f"--port {launched.port + 2} --worker-index 1" in flags
    assert (launched.data / "tiny" / "config.json").is_file()

    launched.deeds["gateway"] = Deeds(drain_s=0.3)
    assert launched.press_ctrl_c(process) == 0
    assert [line for line in launched.trace if line in STOP_ORDER] == STOP_ORDER
    launched.assert_nothing_left()


def test_doors_start_after_their_desk_are_restarted_and_end_before_it(launched: Launched) -> None:
    launched.port = free_ports(6)  # two doors, the desk, and workers behind them
    launched.variables = {"OMNI_SERVICE_WORKER_BASE_PORT": str(launched.port + 3)}
    launched.deeds = {"door_1": Deeds(drain_s=0.3)}
    process = launched.start("--doors", "2")
    starts = [line.removesuffix(" start") for line in launched.trace]
    assert starts[-4:-2] == ["worker_0", "desk"] and set(starts[-2:]) == {"door_0", "door_1"}
    assert f"2 doors on ports {launched.port} to {launched.port + 1}" in launched.output
    trusted = ssl.create_default_context(cafile=str(launched.data / "certs" / "cert.pem"))
    for port in (launched.port, launched.port + 1):
        url = f"https://localhost:{port}/health"
        with urllib.request.urlopen(url, context=trusted, timeout=60) as answer:
            assert answer.status == 200
    flags = (launched.data / "logs" / "door_1.log").read_text(encoding="utf8")
    assert f"--desk 127.0.0.1:{launched.port + 2}" in flags

    others = {name: launched.pid(name) for name in ("worker_0", "desk", "door_0")}
    os.kill(launched.pid("door_1"), signal.SIGKILL)
    eventually("it was started again", lambda: launched.restarts("door_1") == 1)
    eventually("it is ready", lambda: launched.phase("door_1") is Phase.READY)
    assert {name: launched.pid(name) for name in others} == others

    assert launched.press_ctrl_c(process) == 0
    ends = [line for line in launched.trace if line.endswith((" term", " end"))]
    assert ends.index("door_1 end") < ends.index("desk term")
    assert ends.index("desk end") < ends.index("worker_0 term")
    launched.assert_nothing_left()


def test_the_second_start_reuses_checkpoint_and_certificate(launched: Launched) -> None:
    launched.press_ctrl_c(launched.start())
    certificate = (launched.data / "certs" / "cert.pem").read_bytes()
    launched.press_ctrl_c(launched.start())
    assert launched.trace.count("checkpoint start") == 1
    assert (launched.data / "certs" / "cert.pem").read_bytes() == certificate


def test_background_start_status_second_start_and_stop(launched: Launched, tmp_path: Path) -> None:
    launched.deeds = {"worker_0": Deeds(load_s=0.2)}
    assert launched.finish("--detach") == 0
    assert "worker_0: pretending to load" in launched.output
    assert "Ready." in launched.output
    assert stat.S_IMODE((launched.data / "logs" / "launcher.log").stat().st_mode) == 0o600
    assert launched.finish("--status") == 0
    assert "System: ready" in launched.output

    assert launched.finish() == 1
    assert "already running" in launched.output

    (tmp_path / "other").mkdir()
    other = Launched(tmp_path / "other")
    other.port = launched.port
    assert other.finish() == 1
    assert f"port {launched.port} of 127.0.0.1 is already in use" in other.output
    other.assert_nothing_left()
    assert launched.is_up

    assert launched.finish("--stop") == 0
    assert [line for line in launched.trace if line in STOP_ORDER] == STOP_ORDER
    launched.assert_nothing_left()
    assert launched.finish("--stop") == 0
    assert "Not running." in launched.output


def test_a_dead_worker_is_started_again_and_disturbs_nobody(launched: Launched) -> None:
    process = launched.start("--workers", "2")
    before = {name: launched.pid(name) for name in ("worker_0", "worker_1", "gateway")}
    os.kill(before["worker_1"], signal.SIGKILL)
    eventually(
        "worker_1 is back",
        lambda: (
            launched.restarts("worker_1") == 1
            and launched.phase("worker_1") is Phase.READY
            and launched.pid("worker_1") != before["worker_1"]
        ),
    )
    assert launched.pid("worker_0") == before["worker_0"]
    assert launched.pid("gateway") == before["gateway"]
    assert "worker_1 was killed by SIGKILL; restarting in" in launched.output
    eventually("it says so", lambda: "worker_1 is ready again" in launched.output)
    assert launched.press_ctrl_c(process) == 0
    launched.assert_nothing_left()


def wish_for_restart(launched: Launched, wish: Path, times: int) -> None:
    """Have the worker end by its own wish, and wait until it is back."""
    before = launched.pid("worker_0")
    wish.touch()
    eventually("it began anew", lambda: launched.restarts("worker_0") == times)
    eventually("it is ready", lambda: launched.phase("worker_0") is Phase.READY)
    assert launched.pid("worker_0") != before


def test_a_worker_that_wants_to_is_started_again_as_often_as_it_wants(launched: Launched) -> None:
    wish = launched.folder / "wish"
    launched.deeds = {"worker_0": Deeds(begins_anew_if=str(wish))}
    process = launched.start()
    for times in range(1, 6):  # more often than it may die
        wish_for_restart(launched, wish, times)
    assert "worker_0 requested a restart; restarting in 0.0 s" in launched.output
    assert launched.press_ctrl_c(process) == 0
    launched.assert_nothing_left()


def test_a_restart_that_fails_is_tried_again_after_a_while(launched: Launched) -> None:
    wish, log = launched.folder / "wish", launched.data / "logs" / "worker_0.log"
    launched.deeds = {"worker_0": Deeds(begins_anew_if=str(wish))}
    process = launched.start()
    log.unlink()
    log.mkdir()  # so that no process can write to it
    wish.touch()
    failure = "worker_0 could not be started; restarting in"
    eventually("it was tried twice", lambda: launched.output.count(failure) > 1)
    assert launched.output.count("worker_0 requested a restart") == 1
    log.rmdir()
    eventually("it is back", lambda: launched.phase("worker_0") is Phase.READY)
    assert launched.press_ctrl_c(process) == 0
    launched.assert_nothing_left()


def test_a_worker_that_hangs_is_started_again(launched: Launched) -> None:
    launched.variables = {"LAUNCHER_PATIENCE_S": "2"}
    process = launched.start()
    os.kill(launched.pid("worker_0"), signal.SIGSTOP)
    eventually("it is back", lambda: launched.restarts("worker_0") == 1)
    eventually("it is ready", lambda: launched.phase("worker_0") is Phase.READY)
    assert "worker_0 stopped responding" in launched.output
    assert launched.press_ctrl_c(process) == 0
    launched.assert_nothing_left()


@pytest.mark.parametrize("name", by_default(["gateway"], ["worker_1", "gateway"]))
def test_what_dies_too_often_is_tried_again_and_the_others_go_on(
    launched: Launched, name: str
) -> None:
    flag = launched.folder / "broken"
    launched.deeds = {name: Deeds(breaks_if=str(flag))}
    process = launched.start("--workers", "2")
    flag.touch()
    tried_often = 5  # more often than it may die in a row
    eventually("it is tried again", lambda: launched.restarts(name) >= tried_often)
    assert launched.phase("worker_0") is Phase.READY
    assert "it failed too often, the next attempt is in" in launched.output
    assert "out of memory, said the stand-in" in launched.output
    flag.unlink()
    eventually("it is back", lambda: launched.phase(name) is Phase.READY)
    assert launched.press_ctrl_c(process) == 0
    launched.assert_nothing_left()


@pytest.mark.parametrize("name", ["worker_1", "gateway", "checkpoint"])
def test_what_dies_while_starting_ends_the_start_with_its_last_words(
    launched: Launched, name: str
) -> None:
    launched.deeds = {"worker_0": Deeds(load_s=0.1), name: Deeds(breaks=True)}
    assert launched.finish("--workers", "2") == 1
    assert "| RuntimeError: out of memory, said the stand-in" in launched.output
    assert "exited with code 3" in launched.output
    launched.assert_nothing_left()
    assert not (launched.data / "tiny.tmp").exists()


def test_a_model_that_cannot_be_loaded_ends_the_start_with_the_reason(launched: Launched) -> None:
    launched.deeds = {"worker_0": Deeds(fails=True)}
    assert launched.finish() == 1
    assert "worker_0 failed while starting: no such checkpoint" in launched.output
    launched.assert_nothing_left()


@pytest.fixture
def fetching(launched: Launched) -> Launched:
    launched.variables["OMNI_MODEL_EMBEDDED"] = "auto"
    return launched


def test_the_system_is_up_while_the_cascade_is_fetched_and_ctrl_c_ends_that(
    fetching: Launched,
) -> None:
    fetching.deeds = {"cascade": Deeds(load_s=3_600)}
    process = fetching.start()
    eventually("it shows how far", lambda: "cascade: downloading 600 MB 40%" in fetching.output)
    assert fetching.press_ctrl_c(process) == 0
    fetching.assert_nothing_left()
    assert list((fetching.data / "cascade").iterdir()) == []


@pytest.mark.parametrize(
    ("deeds", "said"),
    [
        pytest.param(Deeds(), "The cascade is complete", marks=pytest.mark.matrix),
        (Deeds(fails=True), "so nano is used: no place has it, said the stand-in."),
        (Deeds(breaks=True), "so nano is used: the download exited with code 3."),
    ],
)
def test_how_the_fetch_ended_is_said_and_ends_nothing_else(
    fetching: Launched, deeds: Deeds, said: str
) -> None:
    fetching.deeds = {"cascade": deeds}
    process = fetching.start()
    eventually(said, lambda: said in fetching.output)
    assert process.poll() is None
    assert fetching.press_ctrl_c(process) == 0
    fetching.assert_nothing_left()


def test_a_start_that_demands_the_cascade_waits_for_it(fetching: Launched) -> None:
    fetching.variables["OMNI_MODEL_EMBEDDED"] = "cascade"
    fetching.deeds = {"cascade": Deeds(fails=True)}
    assert fetching.finish() == 1
    assert "model.embedded is cascade, but no place has it, said the stand-in" in fetching.output
    assert "worker_0 start" not in fetching.trace
    fetching.assert_nothing_left()
    fetching.deeds = {"cascade": Deeds(load_s=0.2)}
    fetching.press_ctrl_c(fetching.start())
    assert fetching.output.count("The cascade is complete") == 1


STAGES = {"making": "checkpoint start", "loading": "worker_1 start", "gateway": "gateway start"}


@pytest.mark.parametrize(
    ("number", "stage"),
    taking_turns(
        [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL],
        ["gateway", "loading", "making"],
    ),
)
def test_no_signal_at_any_stage_of_the_start_leaves_a_process(
    launched: Launched, number: signal.Signals, stage: str
) -> None:
    slow = Deeds(load_s=5)
    launched.deeds = {
        "checkpoint": slow if stage == "making" else Deeds(),
        "worker_1": slow if stage == "loading" else Deeds(),
        "gateway": slow,
    }
    process = launched.run("--workers", "2")
    eventually("the stage is reached", lambda: STAGES[stage] in launched.trace)
    process.send_signal(number)
    code = process.wait(LIMIT_S)
    assert code == (-number if number is signal.SIGKILL else 130)
    eventually("all ended", lambda: not launched.processes())
    if number is not signal.SIGKILL:
        launched.assert_nothing_left()
        assert not (launched.data / "tiny.tmp").exists()


def test_a_killed_launcher_is_recognised_and_its_leftovers_are_ended(launched: Launched) -> None:
    launched.deeds = {"worker_0": Deeds(ignores_term=True)}
    launched.variables = {"OMNI_SERVICE_DRAIN_TIMEOUT_S": "0.1", "LAUNCHER_PATIENCE_S": "1"}
    first = launched.start()
    stubborn = launched.pid("worker_0")
    first.kill()
    first.wait()
    eventually("the kernel told them", lambda: "worker_0 term" in launched.trace)
    eventually("the gateway ended", lambda: launched.processes() == [stubborn])
    assert launched.finish("--status") == 3
    assert f"Left over from a killed launcher: worker_0, process {stubborn}" in launched.output

    launched.deeds = {}
    process = launched.start()
    assert "The last run did not shut down cleanly" in launched.output
    assert launched.pid("worker_0") != stubborn
    assert launched.press_ctrl_c(process) == 0
    launched.assert_nothing_left()


def test_stop_ends_what_a_killed_launcher_left(launched: Launched) -> None:
    launched.deeds = {"worker_0": Deeds(ignores_term=True)}
    launched.variables = {"OMNI_SERVICE_DRAIN_TIMEOUT_S": "0.1", "LAUNCHER_PATIENCE_S": "1"}
    process = launched.start()
    process.kill()
    process.wait()
    # A number that was given away again, to us, is nobody's leftover.
    launched.data.joinpath("run", "worker_9.pid").write_text(str(os.getpid()), encoding="ascii")
    assert launched.finish("--stop") == 0
    launched.assert_nothing_left()


def test_the_second_ctrl_c_does_not_wait_for_sessions(launched: Launched) -> None:
    launched.deeds = {"gateway": Deeds(drain_s=60)}
    launched.variables = {"OMNI_SERVICE_DRAIN_TIMEOUT_S": "60"}
    process = launched.start()
    os.killpg(process.pid, signal.SIGINT)
    eventually("it drains", lambda: "gateway term" in launched.trace)
    assert launched.phase("worker_0") is Phase.READY
    assert launched.press_ctrl_c(process) == 0
    launched.assert_nothing_left()


@pytest.mark.parametrize("setting", ["service.worker_base_port", "webrtc.port"])
def test_a_foreign_server_on_a_port_is_named_before_anything_starts(
    launched: Launched, setting: str
) -> None:
    if setting == "webrtc.port":
        variables = {"OMNI_WEBRTC_ENABLED": "1", "OMNI_SERVICE_WORKER_BASE_PORT": "19999"}
        launched.variables = {"OMNI_WEBRTC_PORT": str(launched.port + 1), **variables}
    with socket.create_server(("127.0.0.1", launched.port + 1)):
        assert launched.finish() == 1
    assert f"port {launched.port + 1} of 127.0.0.1 is already in use" in launched.output
    assert setting in " ".join(launched.output.split())
    assert launched.trace == []
    launched.assert_nothing_left()


def test_a_data_folder_that_cannot_be_made_is_named(launched: Launched) -> None:
    launched.data.touch()
    assert launched.finish("--detach") == 1
    assert f"Not a directory: '{launched.data}" in launched.output
    assert "Traceback" not in launched.output


def test_a_wrong_setting_is_named_before_anything_starts(launched: Launched) -> None:
    launched.variables = {"OMNI_SERVICE_REQUEST_TIMEOUT": "-1"}
    assert launched.finish() == 2
    assert 'service.request_timeout = "-1" in OMNI_SERVICE_REQUEST_TIMEOUT' in launched.output


def test_one_worker_for_each_gpu_the_driver_names(launched: Launched) -> None:
    tools = launched.folder / "bin"
    tools.mkdir()
    driver = tools / "nvidia-smi"
    rows = "0, GPU-aaaa, Card A, 81920\\n1, GPU-bbbb, Card B, 81920\\n"
    driver.write_text(f"#!/bin/sh\nprintf '{rows}'\n", encoding="ascii")
    driver.chmod(0o755)
    launched.variables = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "CUDA_VISIBLE_DEVICES": "GPU-bbbb,0",
    }
    process = launched.start("--http")
    assert f"http://127.0.0.1:{launched.port}" in launched.output
    assert "Starting worker_0 on GPU 1 (Card B)" in launched.output
    assert "Starting worker_1 on GPU 0 (Card A)" in launched.output
    environment = Path(f"/proc/{launched.pid('worker_0')}/environ").read_bytes()
    assert b"CUDA_VISIBLE_DEVICES=GPU-bbbb\0" in environment
    assert launched.press_ctrl_c(process) == 0
