"""Uploads of browser recordings are limited for a recording and for a client."""

from __future__ import annotations

import pytest

from core.errors import RateLimitedError, SessionInUseError
from gateway_modules.web.limits import DAY_S, UPLOADS_MAX, UploadCounts


def test_a_client_uploads_so_many_bytes_a_day() -> None:
    now_s = 0.0
    counts = UploadCounts(100, lambda: now_s)
    with counts.counted("a", "client", 60):
        pass
    with (
        pytest.raises(RateLimitedError, match="100 bytes a day"),
        counts.counted("b", "client", 41),
    ):
        pass
    with counts.counted("b", "client", 40), counts.counted("c", "another", 100):
        pass
    now_s = DAY_S
    with counts.counted("b", "client", 100):
        pass


def test_only_a_limited_client_has_a_share() -> None:
    counts = UploadCounts(100)
    with counts.counted("a", "", 1_000):
        pass
    with pytest.raises(RateLimitedError), counts.counted("b", "client", 1_000):
        pass


def test_a_recording_takes_one_upload_at_a_time_and_few_in_all() -> None:
    counts = UploadCounts(1_000)
    for _ in range(UPLOADS_MAX):
        with (
            counts.counted("a", "client", 1),
            pytest.raises(SessionInUseError),
            counts.counted("a", "client", 1),
        ):
            pass
    with pytest.raises(RateLimitedError), counts.counted("a", "client", 1):
        pass
