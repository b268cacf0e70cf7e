"""What pages may load and run: the Content-Security-Policy, and the one thing pages add to it."""

from __future__ import annotations

import secrets
from typing import Final

NONCE_BYTES: Final = 16
NONCE_PLACE: Final = b'<meta name="style-nonce" content="">'
"""A page with this gets a fresh nonce in it, for libraries that bring a style sheet of their own
(wavesurfer.js writes one into each waveform)."""

RULES: Final = (
    "default-src 'self'",
    # WebAssembly for voice detection in the browser; no text is ever run as a program.
    "script-src 'self' 'wasm-unsafe-eval'",
    "connect-src 'self' blob:",
    "img-src 'self' blob: data:",
    "media-src 'self' blob:",
    "worker-src 'self'",
    "object-src 'none'",
    "base-uri 'none'",
    "form-action 'self'",
    "frame-ancestors 'none'",
)
CONTENT_SECURITY_POLICY: Final = "; ".join((*RULES, "style-src 'self'"))


def with_nonce(page: bytes) -> tuple[bytes, str]:
    """Return a page with a fresh nonce in its place, and the policy that goes with it.

    Args:
        page: HTML that holds `NONCE_PLACE`.
    """
    nonce = secrets.token_urlsafe(NONCE_BYTES)
    filled = NONCE_PLACE.replace(b'content=""', f'content="{nonce}"'.encode())
    policy = "; ".join((*RULES, f"style-src 'self' 'nonce-{nonce}'"))
    return page.replace(NONCE_PLACE, filled, 1), policy
