"""The kernels of products and of attention compile for other cards.

Two independent parameters alternate over the combinations of the others: the operations fused with
a product, and the number of splits of a sequence. So every pair of parameter values is compiled,
but not every triple.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

COMPILING = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

def compile_for(capability, kernel, types, constants, **options):
    names = kernel.arg_names
    left_out = {name: None for name in names if name not in types and name not in constants}
    constants = {name: value for name, value in (constants | left_out).items() if name in names}
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    at = {(names.index(name),): value for name, value in constants.items()}
    pointers = [place for place, name in enumerate(names) if "*" in signature[name]]
    aligned = {(place,): [["tt.divisibility", 16]] for place in pointers}
    source = ASTSource(fn=kernel, signature=signature, constexprs=at, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
"""

PRODUCTS = """
from MiniCPMO45.kernels import products, quantised, row_products

ROW = dict(BLOCK_N=4, OVERLAPS=False)
SOME = dict(BLOCK_N=32, BLOCK_M=16, OVERLAPS=False)
TYPES = dict(x="*bf16", N="i32", M="i32", eps="fp32", out="*bf16")

KINDS = ("packed", "bf16", "i8", "fp8e4nv")

for card, capability in enumerate((80, 90, 120)):
    for number, kind in enumerate(KINDS if capability > 80 else KINDS[:3]):
        adds = (card + number) % 2 == 1
        gate = dict(HAS_GATE=not adds)
        types = TYPES | (dict(residual="*bf16") if adds else dict(norm="*bf16"))
        if kind == "packed":
            one_row = quantised.multiply_packed_row
            some_rows = quantised.multiply_packed_rows
            sizes = dict(W=128, GROUP=16, BLOCK_W=64)
            types |= dict(weight="*i32", scales="*bf16")
        else:
            one_row, some_rows = row_products._multiply_row, row_products._multiply_rows
            scales = dict(scales="*fp32") if kind != "bf16" else {}
            both = kind == "fp8e4nv"  # operands, each row with its scale
            sizes = dict(K=1024, BLOCK_K=128, WIDTH=8, EARLY_K=512)
            types |= dict(weight="*" + kind) | scales
            types |= dict(x="*" + kind, row_scales="*fp32") if both else {}
        if kind != "fp8e4nv":
            compile_for(capability, one_row, types, sizes | ROW | gate)
        compile_for(capability, some_rows, types, sizes | SOME | gate)

SCALING = dict(K=4096, BLOCK=4096, OVERLAPS=False)
for capability in (89, 90, 120):
    types = dict(x="*bf16", weight="*bf16", out="*fp8e4nv", scales="*fp32", eps="fp32")
    compile_for(capability, products._normalise_row, types, SCALING)
"""

ATTENTION = """
from MiniCPMO45.kernels import attention_kernels as kernels

ALL = (kernels.attend_one_row, kernels.rotate_and_store, kernels.attend_tile)
SPLITS = (1, 4)
POINTERS = {
    "*i32": "positions sequences page_table tile_first_row tile_rows",
    "*fp32": "cos_table sin_table kv_scales parts part_stats",
    "*bf16": "qkv queries mixed",
}
TYPES = {name: kind for kind, names in POINTERS.items() for name in names.split()}
TYPES |= dict(max_pages="i32", eps="fp32", scale="fp32")
# heads of the language model with its cache as it is and in 8 bits; of the speech decoder
LANGUAGE = dict(H=32, KVH=8, D=128, WIDE=128, HALF=64, HEADS=8, LINES=16)
SPEECH = dict(H=12, KVH=12, D=64, WIDE=64, HALF=32, HEADS=4, LINES=16)

for card, capability in enumerate((80, 90, 120)):
    for number, (sizes, coded) in enumerate(((LANGUAGE, False), (LANGUAGE, True), (SPEECH, False))):
        types = TYPES | dict(kv_layer="*i8" if coded else "*bf16")
        types |= dict(q_norm="*bf16", k_norm="*bf16") if sizes is LANGUAGE else {}
        rest = dict(IS_CODED=coded, PAGE=64, OVERLAPS=capability >= 90)
        constants = sizes | rest | dict(SPLITS=SPLITS[(card + number) % 2], EARLY_PAGES=2)
        for kernel in ALL if constants["SPLITS"] == 1 else (*ALL, kernels.combine_splits):
            compile_for(capability, kernel, types, constants)
"""


# The largest tile sizes, with the stages that fit into a card's shared memory: KiB per program by
# compute capability, from NVIDIA's CUDA programming guide, "compute capabilities".
SHARED_MEMORY = """
from MiniCPMO45.kernels import attention_kernels, row_products
from MiniCPMO45.kernels.attention import AttentionPlan
from MiniCPMO45.kernels.device import stages_within
from MiniCPMO45.kernels.product_plans import FewRowsPlan, plans_of

SHARED_KIB = {80: 163, 86: 99, 89: 99, 90: 227, 120: 99}
TYPES = dict(x="*bf16", N="i32", M="i32", out="*bf16")
MAP = {name: "*i32" for name in "positions sequences page_table tile_first_row tile_rows".split()}
PASS = MAP | dict(queries="*bf16", mixed="*bf16", max_pages="i32", scale="fp32")
PASS |= dict(kv_layer="*bf16", kv_scales="*fp32", parts="*fp32", part_stats="*fp32")
LANGUAGE = dict(H=32, KVH=8, D=128, WIDE=128, LINES=64, PAGE=64, SPLITS=4)
STAGES = AttentionPlan(4, warps=4, stages=4)


def check(name, capability, compiled, stages):
    taken, there = compiled.metadata.shared, SHARED_KIB[capability] * 1024
    assert taken <= there, f"{name} on {capability} with {stages} stages: {taken} of {there} bytes"


for capability, kib in SHARED_KIB.items():
    bytes_ = kib * 1024
    kinds = {"bfloat16": "bf16", "bfloat16 int8": "i8"}
    kinds |= {"bfloat16 fp8": "fp8e4nv"} if capability >= 89 else {}
    cases = {
        (kinds[kind], plan, size.startswith("12288x"))
        for name, plans in plans_of("NVIDIA H200").items()
        for kind, size in [name.rsplit(" ", 1)] if kind in kinds
        for _, plan in plans[-2:]
        if isinstance(plan, FewRowsPlan) and plan.block_n * plan.block_k >= 2**13
    }
    for kind, plan, gate in sorted(cases, key=str):
        item, row_item = 2 if kind == "bf16" else 1, 1 if kind == "fp8e4nv" else 2
        step = plan.block_k * (plan.block_n * (1 + gate) * item + plan.most_rows * row_item)
        stages = stages_within(bytes_, plan.stages, step)
        types = TYPES | dict(weight="*" + kind) | (dict(scales="*fp32") if item == 1 else {})
        types |= dict(x="*" + kind, row_scales="*fp32") if row_item == 1 else {}
        sizes = dict(K=4096, BLOCK_M=plan.most_rows, BLOCK_N=plan.block_n, BLOCK_K=plan.block_k)
        sizes |= dict(EARLY_K=512, OVERLAPS=False, HAS_GATE=gate)
        options = dict(num_warps=plan.warps, num_stages=stages)
        compiled = compile_for(
            capability, row_products._multiply_rows, types, sizes, **options
        )
        check(f"a product of {kind}", capability, compiled, stages)
    stages = stages_within(bytes_, STAGES.stages, 2 * 64 * 128 * 2, 2 * 64 * 128 * 2)
    rest = dict(IS_CODED=False, OVERLAPS=False)
    options = dict(num_warps=STAGES.warps, num_stages=stages)
    compiled = compile_for(
        capability, attention_kernels.attend_tile, PASS, LANGUAGE | rest, **options
    )
    check("attention", capability, compiled, stages)
"""


@pytest.mark.interpreted
@pytest.mark.parametrize(
    "kernels", [PRODUCTS, ATTENTION, SHARED_MEMORY], ids=["products", "attention", "shared memory"]
)
def test_kernels_compile_for_ampere_ada_hopper_and_blackwell(kernels: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILING + kernels], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
