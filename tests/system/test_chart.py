"""The Helm chart, rendered and held against Kubernetes' schemas; no cluster is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from config import Settings, load_settings
from core.worker_tls import WORKER_TLS_NAME
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
    for kind, name in (("Deployment", "live-gateway"), ("StatefulSet", "live-worker")):
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
            (listed,) = settings.service.workers
            assert listed == f"dns:live-worker:{defaults.worker_base_port}"
            assert ("Service", "live-worker") in objects
            assert "live-gateway" in settings.security.allowed_hosts
        else:
            is_embedded = "model" not in CLUSTERS[cluster].get("worker", {}) and cluster != "fake"
            assert ("initContainers" in spec) is is_embedded
            assert (settings.model.embedded == "nano") is is_embedded
            cards = container["resources"]["limits"].get("nvidia.com/gpu", 0)
            assert cards == CLUSTERS[cluster].get("worker", {}).get("gpus", 1)


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
        for kind, name in (("Deployment", "live-gateway"), ("StatefulSet", "live-worker")):
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
