"""Expected durations that administrators set are kept side by side."""

from __future__ import annotations

from pathlib import Path

from core.store import Store
from gateway_modules.administration import load_eta, save_eta
from gateway_modules.queue.estimates import EtaConfig
from settings.sections import ServiceSettings


def test_each_change_is_stored_in_addition_to_earlier_ones(tmp_path: Path) -> None:
    settings = ServiceSettings()
    store = Store(tmp_path)
    assert load_eta(store, settings).eta_chat_s == settings.eta_chat_s
    save_eta(store, EtaConfig(eta_chat_s=5))
    save_eta(store, EtaConfig(eta_streaming_s=7))
    kept = load_eta(Store(tmp_path), settings)
    assert (kept.eta_chat_s, kept.eta_streaming_s) == (5, 7)


def test_invalid_stored_values_leave_the_configured_ones(tmp_path: Path) -> None:
    store, settings = Store(tmp_path), ServiceSettings()
    with store.transaction() as state:
        state.execute("INSERT INTO estimates VALUES ('eta_chat_s', -1.0)")
    assert load_eta(store, settings).eta_chat_s == settings.eta_chat_s
