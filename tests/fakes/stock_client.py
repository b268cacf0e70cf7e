"""OpenAI's own client, unmodified, as tests need it."""

from __future__ import annotations

from openai import AsyncOpenAI, DefaultAsyncHttpxClient


def stock_client(base_url: str, api_key: str) -> AsyncOpenAI:
    """Return a client without retries for a server without TLS.

    There is nothing to verify, and loading certificates takes longer than a usual test.
    """
    http = DefaultAsyncHttpxClient(verify=False)
    return AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0, http_client=http)
