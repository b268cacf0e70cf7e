"""Fetches the cascade's files beside the running system, and shows how far that is."""

from __future__ import annotations

import asyncio

from config import PROJECT_ROOT
from core.cascade.files import LANGUAGE_MODEL_SHA256, find
from launcher.display import Display, Loading
from launcher.pace import Pace
from launcher.plan import Planner
from launcher.processes import Child, until
from settings.embedded import (
    CASCADE_FOLDER,
    EMBEDDED_FOLDER,
    PROGRESS_FILE,
    WHISPER_FOLDER,
    FetchProgress,
    read_progress,
)

BYTES_PER_MB = 1_000_000


class Fetching:
    """One fetch, from the check whether it is needed to its end."""

    def __init__(self, planner: Planner, display: Display, pace: Pace) -> None:
        self._planner = planner
        self._display = display
        self._pace = pace
        self._data_dir = planner.settings.service.data_dir
        self._child: Child | None = None

    async def start(self) -> None:
        """Start it unless the files are there and right.

        Raises:
            OSError: the program cannot be started.
        """
        folder = self._data_dir / CASCADE_FOLDER
        has_own = self._planner.settings.cascade.llm_url is None  # a language model of its own
        if await asyncio.to_thread(find, folder, LANGUAGE_MODEL_SHA256 if has_own else None):
            self._display.say("The cascade is here and answers as soon as it is loaded.")
            return
        self._display.say(
            f"Fetching the cascade, {0.6 if has_own else 0.1} GB, once: three small models in a "
            "row that stand in for MiniCPM-o and talk about anything. model.embedded: nano does "
            "without."
        )
        whisper = self._data_dir / EMBEDDED_FOLDER / WHISPER_FOLDER
        flags = ["--whisper", str(whisper)] if whisper.is_dir() else []
        flags += [] if has_own else ["--no-language-model"]
        self._child = Child(
            (*self._planner.programs.cascade, str(folder), *flags),
            environment=self._planner.environment,
            folder=PROJECT_ROOT,
            log=self._planner.log_file("cascade"),
        )

    async def watch(self) -> str:
        """Show its progress until it ends; return why it failed, or an empty text."""
        if self._child is None:
            return ""
        with self._display.loading() as bars:
            while not self._child.has_ended:
                bars.show([_loading(read_progress(self._data_dir))])
                await asyncio.sleep(self._pace.ask_s)
            progress = read_progress(self._data_dir)
            if self._child.succeeded and progress:
                bars.show([_loading(progress)])
        if self._child.succeeded:
            self._display.say("The cascade is complete: new conversations are its.", "green")
            return ""
        self._display.quote("It printed:", self._child.last_lines())
        return (progress and progress.problem) or f"fetching it {self._child.how_it_ended}"

    async def stop(self) -> None:
        """End it; what was fetched stays, and the next start continues from there."""
        if child := self._child:
            child.kill()
            await until(lambda: child.has_ended, self._pace.poll_s, self._pace.end_margin_s)
        self.forget()

    def forget(self) -> None:
        (self._data_dir / CASCADE_FOLDER / PROGRESS_FILE).unlink(missing_ok=True)


def _loading(progress: FetchProgress | None) -> Loading:
    if progress is None or not progress.total_bytes:
        return Loading("cascade", "starting to fetch")
    stage = f"fetching {progress.total_bytes / BYTES_PER_MB:.0f} MB"
    share, is_done = progress.done_bytes / progress.total_bytes, progress.state == "complete"
    return Loading("cascade", "complete" if is_done else stage, share, is_done)
