"""The toy model on a GPU gives the results of the CPU, request by request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.scripted import Act, ScriptedPolicy, text_ids
from core.engine.passes import run_alone
from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.policies import CodeRule
from MiniCPMO45.engine.steps import DrawCodes, LlmOutput, Request
from MiniCPMO45.modes.duplex import DuplexCapability
from MiniCPMO45.settings import DuplexSettings
from MiniCPMO45.token2wav.vocoder_state import VoicePrompt
from tests.fakes.batching import at_once
from tests.model.toy import UnitInput, build_toy, picture, prepare, run_unit, speech

ACTS = (Act.LISTEN, Act.SPEAK, Act.SPEAK, Act.SPEAK_LAST, Act.LISTEN, Act.SPEAK, Act.LISTEN)
WORDS = 6
VOICE_CODES = 40
TOLERANCE = 2e-4  # relative error of float32 sums in another order
SMALLEST_NORM = 1e-30
WAVE_TOLERANCE = 1e-2  # phases of the excitation add up over a chunk


@dataclass(frozen=True)
class CountingRule(CodeRule):
    """Records the logits of every code and samples the same codes on every device."""

    seen: list[Tensor] = field(default_factory=list)

    def choose(self, logits: Tensor, codes: Sequence[int], eos: int, *_: Any, **__: Any) -> int:
        self.seen.append(logits)
        return (7 * (codes[-1] if codes else 0) + 3) % eos


class Recorder:
    """An executor that records its answers, with the same codes on every device."""

    def __init__(self, executor: Executor) -> None:
        self.answers: list[tuple[str, Tensor]] = []
        self._executor = executor

    @torch.inference_mode()
    @at_once
    def submit(self, requests: Sequence[Request]) -> list[Any]:
        [request] = requests
        rule = CountingRule(1.0, 1.0)
        if isinstance(request, DrawCodes):
            request = replace(request, rule=rule)
        [answer] = self._executor.submit([request])()
        name = type(request).__name__
        tensors = rule.seen if isinstance(request, DrawCodes) else _tensors(answer)
        self.answers += [(name, part.float().cpu().clone()) for part in tensors]
        return [answer]


def _tensors(answer: object) -> Iterator[Tensor]:
    if isinstance(answer, LlmOutput):
        yield answer.hidden
        if answer.logits is not None:
            yield answer.logits
    elif isinstance(answer, Tensor):
        yield answer
    elif isinstance(answer, list):
        yield from answer


def record(folder: Path, device: str) -> list[tuple[str, Tensor]]:
    """Return the answers of a scripted conversation with pictures and a voice."""
    folder.mkdir()
    toy = build_toy(folder, device=device)
    model, vocoder = toy.model, toy.vocoder
    executor = Executor(model, vocoder)
    tokens = toy.tokenizer.special
    words = text_ids(toy.tokenizer, WORDS)
    policy = ScriptedPolicy(tokens, executor.device, words)
    duplex = DuplexCapability(toy.config, toy.tokenizer, policy)
    recorder, session = Recorder(executor), executor.open_session(device, seed=1)
    generator = torch.Generator().manual_seed(2)
    voice = VoicePrompt(
        torch.randint(0, 6561, (1, VOICE_CODES), generator=generator),
        torch.randn(1, 192, generator=generator),
        torch.randn(1, 2 * VOICE_CODES, 80, generator=generator),
    )
    with torch.inference_mode():
        stream = vocoder.new_state(vocoder.set_up(voice))
    settings = DuplexSettings(force_listen_count=0, decode_mode="greedy")
    run_alone(prepare(duplex, session, settings, stream, speech(2.0)), recorder)
    for index, act in enumerate(ACTS):
        policy.begin(act)
        is_cut = act is Act.LISTEN and not session.turn.has_ended
        unit = UnitInput(speech(1.0, index), (picture(index),), force_listen=is_cut)
        run_alone(run_unit(duplex, session, unit), recorder)
    return recorder.answers


@pytest.mark.gpu
def test_cuda_equals_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    expected, found = record(tmp_path / "a", "cpu"), record(tmp_path / "b", "cuda")
    assert [name for name, _ in found] == [name for name, _ in expected]
    worst: dict[str, float] = {}
    for (name, ours), (_, theirs) in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert ours.isfinite().all(), f"{name} is not finite"
        error = float((ours - theirs).norm() / theirs.norm().clamp(min=SMALLEST_NORM))
        worst[name] = max(worst.get(name, 0.0), error)
    print("largest relative error per request:", worst)
    limits = {name: WAVE_TOLERANCE if name == "Vocode" else TOLERANCE for name in worst}
    assert {name: e for name, e in worst.items() if not e <= limits[name]} == {}
    assert {"EncodeImages", "EncodeStream", "LlmForward", "DrawCodes", "Vocode"} <= set(worst)
