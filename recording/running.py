"""Recordings that are not sealed yet, asked from the workers that write them. Blocks."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Final

import httpx
from pydantic import ValidationError

from core.errors import NotFoundError, SessionInUseError
from core.schemas.worker import WORKER_SECRET_HEADER
from core.worker_tls import SNI
from recording.bucket import BLOCK_BYTES, BucketError
from recording.listing import ListedRecording, RecordingPage
from recording.store import FilesListed, StoredFile

LIST_KEPT_S: Final = 2.0  # of what workers hold: pages ask for many files of one recording
MISSED_KEPT_S: Final = 0.25  # after it they are asked again about one that they did not list
ANSWER_S: Final = 5.0
ASKED_AT_ONCE: Final = 16  # workers


@dataclass(frozen=True)
class _Held:
    url: str
    listed: ListedRecording


class RunningRecordings:
    """What the workers hold; any thread. A worker that does not answer holds nothing."""

    def __init__(
        self,
        workers: Callable[[], list[str]],
        *,
        secret: str | None = None,
        tls: ssl.SSLContext | None = None,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nobody is asked yet.

        Args:
            workers: Returns host and port of each.
            secret: Shared with them.
            tls: What their certificates are checked against; None: they serve none.
            transport: Replaces the network in tests.
            clock: Seconds.
        """
        self._workers = workers
        self._scheme = "https" if tls else "http"
        self._clock = clock
        self._lock = threading.Lock()
        self._held: tuple[float, dict[str, _Held]] = (float("-inf"), {})
        self._http = httpx.Client(
            headers={WORKER_SECRET_HEADER: secret} if secret else {},
            timeout=ANSWER_S,
            transport=transport,
            trust_env=False,  # a proxy of the environment is not for our own processes
            verify=tls or False,  # without TLS there is no certificate
        )

    def listed(self) -> list[ListedRecording]:
        """Return the unsealed recordings, as they were two seconds ago at most."""
        return [one.listed for one in self._known().values()]

    def look(self, recording_id: str) -> ListedRecording | None:
        held = self._holding(recording_id)
        return None if held is None else held.listed

    def read(self, recording_id: str, name: str) -> bytes | None:
        held = self._holding(recording_id)
        if held is None:
            return None
        answer = self._call("GET", f"{held.url}/recordings/{recording_id}/files/{name}")
        return answer.content if answer.status_code == HTTPStatus.OK else None

    def file(self, recording_id: str, name: str) -> StoredFile | None:
        return next((one for one in self.files(recording_id) if one.name == name), None)

    def files(self, recording_id: str) -> list[StoredFile]:
        held = self._holding(recording_id)
        if held is None:
            return []
        url = f"{held.url}/recordings/{recording_id}"
        try:
            sizes = FilesListed.model_validate_json(self._call("GET", url).content).sizes
        except ValidationError:
            return []
        return [
            StoredFile(name, size, f"{size:x}", partial(self._blocks, f"{url}/files/{name}"))
            for name, size in sizes.items()
        ]

    def append_diagnostic(self, recording_id: str, line: bytes) -> None:
        """Ignored if the recording is not being written."""
        held = self._holding(recording_id)
        if held is not None:
            self._call("POST", f"{held.url}/recordings/{recording_id}/diagnostics", line)

    def delete(self, recording_id: str) -> None:
        """Delete a recording from every worker's disk; one that does not answer keeps a copy.

        Raises:
            SessionInUseError: It is being written.
        """
        answers = self._ask_all("DELETE", f"/recordings/{recording_id}").values()
        if any(answer.status_code == HTTPStatus.CONFLICT for answer in answers):
            raise SessionInUseError("This recording is still being written.")
        with self._lock:
            self._held = (float("-inf"), {})

    def close(self) -> None:
        self._http.close()

    def _holding(self, recording_id: str) -> _Held | None:
        found = self._known().get(recording_id)
        return found or self._known(MISSED_KEPT_S).get(recording_id)  # it may just have begun

    def _known(self, kept_s: float = LIST_KEPT_S) -> Mapping[str, _Held]:
        with self._lock:
            at_s, held = self._held
            if self._clock() - at_s < kept_s:
                return held
            found = self._ask_all("GET", "/recordings")
            held = {one.id: _Held(url, one) for url in found for one in _page(found[url])}
            self._held = (self._clock(), held)
            return held

    def _ask_all(self, method: str, path: str) -> dict[str, httpx.Response]:
        urls = [f"{self._scheme}://{netloc}" for netloc in self._workers()]

        def ask(url: str) -> httpx.Response:
            try:
                return self._call(method, url + path)
            except BucketError:
                return httpx.Response(HTTPStatus.BAD_GATEWAY)

        with ThreadPoolExecutor(ASKED_AT_ONCE, "recording-ask") as asking:
            return dict(zip(urls, asking.map(ask, urls), strict=True))

    def _blocks(self, url: str, start: int, stop: int) -> Iterator[bytes]:
        if start >= stop:
            return
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        try:
            with self._http.stream("GET", url, headers=headers, extensions=SNI) as answer:
                if answer.status_code == HTTPStatus.NOT_FOUND:
                    raise FileNotFoundError(url)
                left = stop - start
                for block in answer.iter_bytes(BLOCK_BYTES):
                    yield block[:left]
                    left -= len(block)
        except httpx.HTTPError as error:
            raise BucketError(f"a worker's recording: {error!r}") from error

    def _call(self, method: str, url: str, body: bytes | None = None) -> httpx.Response:
        try:
            return self._http.request(method, url, content=body, extensions=SNI)
        except httpx.HTTPError as error:
            raise BucketError(f"a worker's recording: {error!r}") from error


def _page(answer: httpx.Response) -> tuple[ListedRecording, ...]:
    if answer.status_code != HTTPStatus.OK:
        return ()
    try:
        return RecordingPage.model_validate_json(answer.content).recordings
    except ValidationError as error:
        raise NotFoundError("The worker answered with something else.") from error
