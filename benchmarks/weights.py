"""Memory and accuracy of each `model.weights`: `python -m benchmarks.weights [--device cuda]`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

from benchmarks.rig import random_llm
from benchmarks.summary import BYTES_PER_GB, format_table
from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.engine.kv_cache import KvStore, PassLimits, Rows
from MiniCPMO45.engine.steps import LlmForward, LlmOutput
from MiniCPMO45.engine.text_runner import TextRunner
from MiniCPMO45.kernels.attention import PAGE_TOKENS
from MiniCPMO45.loading.quantisation import reserve_quantised
from MiniCPMO45.model.transformer import CausalLM
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.settings import Weights
from MiniCPMO45.token2wav.config import Token2WavConfig
from MiniCPMO45.token2wav.flow import Flow
from MiniCPMO45.token2wav.hift import HiFT

META = torch.device("meta")
PROMPT_TOKENS = 64
CLEAR_STEPS = 2  # of bfloat16: each path rounds both of the best logits by up to half a step
CLEAR_ERRORS = 4  # of a setting: the difference of two logits is off by half of it, most times


def bytes_by_part(config: MiniCPMOConfig, weights: Weights) -> dict[str, int]:
    """Return the bytes of each part with a setting; other parts are bfloat16 or float32."""
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
    dense = sum(weight.numel() for weight in module.parameters()) * item_bytes
    return dense + sum(buffer.nbytes for buffer in module.buffers())


@dataclass(frozen=True)
class Agreement:
    """Agreement of a setting with the same weights in float32."""

    error: float  # relative error of the logits
    decisions: int  # number of top-1 decisions
    same: int  # identical decisions
    clear: int  # decisions with a float32 margin of more than two bfloat16 steps
    same_clear: int  # identical ones among them
    sure: int  # decisions with a float32 margin of more than four times the setting's error
    same_sure: int  # identical ones among them

    @classmethod
    def of(cls, logits: Tensor, true: Tensor) -> Agreement:
        """Compare logits [n, vocabulary] with those in float32."""
        difference = logits - true
        error = difference.square().mean().sqrt()
        best, second = true.topk(2).values.unbind(1)
        is_same = logits.argmax(1) == true.argmax(1)
        step = torch.finfo(torch.bfloat16).eps * torch.exp2(best.log2().floor())
        is_clear, is_sure = best - second > CLEAR_STEPS * step, best - second > CLEAR_ERRORS * error
        return cls(
            error=float(difference.norm() / true.norm()),
            decisions=len(true),
            same=int(is_same.sum()),
            clear=int(is_clear.sum()),
            same_clear=int((is_clear & is_same).sum()),
            sure=int(is_sure.sum()),
            same_sure=int((is_sure & is_same).sum()),
        )


class Fed:
    """A language model that is fed the same tokens with each setting."""

    def __init__(self, config: MiniCPMOConfig, device: torch.device, tokens: int) -> None:
        self._config, self._device = config, device
        generator = torch.Generator().manual_seed(0)
        count = PROMPT_TOKENS + tokens
        self._ids = torch.randint(0, config.vocab_size, (count,), generator=generator).tolist()

    def model(self, weights: Weights) -> CausalLM:
        return random_llm(self._config, device=self._device, weights=weights)

    @torch.inference_mode()
    def logits(self, llm: CausalLM) -> Tensor:
        """Return the logits after each token following the prompt, float32 [tokens, vocabulary]."""
        shape, dtype = self._config, llm.model.norm.weight.dtype
        pages = -(-len(self._ids) // PAGE_TOKENS)
        store = KvStore(shape, device=self._device, dtype=dtype, pages=pages)
        llm.model.fuse()
        runner, kv = (
            TextRunner(llm, store, PassLimits(1, PROMPT_TOKENS, is_exact=True)),
            store.open(),
        )
        rows = []
        for ids in (self._ids[:PROMPT_TOKENS], *([each] for each in self._ids[PROMPT_TOKENS:])):
            [output] = runner.feed([LlmForward(kv, Rows(tuple(ids)))])()
            assert isinstance(output, LlmOutput) and output.logits is not None
            rows.append(output.logits.float())
        return torch.stack(rows[1:])


def compare(fed: Fed) -> Iterator[tuple[Weights, Agreement]]:
    true = fed.logits(fed.model(Weights.BF16).float())
    for weights in Weights:
        yield weights, Agreement.of(fed.logits(fed.model(weights)), true)


def main(
    device: Annotated[str | None, typer.Option(help="Compare there: cuda, cuda:1.")] = None,
    layers: Annotated[int, typer.Option(min=1, help="Of the language model compared.")] = 36,
    tokens: Annotated[int, typer.Option(min=1, help="Decisions compared.")] = 500,
) -> None:
    """Print the memory of each setting and, with --device, its accuracy."""
    counted = {weights: bytes_by_part(MiniCPMOConfig(), weights) for weights in Weights}
    rows = [
        [part, *(f"{counted[weights][part] / BYTES_PER_GB:.2f}" for weights in Weights)]
        for part in counted[Weights.BF16]
    ]
    totals = [f"{sum(parts.values()) / BYTES_PER_GB:.2f}" for parts in counted.values()]
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
