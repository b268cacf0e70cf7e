"""Recordings of the target voice: made in parallel, stored in one file, loaded as tensors.

The utterances are concatenated; the range of its codes locates one of them in every array. The
model's fixed voice is two seconds of a recording.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from core.files import replacing
from MiniCPMO45.configuration_minicpmo import TIMING
from MiniCPMO45.token2wav.config import UPSAMPLING
from MiniCPMO45.token2wav.vocoder_state import VoicePrompt
from MiniCPMO45.token2wav.voices import SPEAKER_SIZE, voice_log_mel
from training.nano.bank import INT16_PEAK
from training.nano.voice.alphabet import SILENCE
from training.nano.voice.pronunciation import (
    LEAD_CODES,
    Pronouncer,
    UnspeakableTextError,
    Utterance,
)

SAMPLES_PER_CODE = TIMING.samples_per_code
TEXTS_PER_JOB = 200


@dataclass(frozen=True, eq=False)
class Recordings:
    """Concatenated utterances."""

    texts: tuple[str, ...]
    word_codes: tuple[tuple[int, ...], ...]  # first code of each word, counted after the lead
    starts: Tensor  # first code of each utterance, with its end in the next entry, int64 [U + 1]
    codes: Tensor
    wave: Tensor  # int16 [C * 960] at 24 kHz
    f0_hz: Tensor  # float32 [C * 2], 0 where unvoiced
    mel: Tensor  # log mel, float16 [C * 2, 80]

    def __len__(self) -> int:
        return len(self.texts)

    def codes_of(self, index: int) -> Tensor:
        return self.codes[int(self.starts[index]) : int(self.starts[index + 1])]

    @classmethod
    def load(cls, path: Path, device: torch.device) -> Recordings:
        with np.load(path) as file:
            arrays = {name: torch.from_numpy(file[name]) for name in ("starts", "codes", "wave")}
            f0_hz = torch.from_numpy(file["f0_hz"]).float()
            described = json.loads(str(file["described"]))
        wave = arrays["wave"].to(device)
        edges = (arrays["starts"] * SAMPLES_PER_CODE).tolist()
        mels = [
            voice_log_mel(wave[start:stop].float() / INT16_PEAK).T.half()
            for start, stop in zip(edges[:-1], edges[1:], strict=True)
        ]
        return cls(
            tuple(described["texts"]),
            tuple(tuple(words) for words in described["word_codes"]),
            arrays["starts"],
            arrays["codes"].long().to(device),
            wave,
            f0_hz.to(device),
            torch.cat(mels),
        )


def record(texts: Sequence[str], path: Path) -> None:
    """Speak texts with the target voice on all cores and write one `.npz` file.

    Texts that cannot be spoken word by word are skipped.
    """
    jobs = [texts[at : at + TEXTS_PER_JOB] for at in range(0, len(texts), TEXTS_PER_JOB)]
    with ProcessPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        done = pool.map(_speak_all, jobs, range(len(jobs)))
        spoken = [each for some in tqdm(done, "voice", len(jobs)) for each in some]
    write(spoken, path)


def write(spoken: Sequence[Utterance], path: Path) -> None:
    """Write utterances as one file, atomically."""
    counts = [len(each.codes) for each in spoken]
    wave = np.concatenate([each.wave for each in spoken])
    described = {
        "texts": [each.text for each in spoken],
        "word_codes": [each.word_codes for each in spoken],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as unfinished, unfinished.open("wb") as file:
        np.savez(
            file,
            starts=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
            codes=np.concatenate([np.array(each.codes, np.int16) for each in spoken]),
            wave=(wave.clip(-1.0, 1.0) * INT16_PEAK).round().astype(np.int16),
            f0_hz=np.concatenate([each.f0_hz for each in spoken]).astype(np.float16),
            described=json.dumps(described),
        )


def _speak_all(texts: Sequence[str], seed: int) -> list[Utterance]:
    pronouncer = Pronouncer(seed)
    spoken = []
    for text in texts:
        try:
            spoken.append(pronouncer.speak(text))
        except UnspeakableTextError:
            continue
    return spoken


PROMPT_CODES = 50  # of the fixed voice, like the history in the caches
PROMPT_TEXT = "I am glad that you are here, and I like to talk with you."


def fixed_voice(recordings: Recordings) -> VoicePrompt:
    """Return the voice prompt: the first codes of `PROMPT_TEXT` after the lead."""
    index = recordings.texts.index(PROMPT_TEXT)
    first = int(recordings.starts[index]) + LEAD_CODES
    stop = first + PROMPT_CODES
    frames = slice(first * UPSAMPLING, stop * UPSAMPLING)
    codes = recordings.codes[first:stop]
    assert stop <= int(recordings.starts[index + 1]) and bool((codes != SILENCE).any())
    # With one speaker, any speaker embedding will do.
    speaker = torch.ones(1, SPEAKER_SIZE, device=codes.device)
    return VoicePrompt(codes[None], speaker, recordings.mel[frames].float()[None])
