"""Default models: the embedded one, otherwise a toy; and the download of the cascade."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from config import HOME, HOME_VARIABLE, PROJECT_ROOT
from core.files import locked
from core.sums import SUMS_FILE
from launcher.display import Display
from launcher.plan import Planner
from launcher.processes import BYTES_PER_MB, Child, until
from launcher.supervisor import Pace, StartError
from settings.embedded import (
    CASCADE_FOLDER,
    CONFIG_FILE,
    EMBEDDED_FOLDER,
    LANGUAGE_MODEL_SHA256,
    PROGRESS_FILE,
    TOY_FOLDER,
    WHISPER_FOLDER,
    find_cascade,
    read_progress,
)

EMBEDDED_SOURCE = PROJECT_ROOT / "assets" / "nano"


class DefaultModels:
    """Makes the default checkpoint, and downloads the cascade's files in the background."""

    def __init__(
        self, planner: Planner, display: Display, pace: Pace, source: Path = EMBEDDED_SOURCE
    ) -> None:
        self._planner, self._display, self._pace = planner, display, pace
        self._sums = source / SUMS_FILE
        self._data_dir = planner.settings.service.data_dir
        self._download: Child | None = None

    async def ensure_checkpoint(self) -> Path:
        """Return the default checkpoint, made if missing; raises StartError if that fails."""
        toy = self._data_dir / TOY_FOLDER
        if await self._ensure_embedded():
            self._display.say(
                "No model.model_path is configured: using the embedded model, nano. It is a "
                "demonstration that understands and says a small set of things.",
                "yellow",
            )
            return self._data_dir / EMBEDDED_FOLDER
        if not _is_checkpoint(toy):
            self._display.say(f"Making a toy checkpoint in {toy}")
            command, is_made = self._planner.programs.tiny_checkpoint, partial(_is_checkpoint, toy)
            if failure := await self._make(toy, command, is_made):
                raise StartError(f"Making the toy checkpoint failed: it {failure}")
        self._display.say(
            f"No model.model_path is configured: using the toy model in {toy}. Its weights "
            "are random, so what it says means nothing.",
            "yellow",
        )
        return toy

    async def start_download(self) -> None:
        """Download the cascade unless its files are there and intact; raises OSError."""
        folder = self._data_dir / CASCADE_FOLDER
        is_local = self._planner.settings.cascade.llm_url is None  # the language model
        published = LANGUAGE_MODEL_SHA256 if is_local else None
        if await asyncio.to_thread(find_cascade, folder, published):
            self._display.say("The cascade's files are complete; it answers once it is loaded.")
            return
        self._display.say(
            f"Downloading the cascade once, {0.6 if is_local else 0.1} GB: three small models that "
            "stand in for MiniCPM-o and talk about anything. model.embedded: nano skips this."
        )
        whisper = self._data_dir / EMBEDDED_FOLDER / WHISPER_FOLDER
        flags = ["--whisper", str(whisper)] if whisper.is_dir() else []
        flags += [] if is_local else ["--no-language-model"]
        command = (*self._planner.programs.cascade, str(folder), *flags)
        self._download = self._start(command, "cascade")

    async def watch_download(self) -> str:
        """Show the progress until the end; return the failure, empty on success."""
        child, progress = self._download, None
        if child is None:
            return ""
        with self._display.loading() as bars:
            has_ended = False
            while not has_ended:
                has_ended = child.has_ended
                progress = read_progress(self._data_dir)
                if progress is None or not progress.total_bytes:
                    bars.show("cascade", "starting the download")
                elif not has_ended or child.succeeded:
                    is_done = progress.state == "complete"
                    stage = f"downloading {progress.total_bytes / BYTES_PER_MB:.0f} MB"
                    share = progress.done_bytes / progress.total_bytes
                    bars.show("cascade", "complete" if is_done else stage, share, is_done=is_done)
                await asyncio.sleep(0 if has_ended else self._pace.ask_s)
        if child.succeeded:
            self._display.say("The cascade is complete and serves new conversations.", "green")
            return ""
        self._display.quote("It printed:", child.last_lines())
        return (progress and progress.problem) or f"the download {child.how_it_ended}"

    async def stop_download(self) -> None:
        """Stop the download; the next start resumes it."""
        if self._download:
            await self._kill(self._download)
        self.forget_download()

    def forget_download(self) -> None:
        (self._data_dir / CASCADE_FOLDER / PROGRESS_FILE).unlink(missing_ok=True)

    async def _ensure_embedded(self) -> bool:
        """Assemble the embedded checkpoint if it is not current; return whether there is one."""
        folder = self._data_dir / EMBEDDED_FOLDER
        newest, exists = _content(self._sums), _is_checkpoint(folder)
        if self._planner.settings.model.embedded == "toy" or newest is None:
            return False
        is_current = _is_current(folder, newest)
        chosen = self._planner.settings.transcription
        needs_transcriber = chosen.by in ("auto", "whisper") and chosen.whisper_path is None

        def is_complete() -> bool:
            has_transcriber = (folder / WHISPER_FOLDER).is_dir() or not needs_transcriber
            return _is_current(folder, newest) and has_transcriber

        if is_complete():
            return True
        download = "" if exists else ": a single download of 70 MB"
        missing = ", whose transcriber is missing: a download of 70 MB" if is_current else download
        self._display.say(f"Assembling the embedded model in {folder}{missing}")
        flags = ("--earlier", str(folder)) if exists else ()
        command = self._planner.programs.embedded_checkpoint
        if not await self._make(folder, command, is_complete, *flags):
            return True
        instead = "the earlier one is used" if exists else "a toy takes its place"
        self._display.say(f"The embedded model could not be assembled; {instead}.", "yellow")
        return exists

    async def _make(
        self, folder: Path, command: tuple[str, ...], is_made: Callable[[], bool], *flags: str
    ) -> str:
        """Make a checkpoint unless another program has; return the failure, empty on success."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_name(f".{folder.name}.lock")
        # Without the lock `serve` and `talk` would delete each other's unfinished one.
        with ExitStack() as stack:
            await until(partial(_has_locked, lock, stack), self._pace.poll_s)
            return "" if is_made() else await self._write(folder, command, *flags)

    async def _write(self, folder: Path, command: tuple[str, ...], *flags: str) -> str:
        scratch = folder.with_name(f"{folder.name}.tmp")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        made = scratch / folder.name
        child = self._start((*command, str(made), *flags), f"{folder.name}_checkpoint")
        try:
            await until(lambda: child.has_ended, self._pace.poll_s)
            if not child.succeeded:
                self._display.quote("It printed:", child.last_lines())
                return child.how_it_ended
            shutil.rmtree(folder, ignore_errors=True)
            made.replace(folder)
            return ""
        finally:
            await self._kill(child)
            shutil.rmtree(scratch, ignore_errors=True)

    def _start(self, command: tuple[str, ...], log: str) -> Child:
        environment = {**self._planner.environment, HOME_VARIABLE: str(HOME)}
        log_file = self._planner.log_file(log)
        return Child(command, environment=environment, log=log_file)

    async def _kill(self, child: Child) -> None:
        child.kill()
        await until(lambda: child.has_ended, self._pace.poll_s, self._pace.end_margin_s)


def _content(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None


def _is_current(folder: Path, sums: bytes | None) -> bool:
    return _is_checkpoint(folder) and _content(folder / SUMS_FILE) == sums


def _has_locked(path: Path, stack: ExitStack) -> bool:
    """Lock a file until the stack is closed, or return False if another program has."""
    try:
        stack.enter_context(locked(path, waits=False))
    except BlockingIOError:
        return False
    return True


def _is_checkpoint(folder: Path) -> bool:
    return (folder / CONFIG_FILE).is_file()
