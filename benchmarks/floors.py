"""Lower bounds of the time of each stage: bytes to read, or operations to compute."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.inputs import Inputs
from benchmarks.machine import synchronise
from benchmarks.rig import Rig, module_bytes
from benchmarks.scripted import Plan
from benchmarks.summary import MS_PER_S
from MiniCPMO45.configuration_minicpmo import ENCODER_FRAMES_PER_SECOND
from MiniCPMO45.engine.kv_cache import cached_bytes
from MiniCPMO45.engine.steps import CODES_PER_UNIT

COPIED_BYTES = {"cuda": 2**31, "cpu": 2**26}
MATMUL_SIDE = {"cuda": 8_192, "cpu": 512}
REPEATS = 10
CONTROL_ROWS = 5  # of a unit's input: its own marks, the picture's, the last unit's terminators
FLOW_MEL_FRAMES = 2 * (CODES_PER_UNIT + 3)  # of a second of speech, look-ahead included
FLOW_BRANCHES = 2  # with and without condition; the same weights


@dataclass(frozen=True)
class Rates:
    bytes_per_s: float  # memory bandwidth, reads and writes of a large copy
    flops_per_s: float  # in the model's dtype
    vocoder_flops_per_s: float  # in the vocoder's dtype

    def pass_ms(self, read_bytes: float, flops: float = 0.0) -> float:
        """Return the lower bound of one pass over weights."""
        return MS_PER_S * max(read_bytes / self.bytes_per_s, flops / self.flops_per_s)


def measure_rates(device: torch.device, dtype: torch.dtype) -> Rates:
    source = torch.zeros(COPIED_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = _best_s(lambda: target.copy_(source), device)
    rates = []
    for kind in (dtype, torch.float32):
        matrix = torch.randn((MATMUL_SIDE[device.type],) * 2, device=device).to(kind)
        product_s = _best_s(lambda matrix=matrix: matrix @ matrix, device)  # type: ignore[misc]
        rates.append(2 * matrix.shape[0] ** 3 / product_s)
    return Rates(2 * source.nbytes / copy_s, *rates)


def _best_s(work: Callable[[], Tensor], device: torch.device) -> float:
    taken_s = []
    for _ in range(REPEATS):
        synchronise(device)
        began_s = time.perf_counter()
        work()
        synchronise(device)
        taken_s.append(time.perf_counter() - began_s)
    return min(taken_s)


def stage_floors(
    rig: Rig, plan: Plan, rates: Rates, cache_tokens: float, kinds: Iterable[str]
) -> dict[str, dict[str, float]]:
    """Return lower bounds, ms, by kind of unit and stage; `cache_tokens` is the cache's mean."""
    model, store = rig.executor.model, rig.executor.llm_store
    layers, head = module_bytes(model.llm.model.layers), module_bytes(model.llm.lm_head)
    cached = cache_tokens * cached_bytes(store.shape, store.pool.dtype)
    pictures = rig.cut(Inputs(plan.picture_size, 0).pictures())
    slices = [each for picture in pictures for each in picture]
    patches = 0 if plan.prefetches else sum(each.size[0] * each.size[1] for each in slices)
    audio_rows = ENCODER_FRAMES_PER_SECOND // rig.config.audio_pool_step
    rows = rig.config.query_num * len(slices) + audio_rows + CONTROL_ROWS
    vision = module_bytes(model.vpm, model.resampler)
    hearing = module_bytes(model.apm, model.audio_projection_layer)
    codes = CODES_PER_UNIT * (module_bytes(model.tts.model.layers) + model.tts.folded_head().nbytes)
    step_read = layers + head + cached
    prefill = {
        "encode_audio": rates.pass_ms(hearing, 2 * _count(model.apm) * ENCODER_FRAMES_PER_SECOND),
        "encode_vision": rates.pass_ms(vision, 2 * _count(model.vpm) * patches) if patches else 0.0,
        "prefill": rates.pass_ms(step_read, 2 * _count(model.llm.model.layers) * rows),
    }
    step_ms, tokens = rates.pass_ms(step_read), plan.script.text_tokens
    speech = {"tts": rates.pass_ms(codes), "token2wav": _vocoder_ms(rig, rates)}
    added: dict[str, dict[str, float]] = {
        "listen": {},
        "listen, cut": {"decode": step_ms},
        "speak": {"decode": (tokens + 1) * step_ms, **speech},  # the decision to speak is fed, too
        "speak, end": {"decode": (tokens + 2) * step_ms, **speech},
    }
    floors = {kind: prefill | added[kind] for kind in kinds}
    return {kind: each | {"answer": sum(each.values())} for kind, each in floors.items()}


def _vocoder_ms(rig: Rig, rates: Rates) -> float:
    """Return the time of one second: the estimator once per ODE step, everything else once."""
    vocoder = rig.vocoder
    estimator, steps = vocoder.flow.decoder.estimator, vocoder.options.flow_steps
    read = module_bytes(vocoder.flow, vocoder.hift) + (steps - 1) * module_bytes(estimator)
    flops = 2 * _count(estimator) * FLOW_MEL_FRAMES * FLOW_BRANCHES * steps
    return MS_PER_S * max(read / rates.bytes_per_s, flops / rates.vocoder_flops_per_s)


def _count(module: nn.Module) -> int:
    return sum(tensor.numel() for tensor in module.parameters())
