"""Writes a complete checkpoint at toy size: `python -m MiniCPMO45.tiny OUT --seed 0`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from MiniCPMO45.tiny.checkpoint import TinyCheckpointError, write_tiny_checkpoint

EXIT_REFUSED = 2
BYTES_PER_MB = 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m MiniCPMO45.tiny",
        description="Write a complete toy-size checkpoint with random weights, for tests and for "
        "starting the system without a download.",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write, new or empty")
    parser.add_argument("--seed", type=int, default=0, help="of the random weights (default: 0)")
    chosen = parser.parse_args(arguments)
    try:
        write_tiny_checkpoint(chosen.out, chosen.seed, show_progress=True)
    except (TinyCheckpointError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_REFUSED
    _print_summary(chosen.out, chosen.seed)
    return 0


def _print_summary(folder: Path, seed: int) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        print(f"{path.stat().st_size:>10,} B  {path.relative_to(folder).as_posix()}")
    total_mb = sum(path.stat().st_size for path in files) / BYTES_PER_MB
    print(f"\n{len(files)} files, {total_mb:.1f} MB in {folder}")
    print(
        f"The weights are RANDOM (seed {seed}): this checkpoint listens, speaks and stops, but what"
        " it says means nothing. It is for tests and for starting the system."
    )


if __name__ == "__main__":
    sys.exit(main())
