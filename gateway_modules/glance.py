"""Tells a message's type without reading the message.

Only for what our own worker or an honest client wrote: a client that hides a type harms its own
session alone.
"""

from __future__ import annotations

import json
import re
from typing import Final

# A quotation mark inside a JSON string is escaped, so this never matches inside one.
TYPE: Final = re.compile(r'"type"\s*:\s*"(\w{1,32})"')
WINDOW_CHARS: Final = 256  # ours: writers put the type first or last
PARSED_CHARS: Final = 64 * 1024  # ours: beyond this only both ends are looked at


def glance(text: str) -> str:
    """Return a message's type by its beginning or its end; "" if neither tells.

    Args:
        text: One JSON object without objects before its type that have types themselves.
    """
    found = TYPE.search(text, 0, WINDOW_CHARS)
    if found is None and len(text) > WINDOW_CHARS:
        found = TYPE.search(text, len(text) - WINDOW_CHARS)
    if found is not None:
        return found[1]
    return type_of(text) if WINDOW_CHARS < len(text) <= PARSED_CHARS else ""


def type_of(text: str) -> str:
    """Return a message's type by reading all of it; "" if it has none or is no JSON object."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    told = message.get("type") if isinstance(message, dict) else None
    return told if isinstance(told, str) else ""
