"""What each `model.weights` takes and loses: `python -m benchmarks.weights [--device cuda]`.

Bytes are counted from the shapes. On a card the language model at full width, with random weights,
is fed the same tokens with each setting and compared with itself in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

from benchmarks.random_weights import random_weights
from benchmarks.summary import format_table
from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.engine.kv_cache import KvStore, PassLimits
from MiniCPMO45.engine.steps import LlmForward, LlmOutput, TokenIds
from MiniCPMO45.engine.text_runner import TextRunner
from MiniCPMO45.kernels.products import Rope
from MiniCPMO45.loading.checkpoint import reserve_quantised
from MiniCPMO45.model.transformer import CausalLM
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.settings import Weights
from MiniCPMO45.token2wav.config import Token2WavConfig
from MiniCPMO45.token2wav.flow import Flow
from MiniCPMO45.token2wav.hift import HiFT

META = torch.device("meta")
GB = 1e9
PROMPT_TOKENS = 64
CLEAR_STEPS = 2  # of bfloat16: each path rounds both of the best logits by up to half a step
CLEAR_ERRORS = 4  # of a setting: the difference of two logits is off by half of it, most times
CACHE_PAGES = 64


def bytes_by_part(config: MiniCPMOConfig, weights: Weights) -> dict[str, int]:
    """Return what each part of the loaded model takes, counted from its shapes.

    Args:
        config: of the model.
        weights: the setting; everything else is bfloat16, the vocoder float32.
    """
    with META:
        model = MiniCPMOForConditionalGeneration(config)
        sizes = Token2WavConfig()
        vocoder = nn.ModuleList((Flow(sizes.flow), HiFT(sizes.hift)))
    reserve_quantised(model, weights, torch.bfloat16, META)
    model.drop_unused()
    decoder = model.llm.model
    parts = {
        "layers": (decoder.layers, decoder.norm),
        "embedding table": (decoder.embed_tokens,),
        "output head": (model.llm.lm_head,),
        "vision": (model.vpm, model.resampler),
        "hearing": (model.apm, model.audio_projection_layer),
        "speech decoder": (model.tts,),
    }
    counted = {
        name: sum(stored_bytes(module, torch.bfloat16.itemsize) for module in modules)
        for name, modules in parts.items()
    }
    return counted | {"vocoder": stored_bytes(vocoder, torch.float32.itemsize)}


def stored_bytes(module: nn.Module, item_bytes: int) -> int:
    """Return the memory of a module whose parameters have so many bytes each."""
    dense = sum(weight.numel() for weight in module.parameters()) * item_bytes
    return dense + sum(buffer.nbytes for buffer in module.buffers())


@dataclass(frozen=True)
class Agreement:
    """How far a setting is from the same weights in float32.

    Attributes:
        error: of the logits, relative.
        decisions: how many there are: the likeliest token each.
        same: those that are the same.
        clear: decisions that float32 makes by more than the two steps of bfloat16.
        same_clear: those of them that are the same.
        sure: decisions that float32 makes by more than four times the setting's own error.
        same_sure: those of them that are the same.
    """

    error: float
    decisions: int
    same: int
    clear: int
    same_clear: int
    sure: int
    same_sure: int

    @classmethod
    def of(cls, logits: Tensor, true: Tensor) -> Agreement:
        """Compare logits [n, vocabulary] with those of float32."""
        difference = logits - true
        error = difference.square().mean().sqrt()
        best, second = true.topk(2).values.unbind(1)
        is_same = logits.argmax(1) == true.argmax(1)
        is_clear, is_sure = clear_by_bfloat16(true), best - second > CLEAR_ERRORS * error
        return cls(
            error=float(difference.norm() / true.norm()),
            decisions=len(true),
            same=int(is_same.sum()),
            clear=int(is_clear.sum()),
            same_clear=int((is_clear & is_same).sum()),
            sure=int(is_sure.sum()),
            same_sure=int((is_sure & is_same).sum()),
        )


def clear_by_bfloat16(logits: Tensor) -> Tensor:
    """Return which decisions rounding the logits to bfloat16 cannot turn, nor make a tie."""
    best, second = logits.topk(2).values.unbind(1)
    step = torch.finfo(torch.bfloat16).eps * torch.exp2(best.log2().floor())
    return best - second > CLEAR_STEPS * step


class Fed:
    """Feeds one language model the same tokens, one by one.

    Args:
        config: of the model.
        device: where.
        tokens: how many decisions are compared.
    """

    def __init__(self, config: MiniCPMOConfig, device: torch.device, tokens: int) -> None:
        self._config, self._device = config, device
        generator = torch.Generator().manual_seed(0)
        count = PROMPT_TOKENS + tokens
        self._ids = torch.randint(0, config.vocab_size, (count,), generator=generator).tolist()

    def model(self, weights: Weights) -> CausalLM:
        """Return the language model with the same random weights, kept as the setting says."""
        with META:
            whole = nn.ModuleDict({"llm": CausalLM(self._config.decoder, self._config.vocab_size)})
        random_weights(whole, device=self._device, weights=weights, seed=0)
        llm = whole["llm"]
        assert isinstance(llm, CausalLM)
        return llm

    @torch.inference_mode()
    def logits(self, llm: CausalLM) -> Tensor:
        """Return the logits after each token behind the prompt, float32 [tokens, vocabulary]."""
        shape, dtype = self._config.decoder, llm.model.norm.weight.dtype
        rope = Rope.build(shape.head_dim, shape.rope_theta, device=self._device)
        store = KvStore(
            shape, rope, device=self._device, dtype=dtype, pages=CACHE_PAGES, can_grow=True
        )
        llm.model.fuse()
        runner, kv = (
            TextRunner(llm, store, PassLimits(1, PROMPT_TOKENS, is_exact=True)),
            store.open(),
        )
        rows = []
        for ids in (self._ids[:PROMPT_TOKENS], *([each] for each in self._ids[PROMPT_TOKENS:])):
            [output] = runner.feed([LlmForward(kv, (TokenIds(tuple(ids)),))])
            assert isinstance(output, LlmOutput) and output.logits is not None
            rows.append(output.logits.float())
        return torch.stack(rows[1:])


def compare(fed: Fed) -> Iterator[tuple[Weights, Agreement]]:
    """Compare each setting with float32."""
    true = fed.logits(fed.model(Weights.BF16).float())
    for weights in Weights:
        yield weights, Agreement.of(fed.logits(fed.model(weights)), true)


def main(
    device: Annotated[str | None, typer.Option(help="Compare there: cuda, cuda:1.")] = None,
    layers: Annotated[int, typer.Option(min=1, help="Of the language model compared.")] = 36,
    tokens: Annotated[int, typer.Option(min=1, help="Decisions compared.")] = 500,
) -> None:
    """Print what each setting takes, and with --device what it loses."""
    counted = {weights: bytes_by_part(MiniCPMOConfig(), weights) for weights in Weights}
    rows = [
        [part, *(f"{counted[weights][part] / GB:.2f}" for weights in Weights)]
        for part in counted[Weights.BF16]
    ]
    totals = [f"{sum(parts.values()) / GB:.2f}" for parts in counted.values()]
    print(format_table(["GB", *(weights.value for weights in Weights)], [*rows, ["all", *totals]]))
    if device is None:
        return
    config = MiniCPMOConfig(num_hidden_layers=layers)
    found = compare(Fed(config, torch.device(device), tokens))
    table = [
        [
            weights.value,
            f"{each.error:.4f}",
            f"{each.same} of {each.decisions}",
            f"{each.same_clear} of {each.clear}",
            f"{each.same_sure} of {each.sure}",
        ]
        for weights, each in found
    ]
    print("\n" + format_table(["weights", "error", "same", "clear", "sure"], table))


if __name__ == "__main__":
    typer.run(main)
