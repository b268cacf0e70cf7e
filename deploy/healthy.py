"""Health check of a container: `python deploy/healthy.py PORT` exits with 0 if its program serves.

A worker serves once its model is loaded. Standard library only.
"""

from __future__ import annotations

import http.client
import json
import ssl
import sys

LIMIT_S = 4


def is_healthy(port: int) -> bool:
    """Query `/health` over TLS, and without it if that fails."""
    context = ssl._create_unverified_context()  # loopback only
    for connection in (
        http.client.HTTPSConnection("localhost", port, timeout=LIMIT_S, context=context),
        http.client.HTTPConnection("localhost", port, timeout=LIMIT_S),
    ):
        try:
            connection.request("GET", "/health")
            response = connection.getresponse()
            health = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError):
            continue
        finally:
            connection.close()
        return response.status == http.client.OK and health.get("model_loaded", True) is True
    return False


if __name__ == "__main__":
    sys.exit(not is_healthy(int(sys.argv[1])))
