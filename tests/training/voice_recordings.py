"""Synthetic recordings: random codes and a hum."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from MiniCPMO45.configuration_minicpmo import TIMING
from training.nano.voice.alphabet import CODES_USED, SILENCE
from training.nano.voice.pronunciation import LEAD_CODES, Utterance
from training.nano.voice.recordings import PROMPT_TEXT, Recordings, write

FILE_NAME = "voice.npz"
TEXTS = (PROMPT_TEXT, "The sky is blue.", "One, two, three, four.")
CODES_PER_WORD = 8


def hum(text: str, seed: int) -> Utterance:
    """Return a hum as long as the text, with a random code every 40 ms."""
    random = np.random.default_rng(seed)
    n_words = len(text.split())
    n_codes = LEAD_CODES + n_words * CODES_PER_WORD
    codes = random.choice(np.array(CODES_USED[:-1]), n_codes)
    codes[:LEAD_CODES] = SILENCE
    time_s = np.arange(n_codes * TIMING.samples_per_code) / TIMING.sample_rate_hz
    wave = (0.2 * np.sin(2 * np.pi * 200 * time_s)).astype(np.float32)
    f0_hz = np.full(n_codes * TIMING.mel_frames_per_code, 200, np.float32)
    starts = tuple(CODES_PER_WORD * word for word in range(n_words))
    return Utterance(text, wave, tuple(codes.tolist()), f0_hz, starts)


def recordings(folder: Path) -> Recordings:
    path = folder / FILE_NAME
    write([hum(text, seed) for seed, text in enumerate(TEXTS)], path)
    return Recordings.load(path, torch.device("cpu"))
