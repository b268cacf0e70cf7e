"""Expected durations that administrators set are kept side by side."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from config import ServiceSettings
from core.files import write_file
from gateway_modules.queue import eta_store
from gateway_modules.queue.eta_store import EtaStore
from gateway_modules.queue.models import EtaConfig


def test_two_changes_at_once_are_both_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = EtaStore(tmp_path / "eta.json", ServiceSettings())
    other = threading.Thread(target=store.save, args=(EtaConfig(eta_streaming_s=7),))

    def write(path: Path, content: bytes, *, is_durable: bool) -> None:
        if not other.ident:  # the second change comes between reading and writing of the first
            other.start()
            other.join(0.05)
        write_file(path, content, is_durable=is_durable)

    monkeypatch.setattr(eta_store, "write_file", write)
    store.save(EtaConfig(eta_chat_s=5))
    other.join()
    kept = store.load()
    assert (kept.eta_chat_s, kept.eta_streaming_s) == (5, 7)
