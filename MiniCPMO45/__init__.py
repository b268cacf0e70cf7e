"""MiniCPM-o 4.5: weights and algorithms. No state of a conversation lives in this package."""

from __future__ import annotations

import os

# onnxruntime reads it when imported; without it, its use is written to a database in the home.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
