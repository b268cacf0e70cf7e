"""Prepares a machine for a Ray cluster: `python -m launcher.ray_variables FOLDER`.

Run it once on each machine, with a folder that all share or that was copied from the first one.
The folder holds the token and the CA key, which grant access to the cluster.
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from config import PRIVATE_UMASK, PROJECT_ROOT
from core.files import atomic_write, ensure_token
from core.worker_tls import ensure_ca, issue
from gateway_modules.web.certificates import general_name, host_names

TOKEN_BYTES: Final = 32
END_OF_CERTIFICATE: Final = b"-----END CERTIFICATE-----\n"

RULES: Final = {
    # A failed machine is detected after some 8 s, a disconnected one after some 20 s; with Ray's
    # defaults after 13 and 65 s.
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "4",
    # How long machines wait for a failed head before they exit with all their workers.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "3600",
    # Otherwise Ray kills the newest process at 95 % of a machine's memory.
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def machine_variables(folder: Path, host: str, names: Sequence[str]) -> dict[str, str]:
    """Write one machine's certificate to the shared folder, and return its variables.

    `host` names this machine's files, `names` are its names and addresses. OSError if a file can be
    neither read nor written; ValueError if the CA has no private key.
    """
    ca = ensure_ca(folder / "ca_and_key.pem")
    token, trusted = folder / "token", folder / "ca.pem"
    ensure_token(token, TOKEN_BYTES)
    certificate, key = folder / f"{host}.pem", folder / f"{host}.key"
    atomic_write(trusted, _parts(ca.read_bytes())[0])
    issued = issue(ca, [general_name(name) for name in names], for_clients=True)
    for path, content in zip((certificate, key), _parts(issued), strict=True):
        atomic_write(path, content)
    return {
        "PYTHONPATH": str(PROJECT_ROOT),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(certificate),
        "RAY_TLS_SERVER_KEY": str(key),
        "RAY_TLS_CA_CERT": str(trusted),
        **RULES,
    }


def _parts(content: bytes) -> tuple[bytes, bytes]:
    certificate, end, key = content.partition(END_OF_CERTIFICATE)
    return certificate + end, key


def main(
    folder: Annotated[Path, typer.Argument(help="Shared by all machines.")],
    name: Annotated[
        list[str] | None, typer.Option(help="Further names or addresses of this machine.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Name of this machine's files.")] = None,
) -> None:
    """Write this machine's files, and print the command that loads the variables."""
    os.umask(PRIVATE_UMASK)
    host = host or socket.gethostname()
    folder = folder.resolve()
    variables = machine_variables(folder, host, [*host_names(), *(name or ())])
    lines = [f"export {key}={shlex.quote(value)}\n" for key, value in variables.items()]
    path = folder / f"{host}.env"
    atomic_write(path, "".join(lines).encode())
    typer.echo(f"source {shlex.quote(str(path))}")


if __name__ == "__main__":
    typer.run(main)
