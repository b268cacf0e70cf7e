"""Triton, dependent launches, CUDA graphs, copies between host and device, and device memory.

One file holds an operation's plain PyTorch version, which defines it, and its kernel. A dependent
launch may start while its predecessor runs. Its programs call `await_rows` before they read the
predecessor's results and before they write, so kernels complete in order. All graphs share one
memory pool and are replayed in order on one stream. Only `HostCopy` waits for a device."""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from importlib.util import find_spec
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

# Without a card only Triton's interpreter runs kernels; importing the compiler wastes memory.
HAS_TRITON = find_spec("triton") is not None and (
    torch.cuda.is_available() or "TRITON_INTERPRET" in os.environ
)


class _Absent:
    """Placeholder for a missing module; its functions are never called."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *given, **options: given[0] if given else lambda function: function


if HAS_TRITON:
    import triton
    import triton.language as tl
    from triton.language.extra import cuda
else:
    triton = tl = cuda = _Absent()


def runs_kernels(x: Tensor) -> bool:
    """Whether operations on x launch kernels rather than plain PyTorch.

    Kernels support neither gradients nor autocast.
    """
    is_plain = torch.is_grad_enabled() or torch.is_autocast_enabled(x.device.type)
    return x.is_cuda and HAS_TRITON and not is_plain


# The interpreter has no assembly.
HAS_ASSEMBLY = tl.constexpr(HAS_TRITON and os.environ.get("TRITON_INTERPRET", "0") != "1")
HOPPER = 9  # major compute capability from which dependent launch exists
LINE = tl.constexpr(64)  # bfloat16 values in a line of the L2 cache


@triton.jit
def let_next_start(OVERLAPS: tl.constexpr):
    """Allow the next kernel to start before this one ends.

    If called before `await_rows`, the next kernel may even start before this kernel's predecessor
    ends, so that it may only read constants before its own `await_rows`.
    """
    if OVERLAPS:
        cuda.gdc_launch_dependents()


@triton.jit
def await_rows(OVERLAPS: tl.constexpr):
    """Wait until the preceding kernel's results are visible."""
    if OVERLAPS:
        cuda.gdc_wait()


@triton.jit
def prefetch_line(pointers, OVERLAPS: tl.constexpr):
    """Prefetch one 128-byte line per pointer into the L2 cache."""
    if OVERLAPS:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
            "=r,l",
            [pointers],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


def dependent_launch(x: Tensor) -> dict[str, bool]:
    """Return a launch's options: whether the tensor's device supports dependent launches."""
    overlaps = x.is_cuda and torch.cuda.get_device_capability(x.device)[0] >= HOPPER
    return {"OVERLAPS": overlaps, "launch_pdl": overlaps}


SPARE_SHARED_BYTES = 12 * 1024  # of a program, for everything except its tiles


def stages_within(shared_bytes: int, stages: int, stage_bytes: int, kept_bytes: int = 0) -> int:
    """Return the pipeline stages that fit into shared memory, at most `stages` and at least 1.

    A program has 227 KiB with compute capability 9.0, and 99 with 8.6, 8.9 and 12.0. `stage_bytes`
    are the tiles of one iteration, `kept_bytes` the data of all iterations.
    """
    available = shared_bytes - SPARE_SHARED_BYTES - kept_bytes
    return max(1, min(stages, available // stage_bytes))


def fitting_stages(x: Tensor, stages: int, stage_bytes: int, kept_bytes: int = 0) -> int:
    if not x.is_cuda:
        return stages
    properties = torch.cuda.get_device_properties(x.device)
    shared: int = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]  # is there
    return stages_within(shared, stages, stage_bytes, kept_bytes)


def multiprocessors(x: Tensor) -> int:
    """Return the multiprocessors of the tensor's device; in the interpreter those of a large card.

    So the interpreter takes the paths of such a card.
    """
    if not x.is_cuda:
        return 132
    return torch.cuda.get_device_properties(x.device).multi_processor_count


logger = logging.getLogger(__name__)

T = TypeVar("T")


def run_concurrently(works: Sequence[Callable[[], T]], device: torch.device) -> list[T]:
    """Run independent pieces of work on a stream each: parallel branches of a captured graph.

    What they read must be written before the call and outlive it, since the allocator reuses
    memory in the order of one stream.
    """
    if device.type != "cuda":
        return [work() for work in works]
    current = torch.cuda.current_stream(device)
    start, results = current.record_event(), []
    streams = (current, *_side_streams(device, len(works) - 1))
    for stream, work in zip(streams, works, strict=True):
        stream.wait_event(start)
        with torch.cuda.stream(stream):
            results.append(work())
    for stream in streams[1:]:
        current.wait_stream(stream)
    return results


@lru_cache
def _side_streams(device: torch.device, count: int) -> tuple[torch.cuda.Stream, ...]:
    return tuple(torch.cuda.Stream(device) for _ in range(count))


SLOW_WARM_UP_S = 1.0  # worth a line in the log: kernels were compiled, as on a first start


class Capturable(Generic[T]):
    """Device work that can be captured in a CUDA graph and replayed."""

    def __init__(self, name: str, function: Callable[[], T] | None = None) -> None:
        """Take the work, unless a subclass overrides `_work`.

        The work runs eagerly until it is captured, uses static tensors and never waits for the
        device. Its result, tensors, is valid until the next replay.
        """
        self.name = name
        self._function = function
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: T | None = None

    def run(self) -> T:
        """Enqueue the work on the current stream."""
        if self._graph is None:
            return self._work()
        self._graph.replay()
        return cast(T, self._result)

    def _work(self) -> T:
        assert self._function is not None, "there is work"
        return self._function()

    def capture(self, pool: Any, stream: torch.cuda.Stream) -> None:
        """Capture the work, which also runs once with the current inputs."""
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._work()  # libraries are initialised per thread
        torch.cuda.current_stream().wait_stream(stream)
        # Captured products then use a cuBLAS workspace of the pool, which is never freed before it.
        torch._C._cuda_clearCublasWorkspaces()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
            result = self._work()
        self._graph, self._result = graph, result


def capture_all(families: Sequence[Sequence[Capturable[Any]]], *, show_progress: bool) -> None:
    """Capture pieces into graphs of one pool, on the current device.

    Compilation dominates a first start, so families are first warmed up in parallel, unless the
    card is too small for their intermediate results; they must not share library settings. The
    largest pieces come first, so that memory is reused.
    """
    pieces = [piece for family in families for piece in family]
    device = torch.cuda.current_device()
    n_threads = 1 if is_small_card(device) else len(families)
    with tqdm(total=len(pieces), desc="compiling kernels", disable=not show_progress) as bar:
        with ThreadPoolExecutor(n_threads, "warm-up") as threads:
            list(threads.map(partial(_warm_up, device, bar), families))
    # A cuBLAS workspace of up to 33 MB stays allocated for each thread and stream that has run a
    # product. Those threads have ended, and all captures use one stream.
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
    gc.collect()  # a graph of an earlier executor, destroyed during a capture, would invalidate it
    with torch.inference_mode():
        for piece in tqdm(pieces, desc="capturing graphs", disable=not show_progress):
            piece.capture(pool, stream)
        torch.cuda.synchronize()


def _warm_up(device: int, bar: tqdm[Any], family: Sequence[Capturable[Any]]) -> None:
    with torch.inference_mode(), torch.cuda.device(device):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for piece in family:
                start = time.perf_counter()
                piece._work()
                seconds = time.perf_counter() - start
                if seconds > SLOW_WARM_UP_S:
                    logger.info("warmed up %s in %.1f s", piece.name, seconds)
                bar.update()
        stream.synchronize()
        torch.cuda.empty_cache()  # no other stream would reuse it


STAGED_BYTES = 2**22  # fits a 1280x720 image


def upload_array(values: np.ndarray, device: torch.device) -> Tensor:
    """Enqueue a copy of an array to the device and return it.

    The copy to a GPU goes through pinned memory, in parts because torch never frees that.
    """
    is_cuda, dtype = device.type == "cuda", torch.from_numpy(np.empty(0, values.dtype)).dtype
    copy = torch.empty(values.shape, dtype=dtype, device=device)
    step = max(1, STAGED_BYTES * len(values) // max(values.nbytes, 1))
    for start in range(0, len(values), step):
        part = pin(values[start : start + step], is_pinned=is_cuda)
        copy[start : start + step].copy_(part, non_blocking=True)
    return copy


def pin(values: np.ndarray, *, is_pinned: bool = True) -> Tensor:
    """Return a copy in memory that is pinned if needed; any thread may call this."""
    dtype = torch.from_numpy(np.empty(0, values.dtype)).dtype
    copy = torch.empty(values.shape, dtype=dtype, pin_memory=is_pinned)
    np.copyto(copy.numpy(), values)
    return copy


def cached_tensor(
    values: np.ndarray, device: torch.device, dtype: torch.dtype | None = None
) -> Tensor:
    """Copy an array to a tensor that may be cached.

    It is created outside inference mode, whose tensors cannot be used where gradients are recorded.
    """
    with torch.inference_mode(False):
        return torch.from_numpy(np.ascontiguousarray(values)).to(device=device, dtype=dtype)


class Staging:
    """A pinned host table and its device copy, `dtype` [rows, columns] each, initially zero.

    The last copy may still read the host's table before `begin`.
    """

    def __init__(
        self, rows: int, columns: int, device: torch.device, dtype: torch.dtype = torch.int32
    ) -> None:
        is_cuda = device.type == "cuda"
        self.device_words = torch.zeros(rows, columns, dtype=dtype, device=device)
        self.host = torch.zeros(rows, columns, dtype=dtype, pin_memory=is_cuda)
        self.words = self.host.numpy()
        self._copied = torch.cuda.Event() if is_cuda else None

    def begin(self) -> np.ndarray:
        """Wait for the last copy and return the host's words."""
        if self._copied is not None:
            self._copied.synchronize()
        return self.words

    def send(self) -> None:
        """Enqueue the copy to the device."""
        self.device_words.copy_(self.host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()


class HostCopy:
    """A copy of a tensor to the host, enqueued on the current stream when it is created."""

    def __init__(self, values: Tensor) -> None:
        self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
        self._host.copy_(values, non_blocking=True)
        self._copied = torch.cuda.current_stream().record_event() if values.is_cuda else None

    def wait(self) -> Tensor:
        """Return the copy once it is complete; work enqueued after it may still run."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._host

    @cached_property
    def numbers(self) -> list[Any]:
        """The copy as nested lists; waits for it."""
        return self.wait().tolist()


def read_back(values: Tensor) -> Tensor:
    """Wait for all queued work and return a copy on the host."""
    return HostCopy(values).wait()


SMALL_CARD_BYTES = 12_000_000_000  # below this much, memory is worth more than time


def is_small_card(device: torch.device | int) -> bool:
    """Return whether a CUDA device has too little memory for everything that makes a start fast."""
    return torch.cuda.get_device_properties(device).total_memory < SMALL_CARD_BYTES


@dataclass(frozen=True)
class CardMemory:
    """Free bytes of a card according to the driver, and unused bytes reserved by torch."""

    free_bytes: int
    unused_bytes: int

    @classmethod
    def of(cls, device: torch.device) -> CardMemory:
        free, _ = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device)
        return cls(free, held - torch.cuda.memory_allocated(device))

    def share_left(self, now: CardMemory) -> float:
        """Return the share, 0 to 1, of these free bytes that is still free `now`.

        The bytes unused at the time belong to the graphs permanently.
        """
        left = now.free_bytes + now.unused_bytes - self.unused_bytes
        return min(max(left / max(self.free_bytes, 1), 0.0), 1.0)
