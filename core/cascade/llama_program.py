"""The program that `core.cascade.language` starts: llama.cpp's own server for one model file.

It serves until its standard input ends, so it never outlives the worker.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import xllamacpp

from core.process_memory import unmap_pages

CONVERSATIONS: Final = 2  # prompts kept: of the conversation, and of a request beside it
CONTEXT_TOKENS: Final = 5_120  # shared by both, 12 KB each: the longest prompt, and another of half
BATCH_TOKENS: Final = 128  # smaller than usual, which saves memory and costs a CPU nothing
THREADS_MAX: Final = 4  # more hardly help a model of this size


def main() -> None:
    """Serve the model file named on the command line, and print the address."""
    path = sys.argv[1]
    key = sys.stdin.readline().strip()
    threads = min(THREADS_MAX, len(os.sched_getaffinity(0)))
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.api_keys = [key]
    params.n_parallel = CONVERSATIONS
    params.n_ctx = CONTEXT_TOKENS
    params.kv_unified = True
    params.n_batch = params.n_ubatch = BATCH_TOKENS
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads = threads
    params.cache_ram_mib = 0  # the prompts of conversations that ended are not kept beside these
    params.cache_idle_slots = False
    params.ui = False
    params.verbosity = 0
    server = xllamacpp.Server(params)
    unmap_pages(Path(path))
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
