"""Recordings of conversations: writing, recovery after a crash, replay, storage, cleanup.

The modules that a gateway needs (names, records, folders, recovery, cleanup) do not import numpy;
only `media` and the `replay` modules decode sound and pictures.
"""
