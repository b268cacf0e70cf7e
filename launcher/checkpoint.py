"""The checkpoint used when none is configured: the embedded one, else a toy."""

from __future__ import annotations

import shutil
from pathlib import Path

from config import HOME, PROJECT_ROOT
from core.sums import SUMS_FILE
from launcher.display import Display
from launcher.pace import Pace
from launcher.plan import Planner
from launcher.processes import Child, until
from launcher.supervisor import StartError
from settings.embedded import CONFIG_FILE, EMBEDDED_FOLDER, TOY_FOLDER

EMBEDDED_SOURCE = PROJECT_ROOT / "assets" / "nano"


async def ensure_checkpoint(
    planner: Planner, display: Display, pace: Pace, source: Path = EMBEDDED_SOURCE
) -> Path:
    """Return the default checkpoint, made if it is missing.

    Raises:
        StartError: not even the toy one can be made.
    """
    maker = _Maker(planner, display, pace)
    data_dir = planner.settings.service.data_dir
    embedded, toy = data_dir / EMBEDDED_FOLDER, data_dir / TOY_FOLDER
    if await maker.ensure_embedded(embedded, source / SUMS_FILE):
        display.say(
            "No model.model_path is configured: using the embedded model, nano. It is a "
            "demonstration that understands and says a small set of things.",
            "yellow",
        )
        return embedded
    if not _is_checkpoint(toy):
        display.say(f"Making a toy checkpoint in {shown(toy)}")
        if failure := await maker.make(toy, planner.programs.tiny_checkpoint):
            raise StartError(f"Making the toy checkpoint failed: it {failure}")
    display.say(
        f"No model.model_path is configured: using the toy model in {shown(toy)}. Its weights "
        "are random, so what it says means nothing.",
        "yellow",
    )
    return toy


def shown(path: Path) -> str:
    """Return a path for people: relative to `HOME` if it lies there."""
    return str(path.relative_to(HOME)) if path.is_relative_to(HOME) else str(path)


def _content(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None


def _is_checkpoint(folder: Path) -> bool:
    return (folder / CONFIG_FILE).is_file()


class _Maker:
    def __init__(self, planner: Planner, display: Display, pace: Pace) -> None:
        self._planner = planner
        self._display = display
        self._pace = pace

    async def ensure_embedded(self, folder: Path, sums: Path) -> bool:
        """Assemble the embedded checkpoint unless its newest form is there."""
        newest, exists = _content(sums), _is_checkpoint(folder)
        if self._planner.settings.model.embedded == "toy" or newest is None:
            return False
        if exists and _content(folder / SUMS_FILE) == newest:
            return True
        self._display.say(f"Assembling the embedded model in {shown(folder)}: once, 70 MB to fetch")
        flags = ("--earlier", str(folder)) if exists else ()
        if not await self.make(folder, self._planner.programs.embedded_checkpoint, *flags):
            return True
        instead = "the earlier one is used" if exists else "a toy takes its place"
        self._display.say(f"The embedded model could not be assembled; {instead}.", "yellow")
        return exists

    async def make(self, folder: Path, command: tuple[str, ...], *flags: str) -> str:
        """Run a command that writes a checkpoint; return how it failed, or an empty text."""
        partial = folder.with_name(f"{folder.name}.tmp")
        shutil.rmtree(partial, ignore_errors=True)
        partial.parent.mkdir(parents=True, exist_ok=True)
        child = Child(
            (*command, str(partial), *flags),
            environment=self._planner.environment,
            folder=PROJECT_ROOT,
            log=self._planner.log_file(f"{folder.name}_checkpoint"),
        )
        try:
            await until(lambda: child.has_ended, self._pace.poll_s)
            if not child.succeeded:
                self._display.quote("It printed:", child.last_lines())
                return child.how_it_ended
            shutil.rmtree(folder, ignore_errors=True)
            partial.replace(folder)
            return ""
        finally:
            child.kill()
            await until(lambda: child.has_ended, self._pace.poll_s, self._pace.end_margin_s)
            shutil.rmtree(partial, ignore_errors=True)
