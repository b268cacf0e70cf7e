"""The one error of loading a checkpoint; its text is for the person who started the program."""

from __future__ import annotations


class CheckpointError(Exception):
    """A checkpoint cannot be found, does not fit the program, or is damaged.

    The message is complete: what is wrong, where, and what to do about it.
    """
