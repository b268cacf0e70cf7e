"""How far the fetch of the cascade is, as its program writes it down."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from core.schemas.fetching import FetchProgress
from settings.embedded import CASCADE_FOLDER, PROGRESS_FILE


def read_progress(data_dir: Path) -> FetchProgress | None:
    """Return it; None if nothing has been fetched since the start."""
    try:
        content = (data_dir / CASCADE_FOLDER / PROGRESS_FILE).read_bytes()
        return FetchProgress.model_validate_json(content)
    except (OSError, ValidationError):
        return None
