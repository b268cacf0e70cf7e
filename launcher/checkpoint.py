"""The checkpoint that is used when none is configured: the embedded one, else a toy."""

from __future__ import annotations

import shutil
from pathlib import Path

from config import PROJECT_ROOT
from launcher.display import Display
from launcher.plan import Pace, Planner
from launcher.process import Child
from launcher.supervisor import StartError
from launcher.waiting import until
from settings.embedded import CONFIG_FILE

EMBEDDED_SOURCE = PROJECT_ROOT / "assets" / "nano"
SUMS_FILE = "SHA256SUMS"  # tells one release of the embedded checkpoint from another


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder holds a checkpoint."""
    return (folder / CONFIG_FILE).is_file()


class DefaultCheckpoint:
    """Makes sure that there is something to load."""

    def __init__(
        self, planner: Planner, display: Display, pace: Pace, source: Path = EMBEDDED_SOURCE
    ) -> None:
        """Prepare; nothing is made yet.

        Args:
            planner: knows the commands and places.
            display: for people.
            pace: how often to look.
            source: the embedded checkpoint as it comes with the code.
        """
        self._planner = planner
        self._display = display
        self._pace = pace
        self._source = source

    async def ensure(self) -> Path:
        """Return a checkpoint, made if need be.

        Raises:
            StartError: not even the toy one can be made.
        """
        places = self._planner.places
        if await self._has_embedded(places.embedded_checkpoint):
            self._display.say(
                "No model.model_path is configured: using the embedded model, nano. It is a "
                "demonstration that understands and says a small set of things.",
                "yellow",
            )
            return places.embedded_checkpoint
        folder = places.tiny_checkpoint
        if not is_checkpoint(folder):
            self._display.say(f"Making a toy checkpoint in {shown(folder)}")
            if said := await self._made(folder, self._planner.programs.tiny_checkpoint):
                raise StartError(f"Making the toy checkpoint failed: it {said}")
        self._display.say(
            f"No model.model_path is configured: using the toy model in {shown(folder)}. Its "
            "weights are random, so what it says means nothing.",
            "yellow",
        )
        return folder

    async def _has_embedded(self, folder: Path) -> bool:
        """Assemble the embedded checkpoint unless it is there in its newest form."""
        command, sums = self._planner.programs.embedded_checkpoint, self._source / SUMS_FILE
        if not self._planner.settings.model.embedded or not sums.is_file():
            return False
        is_there, present = is_checkpoint(folder), folder / SUMS_FILE
        if is_there and present.is_file() and present.read_bytes() == sums.read_bytes():
            return True
        self._display.say(f"Assembling the embedded model in {shown(folder)}: once, 70 MB to fetch")
        flags = ("--earlier", str(folder)) if is_there else ()
        if not await self._made(folder, command, *flags):
            return True
        what = "the earlier one is used" if is_there else "a toy takes its place"
        self._display.say(f"The embedded model could not be assembled; {what}.", "yellow")
        return is_there

    async def _made(self, folder: Path, command: tuple[str, ...], *flags: str) -> str:
        """Make a checkpoint aside and move it to its place; returns how it failed, or nothing."""
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
                self._display.quote("It printed:", child.last_words())
                return child.how_it_ended
            shutil.rmtree(folder, ignore_errors=True)
            partial.replace(folder)
            return ""
        finally:
            child.kill()
            await until(lambda: child.has_ended, self._pace.poll_s, self._pace.end_margin_s)
            shutil.rmtree(partial, ignore_errors=True)


def shown(path: Path) -> str:
    """Return a path relative to the project if it lies there."""
    return str(path.relative_to(PROJECT_ROOT)) if path.is_relative_to(PROJECT_ROOT) else str(path)
