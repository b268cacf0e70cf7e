"""llama.cpp's server for one model file, started by `core.cascade.language`.

It exits when standard input closes, so it never outlives the worker.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import xllamacpp

from core.process_memory import unmap_pages

CONTEXT_TOKENS: Final = 4_096  # of a conversation, 12 KB each
SPARE_SLOTS: Final = 1  # for the prompt of the next conversation, within the same memory
BATCH_TOKENS: Final = 128  # smaller than the default, to save memory at no cost on a CPU
THREADS_MAX: Final = 4  # ours: more hardly help a model of this size


def main() -> None:
    """Serve the model file given on the command line, and print the server's address."""
    path, conversations = sys.argv[1], int(sys.argv[2])
    key = sys.stdin.readline().strip()
    threads = min(THREADS_MAX, len(os.sched_getaffinity(0)))
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.api_keys = [key]
    params.n_parallel = conversations + SPARE_SLOTS
    params.n_ctx = conversations * CONTEXT_TOKENS
    params.kv_unified = True
    params.n_batch = params.n_ubatch = BATCH_TOKENS
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads = threads
    params.cache_ram_mib = 0  # no cache beside the slots
    params.cache_idle_slots = False
    params.ui = False
    params.verbosity = 0
    server = xllamacpp.Server(params)
    unmap_pages(Path(path))
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
