"""What several programs keep in the data folder under one name; imports little."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from core.files import ensure_token

TOKEN_FILE: Final = "admin_token"
TOKEN_BYTES: Final = 16
LOGS_FOLDER: Final = "logs"  # written by the launcher


def ensure_admin_token(data_dir: Path) -> str:
    return ensure_token(data_dir / TOKEN_FILE, TOKEN_BYTES)
