"""The service's shared parts: words, rules, media and views. Importing this imports none of it."""

import os

# onnxruntime reads it when imported; without it, its use is written to a database in the home.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
