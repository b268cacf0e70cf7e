"""The page in place of one that is not there: short, and in the visitor's language."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from html import escape
from http import HTTPStatus
from types import MappingProxyType
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse

CHINESE: Final = "zh"
ENGLISH: Final = "en"
LANGUAGES: Final = (ENGLISH, CHINESE)
NO_PAGES: Final = ("/api/", "/static/")  # nobody looks at what these answer


class Missing(StrEnum):
    """What is not there."""

    PAGE = "page"
    RECORDING = "recording"
    RECORDING_OFF = "recording_off"


@dataclass(frozen=True)
class _Words:
    """What a page says."""

    title: str
    text: str
    home: str = "Go to the start page"


WORDS: Final = MappingProxyType(
    {
        (ENGLISH, Missing.PAGE): _Words(
            "This page does not exist",
            "The address may have a typing mistake, or the page has moved.",
        ),
        (CHINESE, Missing.PAGE): _Words(
            "没有这个页面", "网址可能有误，或者页面已经移走。", "回到首页"
        ),
        (ENGLISH, Missing.RECORDING): _Words(
            "This recording is not here",
            "It may have been deleted, or the link is not complete. Ask for the link again.",
        ),
        (CHINESE, Missing.RECORDING): _Words(
            "找不到这段对话记录", "它可能已被删除，或者链接不完整。请再要一次链接。", "回到首页"
        ),
        (ENGLISH, Missing.RECORDING_OFF): _Words(
            "Nothing is recorded here",
            "Recording is switched off on this server, so there is nothing to show.",
        ),
        (CHINESE, Missing.RECORDING_OFF): _Words(
            "这里没有对话记录", "这台服务器关闭了记录功能，所以没有内容可以显示。", "回到首页"
        ),
    }
)

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


def missing_page(request: Request, missing: Missing, default_lang: str | None) -> HTMLResponse:
    """Return the page with HTTP 404.

    Args:
        request: What was asked for, and by whom.
        missing: What is not there.
        default_lang: The configured language; None leaves it to the browser.
    """
    lang = language_of(request, default_lang)
    words = WORDS[lang, missing]
    told = {"title": words.title, "text": words.text, "home": words.home}
    body = PAGE.format(lang=lang, **{name: escape(text) for name, text in told.items()})
    return HTMLResponse(body, HTTPStatus.NOT_FOUND, {"Vary": "Accept-Language"})


def wants_page(request: Request) -> bool:
    """Whether a browser asks for something to show, not a program or a page for an answer."""
    is_page = not request.url.path.startswith(NO_PAGES)
    return request.method == "GET" and is_page and "text/html" in request.headers.get("accept", "")


def language_of(request: Request, default_lang: str | None) -> str:
    """Return the language to use: as asked for, as configured, as the browser prefers."""
    for told in (request.query_params.get("lang"), default_lang):
        if told in LANGUAGES:
            return told
    for part in request.headers.get("accept-language", "").split(","):
        name = part.partition(";")[0].strip().partition("-")[0].lower()
        if name in LANGUAGES:
            return name
    return ENGLISH
