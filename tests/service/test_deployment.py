"""What deployment files name exists: settings, ports, files, targets; and what they promise."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from config import Settings, load_settings
from core.serving.fake_backend import FakeBackend
from settings.sources import environment_name, known_keys
from tests.service.workers import running_worker, settings_for
from tests.source_tree import ROOT

CONTAINERFILE = (ROOT / "Containerfile").read_text(encoding="utf8")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf8"))
UNIT = (ROOT / "deploy" / "minicpmo-live.service").read_text(encoding="utf8")
WITH_WEBRTC: dict[str, Any] = yaml.safe_load(
    (ROOT / "compose.webrtc.yaml").read_text(encoding="utf8")
)["services"]
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
VARIABLE = re.compile(r"\bOMNI_[A-Z_]+")
KNOWN = {environment_name(key).upper() for key in known_keys(Settings)}
DEFAULTS = Settings().service
SECRET = "a secret of eight letters"


@pytest.mark.parametrize(
    "path",
    [
        "Containerfile",
        "compose.yaml",
        "compose.webrtc.yaml",
        "deploy/minicpmo-live.service",
        "deploy/chart/templates/_helpers.tpl",
        "deploy/chart/templates/gateway.yaml",
        "deploy/chart/templates/_ray.tpl",
    ],
)
def test_every_variable_is_a_setting(path: str) -> None:
    named = set(VARIABLE.findall((ROOT / path).read_text(encoding="utf8")))
    assert named and named <= KNOWN, named - KNOWN


def test_the_chart_has_our_version() -> None:
    chart = yaml.safe_load((ROOT / "deploy" / "chart" / "Chart.yaml").read_text(encoding="utf8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]


def ours() -> Iterator[tuple[str, dict[str, Any]]]:
    return ((name, service) for name, service in SERVICES.items() if "build" in service)


def settings_of(environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    told = {"WORKER_SECRET": SECRET, "MODEL_PATH": "/srv/model", "PUBLIC_ADDRESS": "203.0.113.9"}

    def value(found: re.Match[str]) -> str:
        return told.get(found[1], (found[2] or "").removeprefix(":-") if found[2] else "")

    for key, text in environment.items():
        filled = re.sub(r"\$\{(\w+)(:[-?][^}]*)?\}", value, text)
        monkeypatch.setenv(key, filled)
    return load_settings(None)


@pytest.mark.parametrize("name", [name for name, one in ours() if "environment" in one])
def test_a_services_environment_makes_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(SERVICES[name]["environment"], monkeypatch)
    assert settings.security.worker_tls and settings.security.worker_secret is not None
    assert settings.security.worker_secret.get_secret_value() == SECRET
    grace_s = float(SERVICES[name]["stop_grace_period"].removesuffix("s"))
    assert grace_s > settings.service.drain_timeout_s
    if name in ("gateway", "desk"):
        (listed,) = settings.service.workers
        assert listed == f"dns:worker:{DEFAULTS.worker_base_port}"
    if name == "gateway":
        assert "gateway" in settings.security.allowed_hosts  # what Prometheus calls it
    elif name.startswith("worker"):
        assert "worker" in SERVICES[name]["networks"]["default"]["aliases"]


def test_two_doors_take_the_place_of_the_gateway() -> None:
    assert SERVICES["desk"]["command"] == ["--role", "desk"]
    instead = set(SERVICES["desk"]["profiles"])
    assert not instead & set(SERVICES["gateway"]["profiles"])
    for number in range(2):
        door = SERVICES[f"door-{number}"]
        assert door["command"] == ["--role", "door", "--desk", f"desk:{DEFAULTS.gateway_port}"]
        assert set(door["profiles"]) == instead
        assert door["ports"] == [f"{DEFAULTS.gateway_port + number}:{DEFAULTS.gateway_port}"]
        assert "door" in door["networks"]["default"]["aliases"]
    for device in ("cpu", "cuda"):
        assert SERVICES[f"worker-{device}"]["profiles"] == [device, f"{device}-doors"]


def test_webrtc_is_served_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "webrtc" not in SERVICES
    gateway, webrtc = WITH_WEBRTC["gateway"], WITH_WEBRTC["webrtc"]
    together = {**SERVICES["gateway"]["environment"], **gateway["environment"]}
    asked = settings_of(together, monkeypatch).webrtc
    served = settings_of(webrtc["environment"], monkeypatch).webrtc
    assert asked.enabled and asked.url == served.url == Settings().webrtc.url
    assert webrtc["network_mode"] == "service:gateway"  # where that address leads to it
    (published,) = gateway["ports"]
    assert published == f"{served.udp_ports}:{served.udp_ports}/udp"
    assert len(served.ports) == 4 * served.max_peers and served.public_address == "203.0.113.9"
    assert webrtc["command"][:2] == ["--gateway", f"wss://127.0.0.1:{DEFAULTS.gateway_port}"]
    assert webrtc["volumes"] == ["data:/data"]
    assert f"FROM program AS {webrtc['build']['target']}\n" in CONTAINERFILE


def test_what_compose_names_exists() -> None:
    targets = set(re.findall(r"^FROM \S+ AS (\S+)$", CONTAINERFILE, re.MULTILINE))
    for name, service in ours():
        build = service["build"]
        assert (ROOT / build["dockerfile"]).is_file() and build["target"] in targets, name
        assert set(service.get("depends_on", ())) <= set(SERVICES), name
    for name, service in SERVICES.items():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            if source.startswith("./"):
                assert (ROOT / source).is_file(), (name, source)
            elif not source.startswith("$"):
                assert source in COMPOSE["volumes"], (name, source)
        for config in service.get("configs", ()):
            assert config["source"] in COMPOSE["configs"], name
    assert SERVICES["gateway"]["ports"] == [f"{DEFAULTS.gateway_port}:{DEFAULTS.gateway_port}"]
    assert {profile for one in SERVICES.values() for profile in one.get("profiles", ())} == {
        "cpu",
        "cuda",
        "cpu-doors",
        "cuda-doors",
        "observability",
    }


def scraped(text: str) -> set[int]:
    jobs = yaml.safe_load(text)["scrape_configs"]
    named = {one["port"] for job in jobs for one in job.get("dns_sd_configs", ())}
    targets = (t for job in jobs for one in job.get("static_configs", ()) for t in one["targets"])
    return named | {int(target.rpartition(":")[2]) for target in targets}


def test_prometheus_asks_the_programs_where_they_listen() -> None:
    expected = {DEFAULTS.gateway_port, DEFAULTS.worker_base_port}
    assert scraped(COMPOSE["configs"]["prometheus"]["content"]) == expected
    assert scraped((ROOT / "deploy" / "prometheus.yml").read_text(encoding="utf8")) == expected
    for name in ("grafana-source", "grafana-boards"):
        assert yaml.safe_load(COMPOSE["configs"][name]["content"])["apiVersion"] == 1
    assert json.loads((ROOT / "deploy" / "grafana.json").read_text())["uid"] == "minicpmo-live"


@pytest.mark.parametrize(
    ("target", "port"),
    [
        ("gateway", DEFAULTS.gateway_port),
        ("worker", DEFAULTS.worker_base_port),
        ("webrtc", Settings().webrtc.port),
    ],
)
def test_an_image_runs_a_program_as_a_user_without_rights(target: str, port: int) -> None:
    _, _, stage = CONTAINERFILE.partition(f"FROM program AS {target}\n")
    lines = stage.partition("\nFROM ")[0].splitlines()
    assert lines.index("USER 1000") < next(
        index for index, line in enumerate(lines) if line.startswith("ENTRYPOINT")
    )
    assert f"EXPOSE {port}" in lines or target == "webrtc"  # on the gateway's loopback alone
    (check,) = (line for line in lines if line.startswith("HEALTHCHECK"))
    _, script, asked = json.loads(check[check.index("[") :])
    assert (ROOT / script).is_file() and int(asked) == port
    (entry,) = (json.loads(line[11:]) for line in lines if line.startswith("ENTRYPOINT "))
    program = Path(entry[2], "__main__.py") if entry[1] == "-m" else Path(entry[1])
    assert entry[0] == "python" and (ROOT / program).is_file()
    _, _, packages = CONTAINERFILE.partition(f" AS {target}-packages\n")
    assert f'.[{target}]"' in packages.partition("\nFROM ")[0]


def test_the_image_for_ray_finds_its_programs_in_any_shell() -> None:
    _, _, stage = CONTAINERFILE.partition("FROM program AS ray\n")
    (link,) = (line for line in stage.splitlines() if line.startswith("RUN ln -s"))
    assert {"/app/.venv/bin/ray", "/app/.venv/bin/python"} < set(link.split())
    assert "\nUSER 1000\n" in stage
    _, _, packages = CONTAINERFILE.partition("FROM worker-packages AS ray-packages\n")
    assert '.[ray]"' in packages.partition("\nFROM ")[0]


def test_the_unit_waits_longer_than_conversations_may_last() -> None:
    entries: Mapping[str, str] = dict(re.findall(r"^(\w+)=(.*)$", UNIT, re.MULTILINE))
    assert float(entries["TimeoutStopSec"]) > DEFAULTS.drain_timeout_s
    command = Path(entries["ExecStart"].split()[0])
    assert command.parent == Path(entries["WorkingDirectory"]) and (ROOT / command.name).is_file()
    variables = dict(re.findall(r"^Environment=(\w+)=(.*)$", UNIT, re.MULTILINE))
    data = Path(variables["OMNI_SERVICE_DATA_DIR"])
    assert entries["StateDirectory"] == data.name
    assert data in Path(variables["TRITON_CACHE_DIR"]).parents  # compiled kernels are kept


@pytest.mark.parametrize("worker_tls", [False, True])
def test_the_health_check_tells_a_program_that_serves(tmp_path: Path, worker_tls: bool) -> None:
    spec = importlib.util.spec_from_file_location("healthy", ROOT / "deploy" / "healthy.py")
    assert spec is not None and spec.loader is not None
    healthy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(healthy)
    settings = settings_for(tmp_path, security={"worker_tls": worker_tls})
    with running_worker(settings, FakeBackend) as worker:
        port = worker.port
        assert healthy.is_healthy(port)
    assert not healthy.is_healthy(port)
