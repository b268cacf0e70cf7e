"""The vocoder's kernels agree with the plain versions, at sizes that leave blocks partly empty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton", reason="Triton is not installed")

from MiniCPMO45.kernels import stream_memory, stream_norms, wave_transforms
from MiniCPMO45.kernels.convolutions import Convolution, Upsampling, branch, convolve, upsample
from MiniCPMO45.kernels.stream_memory import DROPPED, StreamCache, StreamTable
from MiniCPMO45.token2wav.config import HiFTConfig
from tests.unit.device.test_kernels import with_kernels

STREAMS, FRAMES, HEADS, WIDTH, LAYERS = 3, 6, 2, 16, 2
TAILS = 40
HISTORY = 110
LENGTHS = ((18, 18, 6), (100, 104, 4), (0, 10, 2))  # columns held, capacity, new ones
CHANNELS = 24

T = TypeVar("T")

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16])


def assert_near(answer: Tensor, wanted: Tensor) -> None:
    """Equal but for the rounding of sums in another order."""
    limit = 2e-6 if answer.dtype == torch.float32 else 2e-3
    assert answer.dtype == wanted.dtype and answer.shape == wanted.shape
    torch.testing.assert_close(answer, wanted, atol=5 * limit, rtol=limit)


def both(work: Callable[[], T]) -> tuple[T, T]:
    """Return the results of the kernel and of the plain version, for which gradients are on."""
    with torch.no_grad():
        ours = with_kernels(work)
    return ours, work()


@dataclass
class Scene:
    """State of three streams of different ages."""

    cache: StreamCache
    memory: list[Tensor]
    tails: list[Tensor]

    @property
    def table(self) -> StreamTable:
        return self.cache.table


def scene(device: str, dtype: torch.dtype, *, group: int) -> Scene:
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    sizes = {"n_new": 1, "tails": 1} | StreamCache.sizes("kv", FRAMES, HISTORY)
    table = StreamTable(STREAMS, sizes, torch.device(device))
    host, memory = table.on_host(), []
    for row, (length, capacity, n_new) in enumerate(LENGTHS):
        host["kv length"][row], host["kv capacity"][row], host["n_new"][row] = (
            length,
            capacity,
            n_new,
        )
        host["kv ages"][row, :length] = random.permutation(length) + 1
        host["kv targets"][row] = DROPPED
        host["kv targets"][row, 1:n_new] = random.permutation(capacity)[1:n_new]
        shape = (LAYERS, group, HEADS, capacity, 2 * WIDTH)
        memory.append(torch.randn(shape).to(device, dtype))
    tails = [torch.randn(TAILS, device=device) for _ in range(STREAMS)]
    table.upload({"kv address": memory, "tails": tails})
    return Scene(StreamCache(table, "kv", "n_new", HEADS), memory, tails)


LAYOUTS = pytest.mark.parametrize("group, has_bias", [(2, False), (1, True), (1, False)])


@DEVICES
@DTYPES
@LAYOUTS
def test_attention_covers_the_cache_and_the_chunk(
    device: str, dtype: torch.dtype, group: int, has_bias: bool
) -> None:
    stage = scene(device, dtype, group=group)
    rows = STREAMS * group
    qkv = torch.randn(rows, FRAMES, 3 * HEADS * WIDTH).to(device, dtype)
    bias = torch.randn(HEADS, rows * FRAMES, HISTORY + 2 * FRAMES - 1).to(device, dtype)
    given = (qkv, bias if has_bias else None, stage.cache, 1)
    assert_near(*both(lambda: stream_memory.attend(*given)))


@DEVICES
@DTYPES
@LAYOUTS
def test_new_entries_are_written_to_the_table_s_targets(
    device: str, dtype: torch.dtype, group: int, has_bias: bool
) -> None:
    def store() -> list[Tensor]:
        stage = scene(device, dtype, group=group)
        new = torch.randn(LAYERS, STREAMS * group, FRAMES, 3 * HEADS * WIDTH)
        before = [memory.clone() for memory in stage.memory]
        stream_memory.store_entries(new.to(device, dtype), stage.cache, 0)
        assert not any(torch.equal(a, b) for a, b in zip(before, stage.memory, strict=True))
        return stage.memory

    stored = both(store)
    assert all(torch.equal(a, b) for a, b in zip(*stored, strict=True))


@DEVICES
def test_tails_are_loaded_and_stored(device: str) -> None:
    def load_and_store() -> Tensor:
        stage = scene(device, torch.float32, group=1)
        tails = stream_memory.load_tails(stage.table, TAILS)
        assert torch.equal(tails, torch.stack(stage.tails))
        stream_memory.store_tails(tails + 1, stage.table)
        assert torch.equal(torch.stack(stage.tails), tails + 1)
        return tails

    assert torch.equal(*both(load_and_store))


@DEVICES
@DTYPES
@pytest.mark.parametrize("has_change, has_gate", [(True, True), (True, False), (False, False)])
def test_the_gated_norm(
    device: str,
    dtype: torch.dtype,
    has_change: bool,
    has_gate: bool,
) -> None:
    torch.manual_seed(1)
    x = torch.randn(STREAMS, FRAMES, CHANNELS, device=device)
    change = torch.randn_like(x).to(dtype) if has_change else None
    gate, scale, shift = torch.randn(3, CHANNELS, device=device)

    def work() -> tuple[Tensor, Tensor]:
        total = x.clone()
        chosen = gate if has_gate else None
        y = stream_norms.gated_norm(total, change, chosen, (scale, shift), 1e-6, dtype)
        return y, total

    for ours, theirs in zip(*both(work), strict=True):
        assert_near(ours, theirs)


@DEVICES
@DTYPES
@pytest.mark.parametrize("has_mish", [False, True])
def test_norms_in_front_of_causal_convolutions(
    device: str, dtype: torch.dtype, has_mish: bool
) -> None:
    stage = scene(device, dtype, group=2)
    x = torch.randn(2 * STREAMS, FRAMES, CHANNELS, device=device)
    change = torch.randn_like(x).to(dtype)
    gate, scale, shift = torch.randn(3, CHANNELS, device=device)
    old = torch.randn(STREAMS, 3, 2, 2, CHANNELS, device=device)[:, 1]
    n_frames = stage.table["n_new"][:, 0]

    def work() -> tuple[Tensor, Tensor, Tensor]:
        new = torch.zeros(STREAMS, 3, 2, 2, CHANNELS, device=device)
        taps, total, affine = (old, new[:, 1], n_frames), x.clone(), (scale, shift)
        if has_mish:
            y = stream_norms.norm_mish_unfold(change, affine, 1e-6, taps)
        else:
            y = stream_norms.gated_norm(total, change, gate, affine, 1e-6, dtype, taps)
        return y, total, new

    for ours, theirs in zip(*both(work), strict=True):
        assert_near(ours, theirs)


@DEVICES
@DTYPES
def test_heads_are_normalised_in_place(device: str, dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    qkv = torch.randn(STREAMS, FRAMES, 3 * HEADS * WIDTH).to(device, dtype)
    weights = torch.randn(2, 2, WIDTH, device=device)

    def work() -> Tensor:
        given = qkv.clone()
        assert stream_norms.norm_heads(given, weights, 1e-5, HEADS) is given
        return given

    ours, theirs = both(work)
    assert_near(ours, theirs)
    assert torch.equal(ours[:, :, 2 * HEADS * WIDTH :], qkv[:, :, 2 * HEADS * WIDTH :])


@DEVICES
@pytest.mark.parametrize(
    "n_in, n_out, taps, dilation", [(32, 32, 3, 1), (32, 64, 7, 3), (16, 18, 11, 5)]
)
@pytest.mark.parametrize("kind", ["sum", "snake", "leaky"])
def test_convolutions(
    device: str,
    n_in: int,
    n_out: int,
    taps: int,
    dilation: int,
    kind: str,
) -> None:
    if kind != "sum" and n_out % 16:
        pytest.skip("an activation belongs to a whole block of outputs")
    torch.manual_seed(3)
    layer = Convolution(n_in, n_out, taps, dilation).to(device)
    layer.pack(torch.float32)
    x = torch.randn(2, 37, n_in, device=device)
    others = tuple(torch.randn(3, 2, 37, n_out, device=device))
    lengths = torch.tensor([[37, 0], [20, 0]], device=device)[:, 0]
    activation = {"sum": None, "snake": torch.rand(n_out, device=device) + 0.1, "leaky": 0.1}[kind]
    answers = both(
        lambda: convolve(
            x,
            layer,
            lengths,
            added={"sum": (), "snake": others, "leaky": others[:1]}[kind],
            factor=0.5 if kind == "snake" else 1.0,
            activation=activation,
            wants_sum=kind != "leaky",
        ),
    )
    for ours, theirs in zip(*answers, strict=True):
        assert_near(ours[..., :n_out], theirs)


@DEVICES
@pytest.mark.parametrize("rate, kernel", [(8, 16), (5, 11), (3, 7)])
def test_an_upsampling_convolution_is_a_wide_one(device: str, rate: int, kernel: int) -> None:
    torch.manual_seed(4)
    layer = Upsampling(32, 16, kernel, rate).to(device)
    layer.pack(torch.float32)
    x, lengths = torch.randn(2, 9, 32, device=device), torch.tensor([9, 9], device=device)
    assert_near(*both(lambda: upsample(x, layer, lengths)))


@DEVICES
@DTYPES
@pytest.mark.parametrize("missing", [None, 0, 1])
def test_branches_of_a_signal(device: str, dtype: torch.dtype, missing: int | None) -> None:
    torch.manual_seed(5)
    x = torch.randn(2, 37, 16, device=device)
    up = None if missing is None else torch.randn(2, 37 - missing, 16, device=device)
    alphas = torch.rand(3, 16, device=device) + 0.1
    lengths = torch.tensor([37, 20], device=device)
    ours, theirs = both(lambda: branch(x.clone(), up, alphas, lengths, dtype))
    assert_near(ours[0], theirs[0])
    for each, other in zip(ours[1], theirs[1], strict=True):
        assert_near(each, other)


@DEVICES
def test_the_snake_of_large_arguments(device: str) -> None:
    x = torch.linspace(-300, 300, 16 * 64, device=device).view(1, 64, 16)
    alphas, lengths = torch.ones(1, 16, device=device), torch.tensor([64], device=device)
    (_, [ours]), (_, [theirs]) = both(lambda: branch(x, None, alphas, lengths, torch.float32))
    torch.testing.assert_close(ours, theirs, atol=3e-5, rtol=0.0)  # one rounding of 300


@DEVICES
def test_the_excitation(device: str) -> None:
    torch.manual_seed(6)
    linear = nn.Linear(9, 1).to(device)
    f0 = torch.rand(2, 6, device=device) * 300
    f0[0, 2] = 3.0  # unvoiced
    noise = torch.randn(2, 6 * 480, 9, device=device)
    ours, theirs = both(lambda: wave_transforms.excite(f0, noise, linear, HiFTConfig()))
    torch.testing.assert_close(ours, theirs, atol=5e-4, rtol=0.0)  # phases of thousands of turns


@DEVICES
def test_magnitudes_and_phases(device: str) -> None:
    torch.manual_seed(7)
    x, lengths = torch.randn(2, 50, 32, device=device), torch.tensor([50, 21], device=device)
    x[0, 0, 0] = 9.0  # beyond the largest magnitude
    assert_near(*both(lambda: wave_transforms.polar(x, lengths, 9)))


@DEVICES
def test_pieces_overlap_as_in_an_inverse_transform(device: str) -> None:
    torch.manual_seed(8)
    pieces = torch.randn(2, 50, 16, device=device)
    lengths = torch.tensor([50, 21], device=device)
    pieces[1, 21:] = 0.0
    window = torch.hann_window(16, device=device).square()
    ours, theirs = both(lambda: wave_transforms.overlap_add(pieces, lengths, window, 4))
    assert_near(ours[0], theirs[0])
    assert_near(ours[1, :80], theirs[1, :80])
