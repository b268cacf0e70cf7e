"""The commands programs are started with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from config import HOME, Settings
from gateway_modules.web.certificates import GatewayTls
from launcher.machine import Gpu
from launcher.plan import (
    SAVED_GIB,
    SECRET_VARIABLE,
    Backend,
    Options,
    Planner,
    ProgramPlan,
    Programs,
    slots_of,
    worker_devices,
)
from launcher.scaling import Bounds
from settings.workers import local_address

TLS = GatewayTls(Path("/c/cert.pem"), Path("/c/key.pem"))
A, B = Gpu(0, "0", "Card A", 80), Gpu(3, "GPU-bbbb", "Card B", 80)


def planner(
    settings: Mapping[str, object] | None = None,
    options: Options | None = None,
    environment: Mapping[str, str] | None = None,
) -> Planner:
    return Planner(
        Settings.model_validate(settings or {}),
        options or Options(),
        Programs(("worker",), ("gateway",), ("tiny",)),
        environment or {"HOME": "/h"},
        8,
    )


def flag(plan: ProgramPlan, name: str) -> str | None:
    return plan.command[plan.command.index(name) + 1] if name in plan.command else None


@pytest.mark.parametrize(
    ("count", "gpus", "devices"),
    [
        (0, [], [None]),
        (3, [], [None, None, None]),
        (0, [A, B], [A, B]),
        (1, [A, B], [A]),
        (3, [A, B], [A, B, A]),
    ],
)
def test_one_worker_for_each_gpu_unless_told(
    count: int, gpus: list[Gpu], devices: list[Gpu | None]
) -> None:
    assert worker_devices(count, gpus) == devices


@pytest.mark.parametrize(
    ("memory_gib", "usual_tokens", "cache", "sharing", "slots"),
    [
        (141, 4_096, "bf16", 1, 112),
        (141, 4_096, "bf16", 2, 43),
        (141, 4_096, "int8", 2, 61),
        (141, 20_480, "bf16", 1, 32),
        (80, 4_096, "bf16", 1, 52),
        (80, 4_096, "int8", 1, 74),
        (80, 20_480, "bf16", 1, 15),
        (80, 2_048, "bf16", 1, 76),
        (48, 4_096, "bf16", 1, 21),
        (24, 4_096, "int8", 1, 1),
        (0, 4_096, "bf16", 1, 1),
    ],
)
def test_a_gpu_takes_as_many_conversations_as_its_memory_holds(
    memory_gib: float, usual_tokens: int, cache: str, sharing: int, slots: int
) -> None:
    assert slots_of(Gpu(0, "0", "Card", memory_gib), usual_tokens, sharing, cache=cache) == slots


def test_smaller_weights_leave_room_for_more_conversations() -> None:
    slots = [slots_of(Gpu(0, "0", "Card", 24), 4_096, 1, weights) for weights in SAVED_GIB]
    assert slots == [1, 5, 9]
    (worker,) = planner({"model": {"weights": "int4"}}).workers([A])
    assert flag(worker, "--slots") == "64"


def test_how_many_conversations_a_worker_takes_can_be_told() -> None:
    (worker,) = planner().workers([A])
    assert flag(worker, "--slots") == "52"
    (worker,) = planner({"model": {"cache": "int8"}}).workers([A])
    assert flag(worker, "--slots") == "74"
    first, *_ = planner({"service": {"num_workers": 3}}).workers([A, B])
    assert flag(first, "--slots") == "13"  # two of the three are on this card
    (worker,) = planner({"duplex": {"max_kv_tokens": 40_960}}).workers([A])
    assert flag(worker, "--slots") == "15"  # each may become five times as long
    (worker,) = planner({"service": {"worker_slots": 4}}).workers([A])
    assert flag(worker, "--slots") is None  # the configuration says it
    (worker,) = planner().workers([])
    assert flag(worker, "--slots") is None


def test_a_worker_sees_its_own_gpu_alone() -> None:
    _, second = planner().workers([A, B])
    assert second.name == "worker_1"
    assert second.environment["CUDA_VISIBLE_DEVICES"] == "GPU-bbbb"
    assert second.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"  # as the driver's tool counts
    assert flag(second, "--gpu-id") == "3"
    assert flag(second, "--port") == "22401"
    assert flag(second, "--host") == "127.0.0.1"
    assert flag(second, "--worker-index") == "1"
    assert second.health_url == "http://127.0.0.1:22401/health"
    assert second.environment["HOME"] == "/h"
    assert second.environment["MINICPMO_HOME"] == str(HOME), "a relative one is resolved once"


def test_workers_on_the_cpu_share_the_cores() -> None:
    plans = planner(options=Options(workers=Bounds(3, 3))).workers([])
    assert [plan.environment["OMP_NUM_THREADS"] for plan in plans] == ["2", "2", "2"]
    assert [plan.environment["CUDA_VISIBLE_DEVICES"] for plan in plans] == ["", "", ""]
    assert flag(plans[0], "--gpu-id") is None
    told = planner(environment={"OMP_NUM_THREADS": "5"}).workers([])
    assert told[0].environment["OMP_NUM_THREADS"] == "5"


def test_the_command_line_counts_before_the_configuration() -> None:
    settings = {"service": {"num_workers": 2}}
    assert len(planner(settings).workers([])) == 2
    assert len(planner(settings, Options(workers=Bounds(1, 1))).workers([])) == 1


def test_the_gateway_knows_its_workers_and_its_certificate() -> None:
    options = Options(config=Path("/c/config.json"), backend=Backend.FAKE)
    plan = planner({"service": {"gateway_port": 9000}}, options).gateway(2, TLS)
    assert flag(plan, "--workers") == "127.0.0.1:22400,127.0.0.1:22401"
    assert flag(plan, "--port") == "9000"
    assert flag(plan, "--host") == "0.0.0.0"
    assert flag(plan, "--ssl-certfile") == "/c/cert.pem"
    assert flag(plan, "--ssl-keyfile") == "/c/key.pem"
    assert flag(plan, "--config") == "/c/config.json"
    assert "--https" in plan.command
    assert plan.health_url == "https://127.0.0.1:9000/health"
    worker = planner(options=options).workers([])[0]
    assert flag(worker, "--backend") == "fake"
    assert flag(worker, "--config") == "/c/config.json"


def test_without_tls() -> None:
    plan = planner().gateway(1, None)
    assert "--http" in plan.command
    assert flag(plan, "--ssl-certfile") is None
    assert plan.health_url == "http://127.0.0.1:8006/health"


def test_doors_take_the_ports_of_the_gateway_and_know_the_desk() -> None:
    service = {"doors": 2, "gateway_port": 9000}
    made = planner({"service": service, "security": {"worker_tls": True}})
    _, (desk,), doors = made.groups([], TLS)
    assert flag(desk, "--role") == "desk" and flag(desk, "--workers") == "127.0.0.1:22400"
    assert desk.url == "https://127.0.0.1:9002" and "--ssl-certfile" not in desk.command
    assert [(door.name, door.host, door.url) for door in doors] == [
        ("door_0", "0.0.0.0", "https://127.0.0.1:9000"),
        ("door_1", "0.0.0.0", "https://127.0.0.1:9001"),
    ]
    assert {flag(door, "--role") for door in doors} == {"door"}
    assert {flag(door, "--desk") for door in doors} == {"127.0.0.1:9002"}
    assert {flag(door, "--ssl-certfile") for door in doors} == {"/c/cert.pem"}
    secrets = {plan.environment[SECRET_VARIABLE] for plan in (desk, *doors)}
    assert len(secrets) == 1
    _, (desk,), (door, _) = planner({"service": {"doors": 2, "desk": "0.0.0.0:8005"}}).groups([])
    assert (desk.host, desk.port) == ("0.0.0.0", 8005)
    assert flag(door, "--desk") == "127.0.0.1:8005"


def test_every_program_has_an_address_and_starts_after_those_it_needs() -> None:
    (worker,), (gateway,) = planner().groups([])
    assert (worker.host, worker.port) == ("127.0.0.1", 22_400)
    assert (gateway.host, gateway.port) == ("0.0.0.0", 8006)
    everything = planner({"service": {"doors": 2}, "webrtc": {"enabled": True}})
    ports = [[plan.port for plan in group] for group in everything.groups([A, B])]
    assert ports == [[22_400, 22_401], [8008], [22_390], [8006, 8007]]


@pytest.mark.parametrize("port", [0, 65_536])
def test_a_desk_without_a_usable_port_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match="its port is from 1 to 65535"):
        planner({"service": {"doors": 2, "desk": f"10.0.0.1:{port}"}})


def test_doors_beyond_the_last_port_are_refused() -> None:
    with pytest.raises(ValueError, match="doors"):
        planner({"service": {"doors": 4, "gateway_port": 65_532}})


@pytest.mark.parametrize(
    ("host", "reached"),
    [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("fe80::1", "[fe80::1]"), ("studio", "studio")],
)
def test_how_a_listening_address_is_reached(host: str, reached: str) -> None:
    assert local_address(host, 80) == f"{reached}:80"


def test_workers_of_other_machines_are_listed_beside_ours_and_all_speak_tls() -> None:
    service = {"workers": ["gpu-7", "dns:more:22400"]}
    plans = planner({"service": service, "security": {"worker_tls": True}})
    listed = flag(plans.gateway(1, None), "--workers")
    assert listed == "127.0.0.1:22400,gpu-7,dns:more:22400"
    (worker,) = plans.workers([])
    assert (worker.url, flag(worker, "--name")) == ("https://127.0.0.1:22400", "worker_0")


def test_webrtc_is_a_process_of_its_own_where_it_is_on() -> None:
    assert [plan.name for group in planner().groups([]) for plan in group] == [
        "worker_0",
        "gateway",
    ]
    on = planner({"webrtc": {"enabled": True, "port": 22_391}})
    _, (plan,), _ = on.groups([], TLS)
    assert (plan.name, plan.host, plan.port) == ("webrtc", "127.0.0.1", 22_391)
    assert flag(plan, "--gateway") == "wss://127.0.0.1:8006"
    assert flag(plan, "--gateway-certfile") == "/c/cert.pem"
    _, (plan,), _ = on.groups([])
    assert flag(plan, "--gateway") == "ws://127.0.0.1:8006"
    assert flag(plan, "--gateway-certfile") is None
