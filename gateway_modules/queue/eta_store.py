"""Keeps the expected durations an administrator set, so that they survive a restart."""

from __future__ import annotations

import threading
from pathlib import Path

import structlog
from pydantic import ValidationError

from config import ServiceSettings
from core.files import write_file
from gateway_modules.queue.models import EtaConfig


class EtaStore:
    """One small file. Blocks on the disk: an event loop calls it in a thread."""

    def __init__(self, path: Path, settings: ServiceSettings) -> None:
        """Take the file and what holds without it.

        Args:
            path: Of the file; it need not exist.
            settings: First guesses.
        """
        self._path = path
        self._settings = settings
        self._lock = threading.Lock()  # over reading, merging and writing

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
            kept = EtaConfig.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return first
        except (OSError, ValidationError) as error:
            log = structlog.get_logger("eta")
            log.warning("durations unreadable", path=str(self._path), reason=str(error))
            return first
        given = {name: value for name, value in kept if name in kept.model_fields_set}
        return first.model_copy(update=given)

    def save(self, change: EtaConfig) -> None:
        """Keep what was set now beside what was set before.

        Raises:
            OSError: It cannot be kept.
        """
        with self._lock:
            try:
                kept = EtaConfig.model_validate_json(self._path.read_bytes())
            except (OSError, ValidationError):
                kept = EtaConfig()  # nothing that is worth keeping
            given = {
                name: value
                for config in (kept, change)
                for name, value in config
                if name in config.model_fields_set
            }
            self._path.parent.mkdir(parents=True, exist_ok=True)
            content = EtaConfig.model_validate(given).model_dump_json(exclude_unset=True)
            write_file(self._path, content.encode(), is_durable=True)
