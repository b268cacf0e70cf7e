"""Tells the person who starts the system how to administrate it."""

from __future__ import annotations

from config import Settings
from gateway_modules.admin_sessions import TOKEN_FILE, ensure_admin_token
from launcher.checkpoint import shown
from launcher.display import Display


def tell_administrator(display: Display, url: str, settings: Settings) -> None:
    """Say where the token is; in a terminal, show the link that carries it.

    The link's token stands behind "#", which browsers send to no server; a file gets neither.

    Args:
        display: for people.
        url: of the gateway.
        settings: the configuration.

    Raises:
        OSError: the token can be neither read nor written.
    """
    security, data_dir = settings.security, settings.service.data_dir
    if security.admin_token is not None:
        display.say(f"  administration: {url}/admin, with security.admin_token")
    elif security.insecure_admin:
        display.say(f"  administration: {url}/admin, open to everybody", "yellow")
    else:
        token = ensure_admin_token(data_dir)
        display.say(
            f"  administration: {url}/admin, with the token in {shown(data_dir / TOKEN_FILE)}"
        )
        display.show(f"  {url}/admin#token={token}")
