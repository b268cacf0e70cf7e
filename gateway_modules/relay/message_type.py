"""Finds a message's type without parsing the message.

Only for what our own worker or an honest client wrote: a client that hides a type harms its own
session alone.
"""

from __future__ import annotations

import json
import re
from typing import Final

# A quotation mark inside a JSON string is escaped, so this never matches inside one.
TYPE: Final = re.compile(r'"type"\s*:\s*"(\w{1,32})"')
WINDOW_CHARS: Final = 256  # writers put the type first or last
PARSED_CHARS: Final = 64 * 1024  # longer texts are searched at both ends only


def peek_type(text: str) -> str:
    """Return a message's type from its beginning or end; "" if it is in neither.

    Args:
        text: One JSON object without objects before its type that have types themselves.
    """
    found = TYPE.search(text, 0, WINDOW_CHARS)
    if found is None and len(text) > WINDOW_CHARS:
        found = TYPE.search(text, len(text) - WINDOW_CHARS)
    if found is not None:
        return found[1]
    return parse_type(text) if WINDOW_CHARS < len(text) <= PARSED_CHARS else ""


def parse_type(text: str) -> str:
    """Return a message's type by parsing all of it; "" if it has none or is no JSON object."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    kind = message.get("type") if isinstance(message, dict) else None
    return kind if isinstance(kind, str) else ""
