"""Becomes a program that ends with its parent: `python bound_exec.py PARENT_PID COMMAND...`

A killed launcher cannot stop what it started, so the kernel does: the program gets SIGTERM when
its parent is gone. Only the standard library, and little of it: this runs before every program.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # source: prctl(2), Linux


def main(arguments: list[str]) -> None:
    """Ask for the signal, then become the command; the process id stays.

    Args:
        arguments: the parent's process id and the command.
    """
    parent, command = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        return  # the parent ended before the signal was asked for
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
