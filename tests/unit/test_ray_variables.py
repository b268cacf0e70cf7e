"""What a machine needs to be part of a cluster of Ray."""

from __future__ import annotations

import stat
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509

from launcher.ray_variables import machine_variables


def load(path: str | Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(Path(path).read_bytes())


def test_machines_share_token_and_ca_and_show_certificates_of_their_own(tmp_path: Path) -> None:
    one = machine_variables(tmp_path, "one", ["localhost", "10.0.0.1"])
    two = machine_variables(tmp_path, "two", ["localhost", "10.0.0.2"])
    for name in ("RAY_AUTH_TOKEN_PATH", "RAY_TLS_CA_CERT"):
        assert one[name] == two[name]
    ca = load(one["RAY_TLS_CA_CERT"])
    for variables, address in ((one, "10.0.0.1"), (two, "10.0.0.2")):
        certificate = load(variables["RAY_TLS_SERVER_CERT"])
        certificate.verify_directly_issued_by(ca)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.IPAddress) == [ip_address(address)]
        assert b"PRIVATE KEY" in Path(variables["RAY_TLS_SERVER_KEY"]).read_bytes()
    assert b"PRIVATE KEY" not in Path(one["RAY_TLS_CA_CERT"]).read_bytes()


def test_what_opens_a_cluster_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    machine_variables(tmp_path, "one", ["localhost"])
    for name in ("token", "ca_and_key.pem", "one.key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_a_second_run_keeps_the_token(tmp_path: Path) -> None:
    machine_variables(tmp_path, "one", ["localhost"])
    token = (tmp_path / "token").read_bytes()
    machine_variables(tmp_path, "one", ["localhost", "one.example.com"])
    assert (tmp_path / "token").read_bytes() == token
