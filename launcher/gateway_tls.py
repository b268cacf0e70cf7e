"""The gateway's certificate, configured or generated, and the context that verifies it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway_modules.web.certificates import Certificate, ensure_certificate
from settings.sections import ServiceSettings

CERTIFICATES_FOLDER: Final = "certs"


@dataclass(frozen=True)
class GatewayTls:
    """Files of the gateway's certificate; `made` if it is a generated one."""

    certfile: Path
    keyfile: Path
    made: Certificate | None = None

    def context(self) -> ssl.SSLContext:
        """Return the context that verifies the gateway.

        A generated certificate names this machine; a configured one may name public hosts only, so
        it is not verified.
        """
        if self.made is not None:
            return ssl.create_default_context(cafile=str(self.certfile))
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context


def gateway_tls(service: ServiceSettings) -> GatewayTls | None:
    """Return the certificate, generated if none is configured, or None for HTTP; or an OSError."""
    if not service.https:
        return None
    if service.ssl_certfile is not None and service.ssl_keyfile is not None:
        return GatewayTls(service.ssl_certfile, service.ssl_keyfile)
    made = ensure_certificate(service.data_dir / CERTIFICATES_FOLDER)
    return GatewayTls(made.certfile, made.keyfile, made)
