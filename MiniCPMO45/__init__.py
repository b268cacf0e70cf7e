"""MiniCPM-o 4.5: modules, loading, engine and generation. State is in the `Session` of a caller."""

from __future__ import annotations

import os

# Read by onnxruntime on import, which otherwise records its usage in the home folder.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
