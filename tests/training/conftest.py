"""Fixtures: an untrained nano and a bank of noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from MiniCPMO45.processing.processor import MiniCPMOProcessor
from training.nano import shapes
from training.nano.bank import OWN_VOICE, Bank, BankWriter
from training.nano.domain.catalogue import intents
from training.nano.domain.kinds import Question
from training.nano.model import NanoModel

torch.set_num_threads(1)


@dataclass(frozen=True)
class Nano:
    """Smallest inputs of training."""

    checkpoint: Path
    bank_folder: Path
    encoder: Path
    processor: MiniCPMOProcessor
    bank: Bank

    def fresh_model(self) -> NanoModel:
        """Return a model with random weights of a fixed seed."""
        torch.manual_seed(1)
        nano_model = NanoModel(shapes.config())
        nano_model.load_encoder(self.encoder)
        return nano_model


@pytest.fixture(scope="session")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nano]:
    """Tokenizer files, an encoder with random weights and one recording per intent."""
    folder = tmp_path_factory.mktemp("nano")
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    shapes.write_side_files(checkpoint)
    writer, noise, random = BankWriter(folder / "bank"), np.random.default_rng(0), Random(0)
    for intent in intents().values():
        sound = noise.standard_normal(random.randrange(8_000, 24_000)).astype(np.float32)
        question = random.choice(intent.questions)
        writer.add(question, "noise", 0.05 * sound, cut=4_000)
    for text in ("Good morning!", "You are welcome."):
        sound = noise.standard_normal(30_000).astype(np.float32)
        writer.add(Question(text, OWN_VOICE), OWN_VOICE, 0.05 * sound)
    writer.close()
    torch.manual_seed(0)
    encoder = folder / "encoder.pt"
    torch.save(NanoModel(shapes.config()).apm.state_dict(), encoder)
    processor = MiniCPMOProcessor.from_pretrained(checkpoint)
    yield Nano(checkpoint, folder / "bank", encoder, processor, Bank([folder / "bank"]))
