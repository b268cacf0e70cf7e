"""Projections that a library user replaces, parametrises or gives an adapter.

Most are multiplied without being called; docs/transformers.md says what that means for them.
"""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.kv_cache import Rows
from MiniCPMO45.engine.steps import LlmForward
from MiniCPMO45.kernels.products import Linear
from MiniCPMO45.model.transformer import DecoderLayer
from MiniCPMO45.model.vision import SiglipMLP
from tests.fakes.toy_checkpoint import TOY
from tests.model.toy import Toy
from training.nano.model import PaddedBatch

PROJECTIONS = "self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"
COUNT = 12


class Adapted(nn.Module):
    """A layer with an adapter, as PEFT's: its `weight` is that of the layer inside."""

    def __init__(self, base_layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.lora_A = nn.Linear(base_layer.in_features, 2, bias=False)

    @property
    def weight(self) -> Tensor:
        return self.base_layer.weight

    @property
    def bias(self) -> Tensor:
        return self.base_layer.bias


class LowRank(nn.Module):
    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(1, inputs))
        self.b = nn.Parameter(torch.zeros(outputs, 1))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.b @ self.a


@pytest.fixture
def layer(toy: Toy) -> DecoderLayer:
    layer = toy.model.llm.model.layers[0]
    assert isinstance(layer, DecoderLayer)
    return deepcopy(layer)


def run(layer: DecoderLayer, toy: Toy) -> Tensor:
    batch = PaddedBatch.build(1, COUNT, toy.config, torch.device("cpu"))
    rows = torch.randn(COUNT, toy.config.hidden_size, generator=torch.Generator().manual_seed(1))
    return layer(rows, batch, 0)


def projection(layer: DecoderLayer, name: str) -> Linear:
    found = layer.get_submodule(name)
    assert isinstance(found, Linear)
    return found


@pytest.mark.parametrize("name", PROJECTIONS)
def test_a_replaced_projection_takes_part(toy: Toy, layer: DecoderLayer, name: str) -> None:
    expected, own = run(layer, toy), projection(layer, name)
    plain = nn.Linear(own.in_features, own.out_features, bias=False)
    plain.load_state_dict(own.state_dict())
    layer.set_submodule(name, plain)
    assert torch.equal(run(layer, toy), expected)


def test_a_model_with_a_replaced_projection_has_weights_that_can_be_saved(toy: Toy) -> None:
    model, name = deepcopy(toy.model), "llm.model.layers.0.mlp.down_proj"
    own = model.get_submodule(name)
    assert isinstance(own, Linear)
    model.set_submodule(name, nn.Linear(own.in_features, own.out_features, bias=False))
    assert model.weights is toy.model.weights


@pytest.mark.parametrize("name", PROJECTIONS)
def test_an_adapter_that_would_have_no_effect_is_refused(
    toy: Toy, layer: DecoderLayer, name: str
) -> None:
    layer.set_submodule(name, Adapted(projection(layer, name)))
    with pytest.raises(TypeError, match="Adapted with base_layer, lora_A is not called"):
        run(layer, toy)


def test_an_adapter_of_the_vision_encoder_is_refused() -> None:
    mlp = SiglipMLP(TOY.vision_config)
    mlp.set_submodule("fc1", Adapted(mlp.fc1))
    with pytest.raises(TypeError, match="lora_A"):
        mlp(torch.zeros(1, 1, TOY.vision_config.hidden_size))


def test_a_replaced_output_head_takes_part_in_passes_made_before(toy: Toy) -> None:
    model = deepcopy(toy.model)
    executor, head = Executor(model), model.llm.lm_head

    def scores() -> Tensor:
        request = LlmForward(executor.llm_store.open(), Rows((1, 2)))
        [answer] = executor.submit([request])()
        request.kv.close()
        return answer.logits

    before = scores()
    model.set_output_embeddings(nn.Linear(head.in_features, head.out_features, bias=False))
    model.get_output_embeddings().load_state_dict({"weight": head.weight * 2})
    assert torch.allclose(scores(), before * 2)


@pytest.mark.parametrize("name", PROJECTIONS)
def test_a_parametrised_weight_is_trained(toy: Toy, layer: DecoderLayer, name: str) -> None:
    own = projection(layer, name)
    update = LowRank(*own.weight.shape)
    register_parametrization(own, "weight", update)
    run(layer, toy).square().sum().backward()
    assert update.b.grad is not None and update.b.grad.any()
