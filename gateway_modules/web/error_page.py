"""The page in place of one that is not there: short, and in the visitor's language."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from html import escape
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse

from gateway_modules.web.languages import Languages

NO_PAGES: Final = ("/api/", "/static/")  # read by programs


class Missing(StrEnum):
    """What is not there."""

    PAGE = "page"
    RECORDING = "recording"
    RECORDING_OFF = "recording_off"


PAGE: Final = """<!doctype html>
<html lang="{lang}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="/static/shared/icons/favicon-idle.svg">
<link rel="stylesheet" href="/static/shared/tokens.css">
<link rel="stylesheet" href="/static/shared/base.css">
<script src="/static/shared/early-theme.js"></script>
</head>
<body>
<main class="stack">
<h1>{title}</h1>
<p>{text}</p>
<p><a class="button button-primary" href="/">{home}</a></p>
</main>
</body>
</html>
"""


def missing_page(
    request: Request, missing: Missing, languages: Languages, default_lang: str | None
) -> HTMLResponse:
    """Return the page with HTTP 404.

    Args:
        request: The request.
        missing: What is not there.
        languages: Have the words.
        default_lang: The configured language; None leaves it to the browser.
    """
    lang = languages.pick(_wishes(request, default_lang))
    words = languages.words(lang)
    keys = {"title": f"missing.{missing}.title", "text": f"missing.{missing}.text"}
    texts = {name: words[key] for name, key in {**keys, "home": "missing.home"}.items()}
    body = PAGE.format(lang=lang, **{name: escape(text) for name, text in texts.items()})
    return HTMLResponse(body, HTTPStatus.NOT_FOUND, {"Vary": "Accept-Language"})


def wants_page(request: Request) -> bool:
    """Whether a browser asks for something to show, not a program or a page for an answer."""
    is_page = not request.url.path.startswith(NO_PAGES)
    return request.method == "GET" and is_page and "text/html" in request.headers.get("accept", "")


def _wishes(request: Request, default_lang: str | None) -> Iterator[str | None]:
    """What is asked for, what is configured, what the browser prefers."""
    yield request.query_params.get("lang")
    yield default_lang
    for part in request.headers.get("accept-language", "").split(","):
        yield part.partition(";")[0]
