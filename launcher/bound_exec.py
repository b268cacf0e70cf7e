"""Runs a program that ends with its parent: `bound_exec.py PARENT SIGNAL COMMAND...`

A killed launcher cannot stop its programs, so the kernel sends them SIGNAL when it is gone.
Standard library only: this runs before every program.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1  # source: prctl(2), Linux


def main(parent: int, number: int, command: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() == parent:  # otherwise the parent has already ended
        os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
