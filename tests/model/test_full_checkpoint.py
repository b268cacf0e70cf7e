"""The random checkpoint of published sizes: configuration, ids, files, and that it takes turns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.full_checkpoint import VARIANT, full_config, write_full_checkpoint
from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.kv_cache import Rows
from MiniCPMO45.engine.steps import LlmForward
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.processing.prompts import duplex_prefix
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast
from MiniCPMO45.settings import LoadOptions
from tests.model.toy import decisions

NARROW = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vision_config.hidden_size": 32,
    "vision_config.intermediate_size": 64,
    "vision_config.num_hidden_layers": 2,
    "vision_config.num_attention_heads": 2,
    "audio_config.d_model": 32,
    "audio_config.encoder_ffn_dim": 128,
    "audio_config.encoder_attention_heads": 2,
    "tts_config.hidden_size": 32,
    "tts_config.intermediate_size": 64,
    "tts_config.num_hidden_layers": 2,
    "tts_config.num_attention_heads": 2,
    "tts_config.num_key_value_heads": 2,
    "tts_config.llm_dim": 128,
}
"""As deep as the published model where turns are decided, with as many ids, but narrow."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tmp_path_factory.mktemp("full") / "checkpoint"
    device = torch.device("cpu")
    write_full_checkpoint(written, device, 0, NARROW, has_tiny_voice=True, shard_bytes=60_000_000)
    return written


def test_the_sizes_are_the_published_ones() -> None:
    published = MiniCPMOConfig().to_dict()
    assert full_config({}).to_dict() == published | {"model_variant": VARIANT}


def test_control_tokens_have_their_published_ids_and_every_id_is_text(folder: Path) -> None:
    tokenizer = MiniCPMOTokenizerFast.from_pretrained(folder)
    special = tokenizer.special
    assert len(tokenizer) == MiniCPMOConfig().vocab_size
    found = (special.endoftext, special.im_end, special.listen, special.speak, special.chunk_eos)
    assert found == (151_643, 151_645, 151_705, 151_706, 151_718)  # docs/specification/model.md#3.1
    assert tokenizer.decode(range(len(tokenizer)))
    assert len(list(folder.glob("*.safetensors"))) > 1
    config = MiniCPMOConfig.from_pretrained(folder)
    assert config.tts_config.audio_bos_token_id == tokenizer.token_id("<focus>")
    assert config.tts_config.text_eos_token_id == tokenizer.token_id("</perception>")


def test_a_folder_in_use_is_left_alone(folder: Path) -> None:
    with pytest.raises(FileExistsError, match="not empty"):
        write_full_checkpoint(folder, torch.device("cpu"))


@torch.inference_mode()
def test_deep_stacks_and_many_ids_take_turns_as_the_tiny_model_does(folder: Path) -> None:
    options = LoadOptions(show_progress=False)
    model = MiniCPMOForConditionalGeneration.from_folder(folder, options)
    executor = Executor(model)
    tokenizer = MiniCPMOTokenizerFast.from_pretrained(folder)
    special = tokenizer.special
    assert decisions(executor, tokenizer) == [special.speak, special.listen]
    rows = Rows((*tokenizer.encode(duplex_prefix()), special.unit_start, special.speak))
    [answer] = executor.submit([LlmForward(executor.llm_store.open(), rows)])()
    spare = [special.endoftext - 1 - index for index in range(140_000)]
    assert answer.logits.softmax(-1)[spare].sum() < 0.05
