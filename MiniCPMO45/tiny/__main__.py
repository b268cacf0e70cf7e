"""Writes a complete checkpoint of toy size: `python -m MiniCPMO45.tiny OUT --seed 0`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from MiniCPMO45.tiny.checkpoint import TinyCheckpointError, write_tiny_checkpoint

EXIT_REFUSED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m MiniCPMO45.tiny",
        description="Write a complete checkpoint of toy size with random weights, for tests and "
        "for starting the system without a download.",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write, new or empty")
    parser.add_argument("--seed", type=int, default=0, help="of the random weights (default: 0)")
    options = parser.parse_args(arguments)
    try:
        write_tiny_checkpoint(options.out, options.seed, show_progress=True)
    except (TinyCheckpointError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_REFUSED
    for path in sorted(path for path in options.out.rglob("*") if path.is_file()):
        print(f"{path.stat().st_size:>10,} B  {path.relative_to(options.out).as_posix()}")
    print(
        f"\nThe weights are RANDOM (seed {options.seed}): this checkpoint listens, speaks and "
        "stops, but its replies mean nothing."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
