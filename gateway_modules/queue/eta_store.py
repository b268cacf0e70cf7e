"""Keeps the expected durations an administrator set, so that they survive a restart."""

from __future__ import annotations

import structlog
from pydantic import ValidationError

from config import ServiceSettings
from core.store import Store
from gateway_modules.queue.models import EtaConfig


class EtaStore:
    """The durations by name; what is set now stands beside what was set before."""

    def __init__(self, store: Store, settings: ServiceSettings) -> None:
        """Take what keeps them, and first guesses."""
        self._store = store
        self._settings = settings

    def load(self) -> EtaConfig:
        """Return the first guesses, changed by what was set."""
        service = self._settings
        first = EtaConfig(
            eta_chat_s=service.eta_chat_s,
            eta_streaming_s=service.eta_streaming_s,
            eta_half_duplex_s=service.eta_half_duplex_s,
            eta_audio_duplex_s=service.eta_audio_duplex_s,
            eta_omni_duplex_s=service.eta_omni_duplex_s,
            ema_alpha=service.eta_ema_alpha,
        )
        try:
            kept = EtaConfig.model_validate(dict(self._store.rows("SELECT * FROM estimates")))
        except ValidationError as error:
            structlog.get_logger("eta").warning("durations unusable", reason=str(error))
            return first
        return first.model_copy(update=kept.model_dump(exclude_unset=True))

    def save(self, change: EtaConfig) -> None:
        """Keep the fields that were given.

        Raises:
            OSError: They cannot be kept.
        """
        given = change.model_dump(exclude_unset=True)
        with self._store.transaction() as state:
            state.executemany("REPLACE INTO estimates VALUES (?, ?)", given.items())
