"""Resumption of training, CTC loss, and unrecorded intents."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from tests.training.conftest import Nano
from training.nano.bank import Bank, BankWriter, UnrecordedError
from training.nano.batches import collate
from training.nano.domain import control
from training.nano.domain.catalogue import intents, words_of
from training.nano.listening import FILE, Plan, train
from training.nano.sessions import DuplexSession
from training.nano.voice.stage_clock import StageClock

CPU = torch.device("cpu")
STEPS = 3


@pytest.mark.learning
def test_resumed_training_equals_uninterrupted_training(nano: Nano, tmp_path: Path) -> None:
    def weights(folder: str, stop: int) -> dict[str, torch.Tensor]:
        plan = Plan(StageClock(STEPS), units=6, seed=3, stop_at=stop)
        train([nano.bank_folder], nano.encoder, tmp_path / folder, plan, CPU)
        return torch.load(tmp_path / folder / FILE, weights_only=True)

    whole = weights("whole", STEPS)
    stopped = weights("parted", 1)
    resumed = weights("parted", STEPS)

    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert any(not torch.equal(whole[name], stopped[name]) for name in whole)


@pytest.mark.learning
def test_ctc_loss_decreases(nano: Nano) -> None:
    tokenizer = nano.processor.tokenizer
    sessions = [DuplexSession(nano.bank, tokenizer, Random(seed), 12) for seed in range(4)]
    batch = collate([each.compose() for each in sessions], tokenizer.special.unk)
    transcript = tokenizer.decode(batch.transcript[: batch.transcript_sizes[0]].tolist()).split()
    known = {word for each in nano.bank.recordings for word in words_of(each.text)}
    assert transcript
    assert set(transcript) <= known

    nano_model = nano.fresh_model()
    optimizer = torch.optim.Adam(nano_model.audio_projection_layer.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        loss = nano_model.transcription_loss(batch, nano_model(batch).hidden)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[2] < losses[1] < losses[0]


def test_unrecorded_intents_are_named_in_the_error(tmp_path: Path) -> None:
    hello = next(iter(intents().values()))
    writer = BankWriter(tmp_path)
    writer.add(hello.questions[0], "noise", np.ones(8_000, np.float32))
    writer.close()
    BankWriter(tmp_path / "in no time").close()
    bank = Bank([tmp_path, tmp_path / "in no time"])
    assert bank.draw(Random(0), hello.name) == 0
    with pytest.raises(UnrecordedError, match=f"{control.STOP}.*record --minutes"):
        bank.draw(Random(0), control.STOP)
