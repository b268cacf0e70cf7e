"""Stage "listen": projection and language model learn to hear, to take turns and to answer."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from training.nano import shapes
from training.nano.augment import Augmenter
from training.nano.batches import PRACTICE_SHARE, UNITS, Batch, Conversations, loader
from training.nano.model import NanoModel
from training.nano.optimizing import Optimizer, Recipe, fast
from training.nano.ranks import ALONE, Ranks
from training.nano.voice.stage_clock import Average, Tick, save

FILE = "listening.pt"
STATE_FILE = "listening.state"
SIDE_FOLDER = "tokenizer"
PEAK_RATE = 1.5e-3
RECIPE = Recipe(inside=("llm.model.layers.",), weight_decay=0.05, undecayed=("embed",))
SAVE_EVERY_S = 120.0
REPORT_EVERY_STEPS = 100
TRANSCRIPTION = 0.3  # share of the loss of spelling what is heard


@dataclass(frozen=True)
class Plan:
    """How long and how wide the stage trains.

    Attributes:
        steps: in all, those before a resumption included.
        minutes: by the clock at most, those before a resumption included.
        minutes_now: by the clock at most in this run; the rate falls as if there were no pause.
        practice: share of the batches in which everything is typed.
        stop_at: step to stop at early, as an interruption does; 0 for none.
    """

    steps: int
    minutes: float = math.inf
    minutes_now: float = math.inf
    units: int = 1024
    processes: int = 0
    seed: int = 0
    peak_rate: float = PEAK_RATE
    longest: int = max(UNITS)
    practice: float = PRACTICE_SHARE
    stop_at: int = 0


def train(
    banks: Sequence[Path],
    encoder: Path,
    out: Path,
    plan: Plan,
    device: torch.device,
    ranks: Ranks = ALONE,
) -> NanoModel:
    """Train, or go on where an earlier run of the plan stopped; averages the weights.

    `out` takes `FILE` (float16, averaged: what is exported) and `STATE_FILE` (all it takes to go on
    exactly); a `FILE` without a state is where a new run starts from. The first rank writes.
    """
    torch.manual_seed(plan.seed)
    side = out / SIDE_FOLDER
    if ranks.is_first:
        side.mkdir(parents=True, exist_ok=True)
        shapes.write_side_files(side)
    model = NanoModel(shapes.config())
    model.load_encoder(encoder)
    resume_trained(model, out / FILE)
    model.to(device)
    optimizer = Optimizer(model, plan.peak_rate, RECIPE, ranks)
    average = Average(model)
    first, spent_s = _restore(out / STATE_FILE, model, optimizer, average)
    began_s = ranks.now_s() - spent_s  # by now the first has written what all read
    conversations = Conversations(
        banks, side, plan.units, plan.seed, first, plan.longest, plan.practice, ranks
    )
    batches = iter(loader(conversations, plan.processes))
    generator = torch.Generator(device=device)
    others = not ranks.is_first
    bar = tqdm(None, "listen", plan.steps, initial=first, mininterval=10.0, disable=others)
    steps = range(first, plan.stop_at or plan.steps)
    for tick in _ticks(steps, began_s, spent_s, plan, bar, ranks):
        batch = to_device(next(batches), device)
        seed = (plan.seed * plan.steps + tick.step) * ranks.count + ranks.number
        generator.manual_seed(seed)
        torch.manual_seed(seed)
        with fast(device):
            read = model(batch, model.encode_audio(batch, Augmenter(generator)))
            spelled = model.transcription_loss(batch, read.hidden)
        optimizer.step(read.loss + TRANSCRIPTION * spelled, tick)
        average.update(tick.step)
        if ranks.is_first and (tick.step % REPORT_EVERY_STEPS == 0 or tick.is_save_due):
            figures = f"loss {read.loss.item():.3f} right {read.n_right.item():.3f}"
            print(f"listen {tick.step} {figures} words {spelled.item():.3f}", flush=True)
        if ranks.is_first and tick.is_save_due:
            _save(out, model, optimizer, average, tick.step + 1, time.monotonic() - began_s)
        bar.update()
    bar.close()
    model.load_state_dict({n: t.to(device) for n, t in average.state_dict().items()})
    return model.eval()


def resume_trained(model: NanoModel, path: Path) -> bool:
    """Load trained weights saved without the encoder, if there are any."""
    if not path.is_file():
        return False
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    state = model.state_dict() | {name: tensor.float() for name, tensor in tensors.items()}
    model.load_state_dict(state)
    return True


def to_device(batch: Batch, device: torch.device) -> Batch:
    moved: dict[str, Any] = {
        name: value.to(device, non_blocking=True)
        for name, value in vars(batch).items()
        if isinstance(value, Tensor)
    }
    return replace(batch, **moved)


def load_model(folder: Path, encoder: Path | None) -> NanoModel:
    """Return the trained language model with its audio encoder; a random one for a rehearsal."""
    model = NanoModel(shapes.config())
    if encoder is not None:
        model.load_encoder(encoder)
    resume_trained(model, folder / FILE)
    return model.eval()


def _ticks(
    steps: range, began_s: float, spent_s: float, plan: Plan, bar: tqdm, ranks: Ranks
) -> Iterator[Tick]:
    saved = began_s + spent_s
    for step in steps:
        now = ranks.now_s()
        elapsed_s = now - began_s
        progress = min(1.0, max(step / plan.steps, elapsed_s / (60 * plan.minutes)))
        is_over = elapsed_s - spent_s > 60 * plan.minutes_now
        is_last = step + 1 == steps.stop or progress >= 1 or is_over
        is_save_due = is_last or now - saved > SAVE_EVERY_S
        saved = now if is_save_due else saved
        yield Tick(step, progress, is_save_due, bar)
        if is_last:
            return


def _save(
    out: Path, model: NanoModel, optimizer: Optimizer, average: Average, step: int, spent_s: float
) -> None:
    averaged = average.state_dict()
    save({n: t for n, t in averaged.items() if not n.startswith("apm.")}, out / FILE)
    state = {
        "step": step,
        "spent_s": spent_s,
        "model": model.trained_state(),
        "optimizer": optimizer.state(),
        "average": {n: t for n, t in averaged.items() if not n.startswith("apm.")},
    }
    partial = out / (STATE_FILE + ".part")
    torch.save(state, partial)
    partial.replace(out / STATE_FILE)


def _restore(
    path: Path, model: NanoModel, optimizer: Optimizer, average: Average
) -> tuple[int, float]:
    """Go back to a saved state; returns the next step and the seconds spent, 0 without one."""
    if not path.is_file():
        return 0, 0.0
    state = torch.load(path, map_location="cpu", weights_only=True)
    average.load(state["average"])
    model.load_state_dict(model.state_dict() | state["model"])
    optimizer.load(state["optimizer"])
    return int(state["step"]), float(state["spent_s"])
