"""Each `model.weights` on the CPU: storage, accuracy, and a conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.weights import PROMPT_TOKENS, Fed, bytes_by_part, compare
from core.engine.passes import run_alone
from core.processors import UnifiedProcessor
from core.processors.backend import model_facts
from core.schemas.chat import ChatRequest
from core.schemas.common import GenerationConfig
from launcher.plan import SAVED_GIB
from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.kv_cache import KvStore
from MiniCPMO45.kernels.attention import PAGE_TOKENS
from MiniCPMO45.kernels.quantised import Scheme
from MiniCPMO45.loading.checkpoint import CheckpointError
from MiniCPMO45.loading.quantisation import reserve_quantised, scheme_of
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.settings import LoadOptions, Weights
from tests.fakes.batching import run_together
from tests.model.talks import facts_of, greedy_talks
from tests.model.toy import Toy, build_toy
from tests.model.views import user

QUANTISED = (Weights.FP8, Weights.INT4)
each_quantised = pytest.mark.parametrize("weights", QUANTISED)
MOST_ERROR = {Weights.FP8: 0.15, Weights.INT4: 0.5}  # of a toy's logits, whose weights are random
SMALL = MiniCPMOConfig(
    num_hidden_layers=2,
    hidden_size=256,
    intermediate_size=512,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    vocab_size=997,
    max_position_embeddings=1024,
)


def load(folder: Path, weights: Weights) -> MiniCPMOForConditionalGeneration:
    options = LoadOptions(weights=weights, show_progress=False)
    return MiniCPMOForConditionalGeneration.from_folder(folder, options)


@pytest.mark.parametrize(
    ("layer", "fp8", "int4"),
    [
        ("llm.model.layers.3.mlp.up_proj", Scheme.FP8, Scheme.INT4),
        ("llm.lm_head", Scheme.INT8, Scheme.INT8),
        ("llm.model.embed_tokens", None, Scheme.INT8),
        ("tts.model.layers.0.self_attn.q_proj", None, None),
        ("vpm.encoder.layers.0.mlp.fc1", None, None),
    ],
)
def test_what_is_quantised(layer: str, fp8: Scheme | None, int4: Scheme | None) -> None:
    found = [scheme_of(layer, weights) for weights in Weights]
    assert found == [None, fp8, int4]


@each_quantised
def test_a_loaded_model_has_the_counted_bytes_and_all_its_parameters(
    checkpoint: Path, weights: Weights
) -> None:
    dense, model = load(checkpoint, Weights.BF16), load(checkpoint, weights)
    assert model.weights is weights
    assert model.num_parameters() == dense.num_parameters()
    with torch.device("meta"):
        empty = MiniCPMOForConditionalGeneration(model.config)
    reserve_quantised(empty, weights, torch.float32, torch.device("meta"))
    counted = {name: tensor.nbytes for name, tensor in empty.state_dict().items()}
    assert {name: tensor.nbytes for name, tensor in model.state_dict().items()} == counted
    untouched = {n: t for n, t in dense.state_dict().items() if not n.startswith("llm.")}
    found = model.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in untouched.items())
    assert sum(counted.values()) < sum(each.nbytes for each in dense.state_dict().values())


@each_quantised
def test_a_quantised_model_cannot_be_saved(
    checkpoint: Path, tmp_path: Path, weights: Weights
) -> None:
    with pytest.raises(CheckpointError, match="cannot be saved.*weights bf16"):
        load(checkpoint, weights).save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize(
    ("weights", "found", "told"),
    [
        (Weights.FP8, (8, 6), "fp8, which needs .* 8.9; .* has 8.6. .* int4 or bf16"),
        (Weights.FP8, (7, 5), "8.9; .* has 7.5. Choose bf16"),
        (Weights.INT4, (7, 5), "int4, which needs .* 8.0; .* has 7.5. Choose bf16"),
    ],
)
def test_a_card_that_cannot_compute_with_a_setting_is_refused(
    monkeypatch: pytest.MonkeyPatch, weights: Weights, found: tuple[int, int], told: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: found)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Card")
    with pytest.raises(CheckpointError, match=told):
        reserve_quantised(torch.nn.Module(), weights, torch.bfloat16, torch.device("cuda"))


def test_the_error_is_bounded_and_sure_decisions_stay() -> None:
    for weights, found in compare(Fed(SMALL, torch.device("cpu"), tokens=40)):
        assert found.error < MOST_ERROR.get(weights, 0.02), weights
        assert found.same_sure == found.sure, weights


def test_the_cache_is_contiguous_as_a_cards_kernels_require(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stores: list[KvStore] = []

    def recorded(*args: Any, **options: Any) -> KvStore:
        stores.append(KvStore(*args, **options))
        return stores[-1]

    monkeypatch.setattr("benchmarks.weights.KvStore", recorded)
    fed = Fed(SMALL, torch.device("cpu"), tokens=PAGE_TOKENS)
    fed.logits(fed.model(Weights.BF16).float())
    [store] = stores
    assert store.pool.is_contiguous()
    assert store.pool.shape[1] * PAGE_TOKENS == PROMPT_TOKENS + PAGE_TOKENS


def test_the_launcher_knows_what_each_setting_saves() -> None:
    sizes = [sum(bytes_by_part(MiniCPMOConfig(), weights).values()) for weights in Weights]
    saved = [(sizes[0] - size) / 2**30 for size in sizes]
    assert list(SAVED_GIB) == list(Weights)
    assert list(SAVED_GIB.values()) == pytest.approx(saved, abs=0.1)


@pytest.fixture(params=QUANTISED, scope="module")
def toy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return build_toy(tmp_path_factory.mktemp("quantised"), weights=request.param)


def test_batched_equals_alone(toy: Toy) -> None:
    options = LoadOptions(slots=4, most_rows=32)
    one, other = (Executor(toy.model, toy.vocoder, options=options) for _ in range(2))
    alone, together = greedy_talks(toy, one), greedy_talks(toy, other)
    for talk in alone:
        run_alone(talk.whole(), one)
    run_together([talk.whole() for talk in together], other)
    assert facts_of(alone) == facts_of(together)


def test_the_processor_converses_with_the_setting(checkpoint: Path) -> None:
    processor = UnifiedProcessor(
        checkpoint, device="cpu", weights="int4", seed=3, show_progress=False
    )
    assert model_facts(processor.model, checkpoint).dtype == "int4"
    request = ChatRequest(messages=[user("hello")], generation=GenerationConfig(max_new_tokens=4))
    assert processor.chat.chat(request).success
