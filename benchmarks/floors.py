"""Lower bounds of the time of each stage: bytes to read, or operations to compute.

Bandwidth and matmul rates are measured; sizes are those of the loaded weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from benchmarks.conversation import Plan
from benchmarks.inputs import Inputs
from benchmarks.rig import Rig
from MiniCPMO45.configuration_minicpmo import ENCODER_FRAMES_PER_SECOND
from MiniCPMO45.engine.kv_cache import cached_bytes
from MiniCPMO45.engine.steps import CODES_PER_UNIT

MS_PER_S = 1_000.0
COPIED_BYTES = {"cuda": 2**31, "cpu": 2**26}
MATMUL_SIDE = {"cuda": 8_192, "cpu": 512}
REPEATS = 10
CONTROL_ROWS = 5  # of a unit's input: its own marks, the picture's, the last unit's terminators
FLOW_MEL_FRAMES = 2 * (CODES_PER_UNIT + 3)  # of a second of speech, look-ahead included
FLOW_BRANCHES = 2  # with and without condition; the same weights


@dataclass(frozen=True)
class Rates:
    """Measured rates of the device.

    Attributes:
        bytes_per_s: memory bandwidth, reads and writes of a large copy.
        flops_per_s: in the model's dtype.
        vocoder_flops_per_s: in the vocoder's dtype.
    """

    bytes_per_s: float
    flops_per_s: float
    vocoder_flops_per_s: float

    def pass_ms(self, read_bytes: float, flops: float = 0.0) -> float:
        """Return the lower bound of one pass over weights."""
        return MS_PER_S * max(read_bytes / self.bytes_per_s, flops / self.flops_per_s)


def measure_rates(device: torch.device, dtype: torch.dtype, wait: Callable[[], None]) -> Rates:
    """Measure a large copy and large matrix products; `wait` synchronises with the device."""
    source = torch.zeros(COPIED_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = _best_s(lambda: target.copy_(source), wait)
    rates = []
    for kind in (dtype, torch.float32):
        matrix = torch.randn((MATMUL_SIDE[device.type],) * 2, device=device).to(kind)
        product_s = _best_s(lambda matrix=matrix: matrix @ matrix, wait)  # type: ignore[misc]
        rates.append(2 * matrix.shape[0] ** 3 / product_s)
    return Rates(2 * source.nbytes / copy_s, *rates)


def _best_s(work: Callable[[], Tensor], wait: Callable[[], None]) -> float:
    """Return the shortest of several runs."""
    taken_s = []
    for _ in range(REPEATS):
        wait()
        began_s = time.perf_counter()
        work()
        wait()
        taken_s.append(time.perf_counter() - began_s)
    return min(taken_s)


@dataclass(frozen=True)
class Floors:
    """Lower bounds in milliseconds of the stages of one kind of conversation."""

    encode_audio: float
    encode_vision: float
    prefill: float
    decode_step: float
    tts: float
    token2wav: float
    finalize: float

    @classmethod
    def of(cls, rig: Rig, plan: Plan, rates: Rates, cache_tokens: float) -> Floors:
        """Compute the bounds; `cache_tokens` is the mean KV cache length."""
        model, vocoder, store = rig.executor.model, rig.executor.vocoder, rig.executor.llm_store
        assert vocoder is not None, "the rig is built with a vocoder"
        layers, head = _bytes(model.llm.model.layers), _bytes(model.llm.lm_head)
        cached = cache_tokens * cached_bytes(store.shape, store.pool.dtype)
        pictures = rig.cut(Inputs(plan.picture_size, 0).pictures())
        slices = [each for picture in pictures for each in picture]
        patches = sum(rows * cols for rows, cols in (each.size for each in slices))
        pictured = rig.config.query_num * len(slices)
        sees = bool(slices) and not plan.looks_ahead
        audio_rows = ENCODER_FRAMES_PER_SECOND // rig.config.audio_pool_step
        rows = pictured + audio_rows + CONTROL_ROWS
        vision = _bytes(model.vpm) + _bytes(model.resampler)
        hearing = _bytes(model.apm) + _bytes(model.audio_projection_layer)
        codes = CODES_PER_UNIT * (_bytes(model.tts.model.layers) + model.tts.folded_head().nbytes)
        return cls(
            encode_audio=rates.pass_ms(hearing, 2 * _count(model.apm) * ENCODER_FRAMES_PER_SECOND),
            encode_vision=rates.pass_ms(vision, 2 * _count(model.vpm) * patches) if sees else 0.0,
            prefill=rates.pass_ms(
                layers + head + cached, 2 * _count(model.llm.model.layers) * rows
            ),
            decode_step=rates.pass_ms(layers + head + cached),
            tts=rates.pass_ms(codes),
            token2wav=_vocoder_ms(rig, rates),
            finalize=rates.pass_ms(layers + cached),
        )

    def by_stage(self, kind: str, text_tokens: int) -> dict[str, float]:
        """Return the bounds by stage, if known for a kind of unit; see `Unit.kind`."""
        stages = {
            "encode_audio": self.encode_audio,
            "encode_vision": self.encode_vision,
            "prefill": self.prefill,
        }
        if kind.startswith("speak"):
            passes = text_tokens + 1 + (kind == "speak, end")  # the decision to speak is fed, too
            stages |= {
                "decode": passes * self.decode_step,
                "tts": self.tts,
                "token2wav": self.token2wav,
            }
        elif kind == "listen, cut":
            stages["decode"] = self.decode_step
        return stages | {"answer": sum(stages.values())}

    def as_record(self) -> dict[str, float]:
        return asdict(self)


def _vocoder_ms(rig: Rig, rates: Rates) -> float:
    """Return the time of one second: the estimator once per ODE step, everything else once."""
    vocoder = rig.executor.vocoder
    assert vocoder is not None, "the rig is built with a vocoder"
    estimator, steps = vocoder.flow.decoder.estimator, vocoder.options.flow_steps
    read = _bytes(vocoder.flow) + _bytes(vocoder.hift) + (steps - 1) * _bytes(estimator)
    flops = 2 * _count(estimator) * FLOW_MEL_FRAMES * FLOW_BRANCHES * steps
    return MS_PER_S * max(read / rates.bytes_per_s, flops / rates.vocoder_flops_per_s)


def _bytes(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in module.state_dict().values())


def _count(module: nn.Module) -> int:
    return sum(tensor.numel() for tensor in module.parameters())
