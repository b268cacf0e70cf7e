"""Default models: the embedded one, otherwise a toy; and the download of the cascade."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from config import HOME, PROJECT_ROOT
from core.cascade.files import LANGUAGE_MODEL_SHA256, find
from core.sums import SUMS_FILE
from launcher.display import Display, LoadingProgress
from launcher.pace import Pace
from launcher.plan import Planner
from launcher.processes import BYTES_PER_MB, Child, until
from launcher.supervisor import StartError
from settings.embedded import (
    CASCADE_FOLDER,
    CONFIG_FILE,
    EMBEDDED_FOLDER,
    PROGRESS_FILE,
    TOY_FOLDER,
    WHISPER_FOLDER,
    FetchProgress,
    read_progress,
)

EMBEDDED_SOURCE = PROJECT_ROOT / "assets" / "nano"


async def ensure_checkpoint(
    planner: Planner, display: Display, pace: Pace, source: Path = EMBEDDED_SOURCE
) -> Path:
    """Return the default checkpoint, made if missing; raises StartError if that fails."""
    data_dir = planner.settings.service.data_dir
    toy = data_dir / TOY_FOLDER
    if await _ensure_embedded(planner, display, pace, source / SUMS_FILE):
        display.say(
            "No model.model_path is configured: using the embedded model, nano. It is a "
            "demonstration that understands and says a small set of things.",
            "yellow",
        )
        return data_dir / EMBEDDED_FOLDER
    if not _is_checkpoint(toy):
        display.say(f"Making a toy checkpoint in {shown(toy)}")
        command = planner.programs.tiny_checkpoint
        if failure := await _make(planner, display, pace, toy, command):
            raise StartError(f"Making the toy checkpoint failed: it {failure}")
    display.say(
        f"No model.model_path is configured: using the toy model in {shown(toy)}. Its weights "
        "are random, so what it says means nothing.",
        "yellow",
    )
    return toy


def shown(path: Path) -> str:
    """Return a path for display, relative to `HOME` if it is below it."""
    return str(path.relative_to(HOME)) if path.is_relative_to(HOME) else str(path)


def _content(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None


def _is_checkpoint(folder: Path) -> bool:
    return (folder / CONFIG_FILE).is_file()


async def _ensure_embedded(planner: Planner, display: Display, pace: Pace, sums: Path) -> bool:
    """Assemble the embedded checkpoint if it is not current; return whether there is one."""
    folder = planner.settings.service.data_dir / EMBEDDED_FOLDER
    newest, exists = _content(sums), _is_checkpoint(folder)
    if planner.settings.model.embedded == "toy" or newest is None:
        return False
    if exists and _content(folder / SUMS_FILE) == newest:
        return True
    display.say(f"Assembling the embedded model in {shown(folder)}: a single download of 70 MB")
    command = planner.programs.embedded_checkpoint
    flags = ("--earlier", str(folder)) if exists else ()
    if not await _make(planner, display, pace, folder, command, *flags):
        return True
    instead = "the earlier one is used" if exists else "a toy takes its place"
    display.say(f"The embedded model could not be assembled; {instead}.", "yellow")
    return exists


async def _make(
    planner: Planner,
    display: Display,
    pace: Pace,
    folder: Path,
    command: tuple[str, ...],
    *flags: str,
) -> str:
    """Run a command that writes a checkpoint; return the failure, empty on success."""
    partial = folder.with_name(f"{folder.name}.tmp")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    child = Child(
        (*command, str(partial), *flags),
        environment=planner.environment,
        folder=PROJECT_ROOT,
        log=planner.log_file(f"{folder.name}_checkpoint"),
    )
    try:
        await until(lambda: child.has_ended, pace.poll_s)
        if not child.succeeded:
            display.quote("It printed:", child.last_lines())
            return child.how_it_ended
        shutil.rmtree(folder, ignore_errors=True)
        partial.replace(folder)
        return ""
    finally:
        child.kill()
        await until(lambda: child.has_ended, pace.poll_s, pace.end_margin_s)
        shutil.rmtree(partial, ignore_errors=True)


class Fetching:
    """The download of the cascade's files in the background."""

    def __init__(self, planner: Planner, display: Display, pace: Pace) -> None:
        self._planner = planner
        self._display = display
        self._pace = pace
        self._data_dir = planner.settings.service.data_dir
        self._child: Child | None = None

    async def start(self) -> None:
        """Start the download unless the files are there and intact; raises OSError."""
        folder = self._data_dir / CASCADE_FOLDER
        is_local = self._planner.settings.cascade.llm_url is None  # the language model
        if await asyncio.to_thread(find, folder, LANGUAGE_MODEL_SHA256 if is_local else None):
            self._display.say("The cascade's files are complete; it answers once it is loaded.")
            return
        self._display.say(
            f"Downloading the cascade once, {0.6 if is_local else 0.1} GB: three small models that "
            "stand in for MiniCPM-o and talk about anything. model.embedded: nano skips this."
        )
        whisper = self._data_dir / EMBEDDED_FOLDER / WHISPER_FOLDER
        flags = ["--whisper", str(whisper)] if whisper.is_dir() else []
        flags += [] if is_local else ["--no-language-model"]
        self._child = Child(
            (*self._planner.programs.cascade, str(folder), *flags),
            environment=self._planner.environment,
            folder=PROJECT_ROOT,
            log=self._planner.log_file("cascade"),
        )

    async def watch(self) -> str:
        """Show the progress until the end; return the failure, empty on success."""
        if self._child is None:
            return ""
        with self._display.loading() as bars:
            while not self._child.has_ended:
                _show(bars, read_progress(self._data_dir))
                await asyncio.sleep(self._pace.ask_s)
            progress = read_progress(self._data_dir)
            if self._child.succeeded and progress:
                _show(bars, progress)
        if self._child.succeeded:
            self._display.say("The cascade is complete and serves new conversations.", "green")
            return ""
        self._display.quote("It printed:", self._child.last_lines())
        return (progress and progress.problem) or f"the download {self._child.how_it_ended}"

    async def stop(self) -> None:
        """Stop the download; the next start resumes it."""
        if child := self._child:
            child.kill()
            await until(lambda: child.has_ended, self._pace.poll_s, self._pace.end_margin_s)
        self.forget()

    def forget(self) -> None:
        (self._data_dir / CASCADE_FOLDER / PROGRESS_FILE).unlink(missing_ok=True)


def _show(bars: LoadingProgress, progress: FetchProgress | None) -> None:
    if progress is None or not progress.total_bytes:
        bars.show("cascade", "starting the download")
        return
    stage = f"downloading {progress.total_bytes / BYTES_PER_MB:.0f} MB"
    share, is_done = progress.done_bytes / progress.total_bytes, progress.state == "complete"
    bars.show("cascade", "complete" if is_done else stage, share, is_done=is_done)
