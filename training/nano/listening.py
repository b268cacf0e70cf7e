"""Stage "listen": trains projection and language model on conversations, and evaluates them.

Evaluation is teacher-forced: every decision is predicted from the right history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from core.files import replacing
from MiniCPMO45.processing.processor import MiniCPMOProcessor
from training.nano import shapes
from training.nano.augment import Augmenter
from training.nano.bank import Bank
from training.nano.batches import PRACTICE_SHARE, UNITS, Batch, Conversations, collate, loader
from training.nano.hearing import ROWS_PER_UNIT
from training.nano.model import NanoModel
from training.nano.optimizing import Optimizer, Recipe, fast
from training.nano.ranks import ALONE, Ranks
from training.nano.sessions import DuplexSession, Example
from training.nano.turns import TurnsSession
from training.nano.voice.stage_clock import Average, StageClock, Tick, save

FILE = "listening.pt"
STATE_FILE = "listening.state"
SIDE_FOLDER = "tokenizer"
PEAK_RATE = 1.5e-3
RECIPE = Recipe(inside=("llm.model.layers.",), weight_decay=0.05, undecayed=("embed",))
REPORT_EVERY_STEPS = 100
TRANSCRIPTION_WEIGHT = 0.3  # of the CTC loss


@dataclass(frozen=True)
class Plan:
    clock: StageClock  # limits including earlier runs; those of this run do not change the schedule
    units: int = 1024
    processes: int = 0
    seed: int = 0
    peak_rate: float = PEAK_RATE
    longest: int = max(UNITS)
    practice: float = PRACTICE_SHARE  # share of the batches in which everything is typed
    stop_at: int | None = None  # step to stop at, like an interruption; None for none


def train(
    banks: Sequence[Path],
    encoder: Path,
    out: Path,
    plan: Plan,
    device: torch.device,
    ranks: Ranks = ALONE,
) -> NanoModel:
    """Train, or resume an earlier run of the plan, and return the averaged weights.

    The first rank writes `FILE` (averaged, float16, for the export) and `STATE_FILE` (for an exact
    resumption) to `out`. A `FILE` without a state initialises a new run.
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
    ranks.now_s()  # a barrier: the first rank has written the files that all read
    conversations = Conversations(
        banks, side, plan.units, plan.seed, first, plan.longest, plan.practice, ranks
    )
    batches = iter(loader(conversations, plan.processes))
    generator = torch.Generator(device=device)
    ticks = plan.clock.ticks(
        "listen",
        first=first,
        spent_s=spent_s,
        stop=plan.stop_at,
        clock=ranks.now_s,
        is_shown=ranks.is_first,
    )
    for tick in ticks:
        batch = to_device(next(batches), device)
        seed = (plan.seed * plan.clock.max_steps + tick.step) * ranks.count + ranks.number
        generator.manual_seed(seed)
        torch.manual_seed(seed)
        with fast(device):
            predicted = model(batch, Augmenter(generator))
            ctc = model.transcription_loss(batch, predicted.hidden)
        optimizer.step(predicted.loss + TRANSCRIPTION_WEIGHT * ctc, tick)
        average.update(tick.step)
        if ranks.is_first and (tick.step % REPORT_EVERY_STEPS == 0 or tick.is_save_due):
            figures = f"loss {predicted.loss.item():.3f} right {predicted.accuracy.item():.3f}"
            print(f"listen {tick.step} {figures} words {ctc.item():.3f}", flush=True)
        if ranks.is_first and tick.is_save_due:
            _save(out, model, optimizer, average, tick)
    model.load_state_dict({n: t.to(device) for n, t in average.state_dict().items()})
    return model.eval()


def resume_trained(model: NanoModel, path: Path) -> bool:
    """Load weights saved without the encoder; return False if there are none."""
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
    """Return the trained model, or a random one for a rehearsal; the encoder is optional."""
    model = NanoModel(shapes.config())
    if encoder is not None:
        model.load_encoder(encoder)
    if not resume_trained(model, folder / FILE):
        print(f"{folder / FILE} is missing: the language model is random", flush=True)
    return model.eval()


def _save(out: Path, model: NanoModel, optimizer: Optimizer, average: Average, tick: Tick) -> None:
    averaged = {n: t for n, t in average.state_dict().items() if not n.startswith("apm.")}
    save(averaged, out / FILE)
    state = {
        "step": tick.step + 1,
        "spent_s": tick.elapsed_s,
        "model": model.trained_state(),
        "optimizer": optimizer.state(),
        "average": averaged,
    }
    with replacing(out / STATE_FILE) as unfinished:
        torch.save(state, unfinished)


def _restore(
    path: Path, model: NanoModel, optimizer: Optimizer, average: Average
) -> tuple[int, float]:
    """Restore a saved state, if any; return the next step and the training time in seconds."""
    if not path.is_file():
        return 0, 0.0
    state = torch.load(path, map_location="cpu", weights_only=True)
    average.load(state["average"])
    model.load_state_dict(model.state_dict() | state["model"])
    optimizer.load(state["optimizer"])
    return int(state["step"]), float(state["spent_s"])


SESSIONS_PER_BATCH = 16
EXAMINED_UNITS = 16
MOST_WRONG_SHOWN = 12
WEAKEST_SHOWN = 20


def examine(
    model: NanoModel,
    banks: Sequence[Path],
    checkpoint: Path,
    *,
    batches: int,
    seed: int,
    device: torch.device,
) -> dict[str, float]:
    """Evaluate decisions and replies on held-out recordings.

    A batch has 16 duplex conversations of 16 units, and as many turn-based ones. Wrong replies and
    the weakest intents are printed.

    Returns:
        Accuracies, 0 to 1, by name.
    """
    bank, processor = Bank(banks), MiniCPMOProcessor.from_pretrained(checkpoint)
    random, tally = Random(seed), Tally(processor)
    for _ in range(batches):
        duplex = [
            DuplexSession(bank, processor.tokenizer, random, EXAMINED_UNITS).compose()
            for _ in range(SESSIONS_PER_BATCH)
        ]
        turns = [TurnsSession(bank, processor, random).compose() for _ in range(SESSIONS_PER_BATCH)]
        tally.add(model, duplex, device)
        for is_blocked in (False, True):
            chosen = [each for each in turns if each.has_blocked_clips == is_blocked]
            if chosen:
                tally.add(model, chosen, device)
    print(f"  weakest: {tally.weakest()}", flush=True)
    return tally.shares()


class Tally:
    def __init__(self, processor: MiniCPMOProcessor) -> None:
        self._tokens = processor.tokenizer.special
        self._tokenizer = processor.tokenizer
        self._counts: Counter[str] = Counter()
        self._asked: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._wrong = 0

    @torch.no_grad()
    def add(self, model: NanoModel, examples: Sequence[Example], device: torch.device) -> None:
        batch = to_device(collate(examples, self._tokens.unk), device)
        logits = model.llm.lm_head(model(batch).hidden)
        guessed = torch.zeros_like(batch.ids)
        guessed[:, 1:] = logits[:, :-1].argmax(-1)
        for row, example in enumerate(examples):
            self._count_replies(batch, guessed, row)
            self._count_decisions(example, guessed[row].tolist())

    def shares(self) -> dict[str, float]:
        counts = self._counts
        return {
            f"{name} ({counts[f'{name}/all']})": counts[f"{name}/right"] / counts[f"{name}/all"]
            for name in dict.fromkeys(key.partition("/")[0] for key in counts)
        }

    def weakest(self) -> str:
        """Return the intents with the most wrong replies, as wrong/all."""
        worst = self._failed.most_common(WEAKEST_SHOWN)
        return ", ".join(f"{name} {wrong}/{self._asked[name]}" for name, wrong in worst)

    def _book(self, name: str, is_right: bool) -> None:
        self._counts[f"{name}/all"] += 1
        self._counts[f"{name}/right"] += is_right

    def _count_replies(self, batch: Batch, guessed: Tensor, row: int) -> None:
        kind = "duplex" if batch.stream.shape[1] else "turns"
        for reply in batch.replies[row]:
            spans = [span for span in reply.units if span[1] > span[0]]
            is_right = all(bool((guessed[row, a:b] == batch.ids[row, a:b]).all()) for a, b in spans)
            self._book(f"{kind} exact reply", is_right)
            self._asked[reply.intent] += 1
            self._failed[reply.intent] += not is_right
            if not is_right and self._wrong < MOST_WRONG_SHOWN:
                self._wrong += 1
                ids = [int(token) for a, b in spans for token in guessed[row, a:b]]
                print(f"  wrong: {reply.text!r} -> {self._tokenizer.decode(ids)!r}", flush=True)

    def _count_decisions(self, example: Example, guessed: list[int]) -> None:
        tokens, layout = self._tokens, example.layout
        decisions = {tokens.listen: "listens", tokens.turn_eos: "gives way"}
        for start in layout.units:
            at = start + ROWS_PER_UNIT
            if layout.weights[at] == 0:
                continue
            wanted = layout.ids[at]
            self._book(decisions.get(wanted, "speaks"), guessed[at] == wanted)
