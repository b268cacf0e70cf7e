"""Deletes old recordings from the command line: `python session_cleanup.py --dry-run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from config import SettingsError, load_settings
from recording.listing import MEGABYTE, CleanupReport, cleanup_sessions
from settings.fields import DAYS_MAX, GIGABYTES_MAX

CONFIGURED = "as configured"

__all__ = ["CleanupReport", "cleanup_sessions", "main"]


def main(
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="The data folder; recordings are in its `sessions`.", show_default=CONFIGURED
        ),
    ] = None,
    retention_days: Annotated[
        float | None,
        typer.Option(
            min=-1,
            max=DAYS_MAX,
            help="Delete recordings older, in days; -1 keeps them.",
            show_default=CONFIGURED,
        ),
    ] = None,
    max_gb: Annotated[
        float | None,
        typer.Option(
            "--max-gb",
            "--max-storage-gb",
            min=-1,
            max=GIGABYTES_MAX,
            help="Then delete the least recently used until all take at most so many GB; "
            "-1 keeps them.",
            show_default=CONFIGURED,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Delete nothing, show what would be.")
    ] = False,
) -> None:
    """Delete recordings by age, then by least recent use. One being written is never touched."""
    try:
        settings = load_settings()
    except SettingsError as error:
        typer.echo(f"Invalid configuration:\n{error}", err=True)
        raise typer.Exit(2) from None
    report = cleanup_sessions(
        settings.service.data_dir if data_dir is None else data_dir,
        settings.recording.session_retention_days if retention_days is None else retention_days,
        settings.recording.max_storage_gb if max_gb is None else max_gb,
        dry_run=dry_run,
    )
    _show(report, is_dry=dry_run)
    if report.errors:
        raise typer.Exit(1)


def _show(report: CleanupReport, *, is_dry: bool) -> None:
    console = Console()
    if report.status == "skipped":
        console.print("There is no limit: nothing to do.")
        return
    if report.sessions:
        table = Table("recording", "reason", "MB")
        for session in report.sessions:
            table.add_row(
                session.session_id, session.reason, f"{session.size_bytes / MEGABYTE:.1f}"
            )
        console.print(table)
    verb = "would be deleted" if is_dry else "deleted"
    console.print(
        f"{report.deleted} of {report.scanned} recordings {verb}; "
        f"{report.remaining} remain, {report.remaining_size_mb:g} MB "
        f"({report.live} being written)."
    )
    for error in report.errors:
        console.print(f"{error.session_id}: {error.message}", style="red")


if __name__ == "__main__":
    typer.run(main)
