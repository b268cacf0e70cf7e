"""The Helm chart, rendered and held against Kubernetes' schemas; no cluster is asked."""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from config import Settings, load_settings
from core.worker_tls import WORKER_TLS_NAME
from launcher.ray_variables import RULES, machine_variables
from launcher.scaling import Bounds
from tests.source_tree import ROOT

pytest.importorskip("helm_python", reason="needs the extra charts")
import helm_python  # noqa: E402  # only there with the extra
import kubernetes_validate  # noqa: E402

pytestmark = pytest.mark.matrix

KUBERNETES = "1.37"
CHART = ROOT / "deploy" / "chart"
CLUSTERS: Mapping[str, dict[str, Any]] = {
    "as it comes": {},
    "without cards": {"worker": {"gpus": 0}},
    "fake": {"worker": {"gpus": 0, "fake": True}},
    "behind an ingress": {
        "hosts": ["talk.example.com"],
        "gateway": {
            "https": False,
            "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "talk"},
        },
    },
    "eight cards": {
        "worker": {"replicas": 8, "slots": 40, "model": {"path": "/model", "claim": "weights"}},
        "gateway": {"data": {"existingClaim": "kept"}},
        "recordings": {"sharedClaim": "sessions"},
        "settings": {"OMNI_RECORDING_ENABLED": False},
        "autoscaling": {"enabled": True},
    },
    "doors": {"gateway": {"doors": 3}},
    "doors of one claim": {
        "hosts": ["talk.example.com"],
        "gateway": {"doors": 2, "https": False, "data": {"shared": True}},
    },
}
RAY_CLUSTERS: Mapping[str, dict[str, Any]] = {
    "as it comes": {},
    "fake": {"worker": {"gpus": 0, "fake": True}},
    "eight cards": CLUSTERS["eight cards"]
    | {"worker": CLUSTERS["eight cards"]["worker"] | {"gpus": 4}},
    "behind an ingress": CLUSTERS["behind an ingress"],
}
# Fields of ray.io/v1 that the chart may use, and their types; true: KubeRay demands it.
# Source: KubeRay, ray-operator/apis/ray/v1/raycluster_types.go.
RAY_FIELDS: Mapping[str, Mapping[str, tuple[type, bool]]] = {
    "spec": {
        "rayVersion": (str, False),
        "enableInTreeAutoscaling": (bool, False),
        "autoscalerOptions": (dict, False),
        "headGroupSpec": (dict, True),
        "workerGroupSpecs": (list, False),
    },
    "autoscalerOptions": {
        "idleTimeoutSeconds": (int, False),
        "securityContext": (dict, False),
        "env": (list, False),
        "volumeMounts": (list, False),
    },
    "headGroupSpec": {"rayStartParams": (dict, True), "template": (dict, True)},
    "workerGroupSpecs": {
        "groupName": (str, True),
        "replicas": (int, False),
        "minReplicas": (int, True),
        "maxReplicas": (int, True),
        "rayStartParams": (dict, True),
        "template": (dict, True),
    },
}
Objects = dict[tuple[str, str], dict[str, Any]]


def rendered(values: dict[str, Any]) -> Objects:
    """Return the objects of a release by kind and name."""
    with helm_python.Chart.load(CHART) as chart:
        texts = chart.render(values, name="live", namespace="talk").values()
    objects = (one for text in texts for one in yaml.safe_load_all(text) if one)
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


def pod(objects: Objects, kind: str, name: str) -> dict[str, Any]:
    """Return the specification of the pods that one object makes."""
    spec: dict[str, Any] = objects[kind, name]["spec"]["template"]["spec"]
    return spec


def programs(objects: Objects) -> list[tuple[str, str]]:
    """Return kind and name of what makes pods."""
    return [key for key in objects if key[0] in ("Deployment", "StatefulSet")]


def told(container: dict[str, Any]) -> dict[str, str]:
    """Return its environment, without what Secrets fill in."""
    return {one["name"]: one["value"] for one in container["env"] if "value" in one}


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_kubernetes_takes_every_object(cluster: str) -> None:
    objects = rendered(CLUSTERS[cluster])
    for one in objects.values():
        if one["kind"] != "ScaledObject":  # KEDA's own
            kubernetes_validate.validate(one, KUBERNETES, strict=True)
    kinds = [kind for kind, _ in objects]
    assert kinds.count("Ingress") == ("ingress" in cluster)
    is_large = cluster == "eight cards"
    assert kinds.count("ScaledObject") == is_large
    assert kinds.count("PersistentVolumeClaim") == 1 - is_large


def test_a_field_that_does_not_exist_is_refused() -> None:
    service = rendered({})["Service", "live-gateway"]
    service["spec"]["ports"][0]["prot"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service, KUBERNETES, strict=True)


def test_the_chart_is_free_of_mistakes() -> None:
    found = helm_python.lint(CHART)
    assert not found["errors"]


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_environment_makes_settings(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = rendered(CLUSTERS[cluster])
    defaults = Settings().service
    for kind, name in programs(objects):
        spec = pod(objects, kind, name)
        (container,) = spec["containers"]
        with monkeypatch.context() as patched:
            for key, value in told(container).items():
                if key.startswith("OMNI_"):
                    patched.setenv(key, value)
            patched.setenv("OMNI_SECURITY_WORKER_SECRET", "as long as it must be")
            settings = load_settings(None)
        assert settings.security.worker_tls
        assert spec["terminationGracePeriodSeconds"] > settings.service.drain_timeout_s
        if kind == "Deployment":
            assert ("Service", "live-worker") in objects
            listed = [f"dns:live-worker:{defaults.worker_base_port}"]
            assert list(settings.service.workers) == ([] if name == "live-door" else listed)
            is_asked = "live-gateway" in settings.security.allowed_hosts
            assert is_asked is (name != "live-desk")  # the desk believes its doors
        else:
            is_embedded = "model" not in CLUSTERS[cluster].get("worker", {}) and cluster != "fake"
            assert ("initContainers" in spec) is is_embedded
            assert (settings.model.embedded == "nano") is is_embedded
            cards = container["resources"]["limits"].get("nvidia.com/gpu", 0)
            assert cards == CLUSTERS[cluster].get("worker", {}).get("gpus", 1)


@pytest.mark.parametrize("cluster", ["doors", "doors of one claim"])
def test_clients_reach_doors_and_doors_their_desk(cluster: str) -> None:
    values = CLUSTERS[cluster]["gateway"]
    objects = rendered(CLUSTERS[cluster])
    desk, door = objects["Deployment", "live-desk"], objects["Deployment", "live-door"]
    assert desk["spec"]["replicas"] == 1 and desk["spec"]["strategy"] == {"type": "Recreate"}
    assert door["spec"]["replicas"] == values["doors"]
    for service, deployment in (("live-gateway", door), ("live-desk", desk)):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert objects["Service", service]["spec"]["selector"] == labels
    assert objects["Service", "live-gateway"]["spec"]["sessionAffinity"] == "ClientIP"
    (desk_container,) = pod(objects, "Deployment", "live-desk")["containers"]
    (door_container,) = pod(objects, "Deployment", "live-door")["containers"]
    assert desk_container["args"] == ["--role", "desk"]
    (port,) = objects["Service", "live-desk"]["spec"]["ports"]
    https = "--https" if values.get("https", True) else "--http"
    assert door_container["args"] == [
        "--role",
        "door",
        "--desk",
        f"live-desk:{port['port']}",
        https,
    ]
    assert told(desk_container)["OMNI_SECURITY_WORKER_CERTFILE"] == "/workers/tls.crt"
    assert "OMNI_SECURITY_WORKER_CERTFILE" not in told(door_container)
    secret = objects["Secret", "live-workers"]["data"]
    for container in (desk_container, door_container):
        (token,) = (one for one in container["env"] if one["name"] == "OMNI_SECURITY_ADMIN_TOKEN")
        assert token["valueFrom"]["secretKeyRef"]["key"] in secret
    is_shared = values.get("data", {}).get("shared", False)
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "live-gateway"}}
    assert claim in pod(objects, "Deployment", "live-desk")["volumes"]
    assert (claim in pod(objects, "Deployment", "live-door")["volumes"]) is is_shared
    modes = objects["PersistentVolumeClaim", "live-gateway"]["spec"]["accessModes"]
    assert modes == ["ReadWriteMany" if is_shared else "ReadWriteOnce"]


@pytest.mark.parametrize("https", [True, False])
def test_webrtc_is_served_beside_the_gateway(https: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(pod(rendered({}), "Deployment", "live-gateway")["containers"]) == 1
    values = {"webrtc": {"enabled": True, "calls": 2}, "gateway": {"https": https}}
    objects = rendered(values)
    for one in objects.values():
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
    spec = pod(objects, "Deployment", "live-gateway")
    gateway, webrtc = spec["containers"]
    assert told(gateway)["OMNI_WEBRTC_ENABLED"] == "true"
    for key, value in told(webrtc).items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("OMNI_SECURITY_WORKER_SECRET", "as long as it must be")
    settings = load_settings(None).webrtc
    assert settings.enabled and settings.url == Settings().webrtc.url
    ports = [(port["containerPort"], port["hostPort"]) for port in webrtc["ports"]]
    assert ports == [(port, port) for port in settings.ports] and len(ports) == 8
    assert webrtc["args"][1] == f"{'wss' if https else 'ws'}://127.0.0.1:8006"
    assert {"name": "data", "mountPath": "/data"} in webrtc["volumeMounts"]
    (address,) = (one for one in webrtc["env"] if one["name"] == "OMNI_WEBRTC_PUBLIC_ADDRESS")
    assert address["valueFrom"]["fieldRef"]["fieldPath"] == "status.hostIP"
    chosen = rendered({"webrtc": {"enabled": True, "publicAddress": "203.0.113.9"}})
    named = told(pod(chosen, "Deployment", "live-gateway")["containers"][1])
    assert named["OMNI_WEBRTC_PUBLIC_ADDRESS"] == "203.0.113.9"


def test_every_volume_that_is_mounted_exists() -> None:
    for values in CLUSTERS.values():
        objects = rendered(values)
        for kind, name in programs(objects):
            spec = pod(objects, kind, name)
            mounted = {
                one["name"]
                for container in [*spec["containers"], *spec.get("initContainers", ())]
                for one in container["volumeMounts"]
            }
            assert mounted == {one["name"] for one in spec["volumes"]}


def test_the_workers_certificate_is_for_the_name_that_the_gateway_expects() -> None:
    text = (CHART / "templates" / "secret.yaml").read_text(encoding="utf8")
    assert f'"{WORKER_TLS_NAME}"' in text
    secret = rendered({})["Secret", "live-workers"]["data"]
    assert set(secret) == {"secret", "ca.crt", "tls.crt", "tls.key"}


def check_ray(kind: str, fields: Mapping[str, Any]) -> None:
    """Compare a part of a RayCluster with the fields that there are."""
    known = RAY_FIELDS[kind]
    assert {name for name, (_, is_required) in known.items() if is_required} <= set(fields)
    for name, value in fields.items():
        assert name in known and type(value) is known[name][0], (kind, name)
        if name in RAY_FIELDS:
            parts: list[Any] = value if isinstance(value, list) else [value]
            for part in parts:
                check_ray(name, part)


def ray_groups(objects: Objects) -> list[dict[str, Any]]:
    """Return the group of the head and that of the workers."""
    spec = objects["RayCluster", "live-ray"]["spec"]
    (workers,) = spec["workerGroupSpecs"]
    return [spec["headGroupSpec"], workers]


def ray_pods(objects: Objects) -> list[dict[str, Any]]:
    """Return the pods in which Ray runs: head, worker, launcher, and what stops all."""
    pods = [group["template"]["spec"] for group in ray_groups(objects)]
    pods.append(pod(objects, "Deployment", "live-launcher"))
    return [*pods, pod(objects, "Job", "live-stop")]


@pytest.mark.parametrize("cluster", RAY_CLUSTERS)
def test_kuberay_and_kubernetes_take_every_object(cluster: str) -> None:
    objects = rendered({"engine": "kuberay", **RAY_CLUSTERS[cluster]})
    for one in objects.values():
        if one["kind"] != "RayCluster":
            kubernetes_validate.validate(one, KUBERNETES, strict=True)
    ray = objects["RayCluster", "live-ray"]
    assert ray["apiVersion"] == "ray.io/v1" and set(ray) == {
        "apiVersion",
        "kind",
        "metadata",
        "spec",
    }
    check_ray("spec", ray["spec"])
    for group in ray_groups(objects):
        template = {"apiVersion": "v1", "kind": "Pod", **group["template"]}
        template["metadata"] = {"name": "a", **template["metadata"]}
        kubernetes_validate.validate(template, KUBERNETES, strict=True)
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    for spec in ray_pods(objects):
        containers = [*spec["containers"], *spec["initContainers"]]
        mounted = {one["name"] for container in containers for one in container["volumeMounts"]}
        assert mounted == {one["name"] for one in spec["volumes"]}
    kinds = [kind for kind, _ in objects]
    assert "StatefulSet" not in kinds and "ScaledObject" not in kinds  # of the other engine
    service = objects["Service", "live-gateway"]["spec"]
    assert service["selector"] == {"ray.io/cluster": "live-ray", "ray.io/node-type": "head"}
    assert not [kind for kind, _ in rendered({}) if kind == "RayCluster"]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"engine": "nomad"}, "kuberay"),
        ({"engine": "kuberay", "webrtc": {"enabled": True}}, "webrtc"),
        ({"engine": "kuberay", "gateway": {"doors": 2}}, "doors"),
        ({"webrtc": {"enabled": True}, "gateway": {"doors": 2}}, "doors"),
    ],
)
def test_what_a_cluster_cannot_do_is_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(Exception, match=problem):
        rendered(values)


@pytest.mark.parametrize("cluster", RAY_CLUSTERS)
def test_ray_gets_as_many_workers_as_it_has_places_for(cluster: str) -> None:
    values = {"engine": "kuberay", **RAY_CLUSTERS[cluster]}
    objects = rendered(values)
    head, workers = (group["rayStartParams"] for group in ray_groups(objects))
    # KubeRay writes the parameters into a command line as they are.
    resources = shlex.split(f"--resources={head['resources']}")[0].partition("=")[2]
    assert json.loads(resources) == {"front": 1} and head["num-gpus"] == "0"
    (group,) = objects["RayCluster", "live-ray"]["spec"]["workerGroupSpecs"]
    (launcher,) = pod(objects, "Deployment", "live-launcher")["containers"]
    command = shlex.split(launcher["command"][-1])
    bounds = Bounds.parse(command[command.index("--workers") + 1])
    places = int(workers["num-gpus"])
    least, most = group["minReplicas"], group["maxReplicas"]
    assert (bounds.least, bounds.most) == (least * places, most * places)
    cards = values.get("worker", {}).get("gpus", 1)
    (container,) = group["template"]["spec"]["containers"]
    assert container["resources"]["limits"].get("nvidia.com/gpu", 0) == cards
    assert places == max(1, cards)
    port = int(workers["node-manager-port"])
    assert container["readinessProbe"]["tcpSocket"]["port"] == port
    assert ("fake" in command) is (cluster == "fake")
    is_scaled = objects["RayCluster", "live-ray"]["spec"].get("enableInTreeAutoscaling", False)
    assert is_scaled is (least < most)


@pytest.mark.parametrize("cluster", RAY_CLUSTERS)
def test_the_launchers_environment_makes_settings(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"engine": "kuberay", **RAY_CLUSTERS[cluster]}
    objects = rendered(values)
    secret = objects["Secret", "live-ray"]["data"]
    (container,) = pod(objects, "Deployment", "live-launcher")["containers"]
    for one in container["env"]:
        if one["name"].startswith("OMNI_"):
            key = one.get("valueFrom", {}).get("secretKeyRef", {}).get("key")
            hidden = base64.b64decode(secret[key]).decode() if key else ""
            monkeypatch.setenv(one["name"], one.get("value", hidden))
    settings = load_settings(None)
    assert settings.security.worker_tls and settings.security.ticket_secret
    assert settings.security.admin_token and settings.security.worker_secret
    assert "live-gateway" in settings.security.allowed_hosts
    assert settings.service.https is values.get("gateway", {}).get("https", True)
    is_embedded = "model" not in values.get("worker", {}) and cluster != "fake"
    assert (settings.model.embedded == "nano") is is_embedded


def test_every_pod_of_ray_has_token_certificate_and_rules(tmp_path: Path) -> None:
    objects = rendered({"engine": "kuberay", "autoscaling": {"enabled": True}})
    secret = objects["Secret", "live-ray"]["data"]
    (tmp_path / "ca_and_key.pem").write_bytes(base64.b64decode(secret["ca_and_key.pem"]))
    for spec in ray_pods(objects):
        first = spec["initContainers"][0]
        words = shlex.split(first["command"][-1])
        names = [words[at + 1] for at, word in enumerate(words) if word == "--name"]
        assert names == ["$POD_IP", "live-ray-head-svc.talk.svc.cluster.local"]
        wanted = machine_variables(tmp_path, words[words.index("--host") + 1], ["127.0.0.1"])
        options = objects["RayCluster", "live-ray"]["spec"]["autoscalerOptions"]
        for container in (spec["containers"][0], options):
            found = {name: value for name, value in told(container).items() if "RAY_" in name}
            files = {k: Path(v).name for k, v in found.items() if v.startswith("/cluster/")}
            assert files == {k: Path(v).name for k, v in wanted.items() if k in files}
            assert {k: v for k, v in RULES.items() if "reconnect" not in k}.items() <= found.items()
            assert {"name": "cluster", "mountPath": "/cluster"} in container["volumeMounts"]
            (token,) = (one for one in container["env"] if one["name"] == "RAY_AUTH_TOKEN")
            assert token["valueFrom"]["secretKeyRef"]["key"] in secret
        # Whoever has the key of the CA may join: no container but the first gets it.
        rest = [*spec["containers"], *spec["initContainers"][1:]]
        assert all(one["name"] != "ca" for each in rest for one in each["volumeMounts"])


def test_ray_is_of_the_version_that_is_installed() -> None:
    pinned = re.search(
        r"^ray==(.*)$", (ROOT / "constraints.txt").read_text(encoding="utf8"), re.MULTILINE
    )
    assert pinned is not None
    spec = rendered({"engine": "kuberay"})["RayCluster", "live-ray"]["spec"]
    assert spec["rayVersion"] == pinned[1]
