"""The products' kernels compile for cards that are not there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

COMPILING = """
import itertools
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from MiniCPMO45.kernels import packed_products, row_products

ROW = dict(BLOCK_N=4, OVERLAPS=False)
SOME = dict(BLOCK_N=32, BLOCK_M=16, OVERLAPS=False)
TYPES = dict(x="*bf16", N="i32", M="i32", eps="fp32", out="*bf16")

def compile_for(capability, kernel, types, constants, gate, adds):
    constants = dict(constants, HAS_GATE=gate, HAS_RESIDUAL=adds, HAS_NORM=not adds)
    types = dict(TYPES, **types)
    types |= dict(residual="*bf16") if adds else dict(norm="*bf16")
    names = kernel.arg_names
    left_out = {name: None for name in names if name not in types and name not in constants}
    constants = {name: value for name, value in (constants | left_out).items() if name in names}
    signature = {name: types.get(name, "constexpr") for name in names}
    at = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=at)
    triton.compile(source, target=GPUTarget("cuda", capability, 32))

for capability in (80, 90, 120):
    for gate, adds in ((True, False), (False, True)):
        for kind in ("bf16", "i8", "fp8e4nv")[: 3 if capability > 80 else 2]:
            scales = dict(scales="*fp32") if kind != "bf16" else {}
            types = dict(weight="*" + kind, **scales)
            sizes = dict(K=1024, BLOCK_K=128, WIDTH=8, EARLY_K=512, HAS_SCALES=bool(scales))
            compile_for(capability, row_products._multiply_row, types, sizes | ROW, gate, adds)
            compile_for(capability, row_products._multiply_rows, types, sizes | SOME, gate, adds)
        types = dict(weight="*i32", scales="*bf16")
        sizes = dict(W=128, GROUP=16, BLOCK_W=64)
        compile_for(capability, packed_products._multiply_row, types, sizes | ROW, gate, adds)
        compile_for(capability, packed_products._multiply_rows, types, sizes | SOME, gate, adds)
"""


@pytest.mark.interpreted
def test_products_compile_for_ampere_hopper_and_blackwell() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILING], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
