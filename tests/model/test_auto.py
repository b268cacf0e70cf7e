"""The `Auto` classes of `transformers` load our classes and run no code of a checkpoint."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoProcessor,
    AutoTokenizer,
    WhisperFeatureExtractor,
)

import MiniCPMO45.auto  # noqa: F401  # registers the classes
from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.loading.checkpoint_source import HUGGINGFACE_ID, CheckpointError
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.modeling_minicpmo_unified import UnifiedModel
from MiniCPMO45.processing.mel import ProcessingError, clip_mels
from MiniCPMO45.processing.pictures import MiniCPMOImageProcessor
from MiniCPMO45.processing.processor import Message, MiniCPMOProcessor
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast
from MiniCPMO45.settings import LoadOptions
from MiniCPMO45.tiny.tokenizer import write_json
from tests.fakes.toy_checkpoint import TOY, write_config, write_shards
from tests.fakes.words import copy_published_words
from tests.source_tree import ROOT

SIZES = (
    "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
    "head_dim rms_norm_eps rope_parameters max_position_embeddings vocab_size"
).split()
"""Of a decoder."""

POISON = "import sys\nsys.was_executed = True\n"
REMOTE_CODE = {
    "AutoConfig": "configuration_minicpmo.MiniCPMOConfig",
    "AutoModel": "modeling_minicpmo.MiniCPMO",
    "AutoTokenizer": [None, "tokenization_minicpmo_fast.MiniCPMOTokenizerFast"],
    "AutoProcessor": "processing_minicpmo.MiniCPMOProcessor",
}


@pytest.fixture
def folder(tmp_path: Path, weights: dict[str, Tensor]) -> Path:
    """A sharded checkpoint with `auto_map` to code that must not run."""
    write_config(tmp_path, auto_map=REMOTE_CODE)
    write_shards(tmp_path, weights)
    for name in ("modeling", "configuration", "processing", "tokenization"):
        (tmp_path / f"{name}_minicpmo.py").write_text(POISON)
    (tmp_path / "tokenization_minicpmo_fast.py").write_text(POISON)
    return tmp_path


@pytest.fixture
def words(folder: Path) -> Path:
    """The same with tokenizer and preprocessor files that name code."""
    copy_published_words(folder)
    for name in ("tokenizer_config.json", "preprocessor_config.json"):
        values = json.loads((folder / name).read_text(encoding="utf8"))
        write_json(folder / name, values | {"auto_map": REMOTE_CODE})
    return folder


def test_auto_processor_round_trip_without_remote_code(words: Path, tmp_path: Path) -> None:
    tokenizer, processor = (each.from_pretrained(words) for each in (AutoTokenizer, AutoProcessor))
    assert isinstance(tokenizer, MiniCPMOTokenizerFast)
    assert isinstance(processor, MiniCPMOProcessor)
    processor.save_pretrained(tmp_path / "saved")
    again = MiniCPMOProcessor.from_pretrained(tmp_path / "saved")
    picture = Image.new("RGB", (640, 480))
    message = Message("user", ["Hello, 12 birds!", picture, np.zeros(16_000, np.float32)])
    prompts = [each.render([message]) for each in (processor, again)]
    assert prompts[0].ids == prompts[1].ids
    assert again.tokenizer.special == tokenizer.special
    assert "was_executed" not in vars(sys)


def test_documented_example_runs(words: Path, capsys: pytest.CaptureFixture) -> None:
    page = (ROOT / "docs" / "transformers.md").read_text(encoding="utf8")
    [lines] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(lines, {"checkpoint": words})
    width, ids = (
        TOY.vision_config.hidden_size,
        AutoTokenizer.from_pretrained(words).encode("Hello!"),
    )
    assert capsys.readouterr().out == f"{width} {ids}\n"


def test_pixel_values_equal_the_published_processor() -> None:
    given = MiniCPMOImageProcessor()([Image.new("RGB", (1200, 800), (255, 0, 0))])
    [slices], [sizes] = given["pixel_values"], given["tgt_sizes"]
    assert len(slices) == len(sizes) > 1
    for pixels, (rows, cols) in zip(slices, sizes, strict=True):
        assert pixels.shape == (3, 14, 14 * rows * cols)
        assert (pixels[0] == 1).all() and (pixels[1:] == -1).all()


def test_clip_log_mel_equals_the_feature_extractor() -> None:
    sound = np.random.default_rng(0).standard_normal(24_000).astype(np.float32) * 0.1
    [ours] = clip_mels(sound)
    theirs = WhisperFeatureExtractor()(sound, sampling_rate=16_000, return_tensors="pt")
    frames = theirs["input_features"][0, :, : ours.shape[1]]
    assert torch.allclose(ours, frames, atol=1e-4)


@pytest.mark.parametrize("trust_remote_code", [None, False, True])
def test_no_code_of_a_checkpoint_is_executed(trust_remote_code: bool | None, folder: Path) -> None:
    options = {} if trust_remote_code is None else {"trust_remote_code": trust_remote_code}
    config = AutoConfig.from_pretrained(folder, **options)
    model = AutoModel.from_pretrained(folder, **options)
    assert isinstance(config, MiniCPMOConfig)
    assert isinstance(model, MiniCPMOForConditionalGeneration)
    assert "was_executed" not in vars(sys)


@pytest.mark.parametrize(
    "device_map, dtype",
    [
        (None, torch.float32),
        ("cpu", "bfloat16"),
        ("auto", "auto"),
        ({"": "cpu"}, None),
        (torch.device("cpu"), None),
    ],
)
def test_auto_model_loads_every_tensor_in_the_given_dtype(
    device_map: object, dtype: object, folder: Path, weights: dict[str, Tensor]
) -> None:
    write_config(folder, dtype="bfloat16")
    model = AutoModel.from_pretrained(folder, dtype=dtype, device_map=device_map)
    wanted = torch.float32 if dtype == torch.float32 else torch.bfloat16
    state = model.state_dict()
    assert state.keys() == weights.keys()
    assert all(torch.equal(state[name], weights[name].to(wanted)) for name in weights)
    assert all(tensor.dtype == wanted for tensor in state.values())


def test_saved_model_equals_the_loaded_one(folder: Path, weights: dict[str, Tensor]) -> None:
    AutoModel.from_pretrained(folder).save_pretrained(folder / "saved", max_shard_size="50KB")
    assert len(list((folder / "saved").glob("*.safetensors"))) > 1
    saved = json.loads((folder / "saved" / "config.json").read_text())
    assert "auto_map" not in saved
    again = AutoModel.from_pretrained(folder / "saved")
    kept, given = again.config.to_dict(), TOY.to_dict()
    assert {kept[name] == given[name] for name in SIZES} == {True}
    assert {kept["tts_config"][name] == given["tts_config"][name] for name in SIZES} == {True}
    state = again.state_dict()
    assert state.keys() == weights.keys()
    assert all(torch.equal(state[name], weights[name].float()) for name in weights)


def test_model_from_a_configuration_has_scaled_random_weights() -> None:
    model = AutoModel.from_config(TOY, dtype=torch.float32)
    assert torch.equal(model.llm.model.norm.weight, torch.ones(32))
    assert model.llm.lm_head.weight.std().item() == pytest.approx(32**-0.5, rel=0.1)
    assert not model.vpm.post_layernorm.bias.any()
    decoders = model.llm.model, model.tts.model
    assert [each.layers[0].self_attn.norms is None for each in decoders] == [False, True]


@pytest.mark.parametrize("face", [AutoModel, MiniCPMOForConditionalGeneration])
def test_options_of_published_examples_are_accepted(face: Any, folder: Path) -> None:
    model = face.from_pretrained(
        folder,
        trust_remote_code=True,
        attn_implementation="sdpa",
        torch_dtype=torch.bfloat16,
        low_cpu_mem_usage=True,
        init_vision=True,
        init_audio=True,
        init_tts=True,
    )
    assert model.dtype == model.config.dtype == torch.bfloat16
    assert face.from_pretrained(folder, torch_dtype="auto").dtype == torch.float32


@pytest.mark.parametrize("face", [AutoModel, MiniCPMOForConditionalGeneration])
@pytest.mark.parametrize(
    "name, parts",
    [
        ("init_vision", ("vpm.", "resampler.")),
        ("init_audio", ("apm.", "audio_projection_layer.")),
        ("init_tts", ("tts.",)),
    ],
)
def test_a_part_can_be_left_out(
    face: Any, name: str, parts: tuple[str, ...], folder: Path, weights: dict[str, Tensor]
) -> None:
    kept = {each for each in weights if not each.startswith(parts)}
    model = face.from_pretrained(folder, **{name: False})
    assert model.state_dict().keys() == kept < weights.keys()
    model.save_pretrained(folder / "saved")
    assert face.from_pretrained(folder / "saved").state_dict().keys() == kept
    with pytest.raises(CheckpointError, match=f"without {parts[0]}.*conversations need all"):
        UnifiedModel.from_checkpoint(folder / "saved", LoadOptions())


def test_embeddings_are_the_language_models(folder: Path) -> None:
    model = AutoModel.from_pretrained(folder)
    assert model.get_input_embeddings() is model.llm.model.embed_tokens
    assert model.get_output_embeddings() is model.llm.lm_head


def test_the_vocabulary_can_be_enlarged(folder: Path, weights: dict[str, Tensor]) -> None:
    model, size = AutoModel.from_pretrained(folder), TOY.vocab_size
    model.resize_token_embeddings(size + 8)
    model.save_pretrained(folder / "saved")
    again = AutoModel.from_pretrained(folder / "saved")
    assert again.config.vocab_size == size + 8
    for name in ("llm.model.embed_tokens.weight", "llm.lm_head.weight"):
        assert len(again.state_dict()[name]) == size + 8
        assert torch.equal(again.state_dict()[name][:size], weights[name].float())


def test_loaded_parameters_can_be_trained(folder: Path) -> None:
    model = AutoModel.from_pretrained(folder)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not model.training


def test_calls_that_the_model_does_not_have_name_those_that_it_has(folder: Path) -> None:
    model = AutoModel.from_pretrained(folder)
    for call in (model, model.generate):
        with pytest.raises(TypeError, match="UnifiedModel"):
            call(input_ids=torch.tensor([[1]]))
    assert not model.can_generate()


def test_processor_applies_the_tokenizers_chat_template(words: Path) -> None:
    processor = AutoProcessor.from_pretrained(words)
    parts = [{"type": "text", "text": "Hello,"}, {"type": "text", "text": " you!"}]
    text = "<|im_start|>user\nHello, you!<|im_end|>\n<|im_start|>assistant\n"
    for content in ("Hello, you!", parts):
        rows = [{"role": "user", "content": content}]
        assert processor.apply_chat_template(rows, add_generation_prompt=True) == text
        [ids] = processor.apply_chat_template([rows], tokenize=True, return_dict=True)["input_ids"]
        assert processor.decode(ids) == text.removesuffix("<|im_start|>assistant\n")
    with pytest.raises(ProcessingError, match="image.*render"):
        processor.apply_chat_template([{"role": "user", "content": [{"type": "image"}]}])


def test_processor_takes_one_picture_of_any_mode(words: Path) -> None:
    processor, picture = AutoProcessor.from_pretrained(words), Image.new("RGB", (64, 64))
    [pixels] = processor(images=[picture])["pixel_values"]
    for other in (picture, picture.convert("RGBA"), [picture.convert("P")]):
        [same] = processor(images=other)["pixel_values"]
        assert np.array_equal(same, pixels)


def test_processor_refuses_media_beside_text(words: Path) -> None:
    processor, picture = AutoProcessor.from_pretrained(words), Image.new("RGB", (64, 64))
    assert processor(text="Hello!")["input_ids"] == processor.tokenizer.encode("Hello!")
    assert len(processor(images=[picture])["pixel_values"]) == 1
    for media in ({"images": [picture]}, {"audio": np.zeros(16_000, np.float32)}):
        with pytest.raises(ProcessingError, match="render"):
            processor(text="What is this?", **media)


def test_flash_attention_is_refused_by_its_name(folder: Path) -> None:
    with pytest.raises(ValueError, match="attn_implementation is flash_attention_2; the model has"):
        AutoModel.from_pretrained(folder, attn_implementation="flash_attention_2")


def test_unsupported_loading_options_are_rejected(folder: Path) -> None:
    with pytest.raises(ValueError, match="names 2 devices"):
        AutoModel.from_pretrained(folder, device_map={"llm": "cpu", "tts": "cuda:0"})
    with pytest.raises(ValueError, match="dtype is int8; weights can be bfloat16"):
        AutoModel.from_pretrained(folder, dtype="int8")
    for option in ("dtype", "torch_dtype"):
        with pytest.raises(ValueError, match="dtype is half_precision"):
            AutoModel.from_pretrained(folder, **{option: "half_precision"})
    for name in ("gguf_file", "quantization_config", "save_pretrained"):
        options: dict[str, Any] = {name: {}}
        with pytest.raises(TypeError, match=f"takes no {name}: the model has a loader"):
            MiniCPMOForConditionalGeneration.from_pretrained(folder, **options)
    write_config(folder, quantization_config={"quant_method": "bitsandbytes"})
    with pytest.raises(CheckpointError, match="quantised"):
        AutoModel.from_pretrained(folder)


@pytest.mark.parametrize("place", ["cuda:99", 99, "gpu"])
def test_a_device_that_there_is_not_is_refused_by_its_name(place: Any, folder: Path) -> None:
    for device_map in (place, {"": place}):
        with pytest.raises(ValueError, match=rf"device_map names {place}, and there .* \d+ GPUs"):
            AutoModel.from_pretrained(folder, device_map=device_map)


def test_uncached_hub_id_fails_offline(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="Hugging Face|HF_HUB_OFFLINE"):
        MiniCPMOForConditionalGeneration.from_pretrained(
            HUGGINGFACE_ID, cache_dir=tmp_path, local_files_only=True
        )


def test_hub_id_is_loaded_from_the_cache(
    folder: Path, tmp_path: Path, weights: dict[str, Tensor]
) -> None:
    revision = "0" * 40
    repo = tmp_path / "cache" / f"models--{HUGGINGFACE_ID.replace('/', '--')}"
    snapshot = repo / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(revision)
    for path in folder.iterdir():
        if path.is_file():
            path.rename(snapshot / path.name)
    model = AutoModel.from_pretrained(
        HUGGINGFACE_ID, cache_dir=tmp_path / "cache", local_files_only=True
    )
    assert model.state_dict().keys() == weights.keys()


def test_configuration_of_the_embedded_model_is_loaded() -> None:
    config = AutoConfig.from_pretrained(ROOT / "assets" / "nano")
    assert isinstance(config, MiniCPMOConfig)
    assert (config.model_variant, config.hidden_size) == ("nano", 256)
    decoders = config, config.tts_config
    assert [each.rope_parameters["rope_theta"] for each in decoders] == [1e6, 1e4]
    assert config.slice_config.scale_resolution == 336


def test_defaults_are_the_published_sizes() -> None:
    config = MiniCPMOConfig()
    assert (config.hidden_size, config.head_dim, config.vocab_size) == (4096, 128, 151_748)
    assert (config.vision_config.hidden_size, config.vision_config.patch_size) == (1152, 14)
    assert (config.audio_config.d_model, config.audio_config.num_mel_bins) == (1024, 80)
    assert (config.tts_config.hidden_size, config.tts_config.speech_eos_id) == (768, 6561)
