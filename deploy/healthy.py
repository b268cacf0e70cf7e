"""Ends with 0 if the program of this container serves: `python deploy/healthy.py PORT`.

A worker serves when its model is loaded. Standard library only.
"""

from __future__ import annotations

import http.client
import json
import ssl
import sys

LIMIT_S = 4


def is_healthy(port: int) -> bool:
    """Ask over TLS, else without: whichever the program is configured to serve."""
    context = ssl._create_unverified_context()  # of this machine's own loopback
    for connection in (
        http.client.HTTPSConnection("localhost", port, timeout=LIMIT_S, context=context),
        http.client.HTTPConnection("localhost", port, timeout=LIMIT_S),
    ):
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse()
            told = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError):
            continue
        finally:
            connection.close()
        return answer.status == http.client.OK and told.get("model_loaded", True) is True
    return False


if __name__ == "__main__":
    sys.exit(not is_healthy(int(sys.argv[1])))
