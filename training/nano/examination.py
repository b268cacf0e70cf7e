"""Evaluation on held-out voices: exactness of replies, and decisions of units.

Teacher-forced: every decision is predicted from the right history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch

from MiniCPMO45.processing.processor import MiniCPMOProcessor
from training.nano.bank import Bank
from training.nano.batches import Batch, collate
from training.nano.hearing import ROWS_PER_UNIT
from training.nano.listening import to_device
from training.nano.model import NanoModel
from training.nano.sessions import DuplexSession, Example
from training.nano.turns import TurnsSession

SESSIONS_PER_BATCH = 16
UNITS = 16
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
            DuplexSession(bank, processor.tokenizer, random, UNITS).compose()
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

    def _count_replies(self, batch: Batch, guessed: torch.Tensor, row: int) -> None:
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
