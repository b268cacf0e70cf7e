"""The tiny checkpoint: layout, names, reproducibility, and turn taking."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.kv_cache import Rows
from MiniCPMO45.engine.steps import EncodeImages, LlmForward
from MiniCPMO45.loading.checkpoint import read_headers
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.processing.pictures import Patches
from MiniCPMO45.processing.processor import MiniCPMOProcessor
from MiniCPMO45.processing.prompts import duplex_prefix
from MiniCPMO45.settings import LoadOptions
from MiniCPMO45.tiny.__main__ import main
from MiniCPMO45.tiny.checkpoint import TinyCheckpointError, voice_sample, write_tiny_checkpoint
from MiniCPMO45.token2wav.load import load_token2wav
from MiniCPMO45.token2wav.voices import VoiceEncoder
from tests.goldens.places import COMMITTED
from tests.model.toy import decisions

FILES = {
    "assets/system_ref_audio.wav",
    "assets/token2wav/campplus.onnx",
    "assets/token2wav/config.json",
    "assets/token2wav/flow.pt",
    "assets/token2wav/hift.pt",
    "assets/token2wav/speech_tokenizer_v2_25hz.onnx",
    "chat_template.jinja",
    "config.json",
    "model.safetensors",
    "processor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
}
LARGEST_MB = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tmp_path_factory.mktemp("tiny") / "checkpoint"
    write_tiny_checkpoint(written, seed=0)
    return written


@pytest.fixture(scope="module")
def executor(folder: Path) -> Executor:
    options = LoadOptions(show_progress=False)
    return Executor(MiniCPMOForConditionalGeneration.from_folder(folder, options))


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_files_equal_save_pretrained_and_are_small(folder: Path) -> None:
    files = files_of(folder)
    assert set(files) == FILES
    assert sum(map(len, files.values())) < LARGEST_MB * 1_000_000


def test_files_are_deterministic_for_a_seed(folder: Path, tmp_path: Path) -> None:
    write_tiny_checkpoint(tmp_path / "same", seed=0)
    write_tiny_checkpoint(tmp_path / "other", seed=1)
    first, same, other = (files_of(f) for f in (folder, tmp_path / "same", tmp_path / "other"))
    assert first == same
    changed = {name for name in first if first[name] != other[name]}
    assert changed == {name for name in first if name.endswith((".safetensors", ".pt", ".onnx"))}


def scheme(names: set[str]) -> set[str]:
    return {re.sub(r"\.\d+\.", ".N.", name) for name in names}


def test_tensor_names_follow_the_published_scheme(folder: Path) -> None:
    stored = read_headers(folder)
    assert {part.dtype for part in stored.values()} == {"BF16"}
    published = json.loads((COMMITTED / "state_dict.json").read_text(encoding="utf8"))
    assert scheme(set(stored)) == scheme(set(published))


def test_sizes_of_the_parts_agree(folder: Path) -> None:
    config = MiniCPMOConfig.from_pretrained(folder)
    processor = MiniCPMOProcessor.from_pretrained(folder)
    special = processor.tokenizer.special
    assert config.model_variant == "tiny"
    assert config.hidden_size % 128 == 0
    assert config.audio_config.d_model == config.audio_config.encoder_ffn_dim // 4
    assert config.tts_config.llm_dim == config.hidden_size
    assert config.vocab_size == len(processor.tokenizer) <= config.tts_config.num_text_tokens
    assert config.tts_config.audio_bos_token_id == processor.tokenizer.token_id("<focus>")
    assert config.tts_config.text_eos_token_id == processor.tokenizer.token_id("</perception>")
    assert (config.bos_token_id, config.eos_token_id) == (special.endoftext, special.im_end)


def test_folder_with_other_files_is_left_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "diary.txt").write_text("dear diary", encoding="utf8")
    with pytest.raises(TinyCheckpointError, match="not empty"):
        write_tiny_checkpoint(tmp_path)
    assert main([str(tmp_path)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["diary.txt"]
    assert main([str(tmp_path / "diary.txt")]) == 2


def test_the_command_says_that_the_weights_are_random(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    target = tmp_path / "new"
    assert main([str(target), "--seed", "3"]) == 0
    assert main([str(target), "--seed", "3"]) == 0  # an earlier one is replaced
    said = capsys.readouterr().out
    assert "RANDOM (seed 3)" in said
    assert "model.safetensors" in said


def test_silence_is_answered_and_noise_is_listened_to(folder: Path, executor: Executor) -> None:
    tokenizer = MiniCPMOProcessor.from_pretrained(folder).tokenizer
    special = tokenizer.special
    assert decisions(executor, tokenizer) == [special.speak, special.listen]


@torch.inference_mode()
def test_words_are_likely_after_speak(folder: Path, executor: Executor) -> None:
    tokenizer = MiniCPMOProcessor.from_pretrained(folder).tokenizer
    special = tokenizer.special
    rows = Rows((*tokenizer.encode(duplex_prefix()), special.unit_start, special.speak))
    [answer] = executor.submit([LlmForward(executor.llm_store.open(), rows)])()
    chances = answer.logits.softmax(-1)
    spoken = [i for i in range(len(tokenizer)) if tokenizer.decode([i]).strip().isalpha()]
    controls = sorted(special.special_ids)
    assert chances[spoken].sum() > 0.6
    assert 0.0 < chances[controls].sum() < 0.4


@torch.inference_mode()
def test_picture_embeddings_are_finite(executor: Executor) -> None:
    pixels = np.random.default_rng(0).uniform(-1, 1, (6 * 4, 588)).astype(np.float32)
    [rows] = executor.submit([EncodeImages((Patches(pixels, 6, 4),))])()
    assert rows[0].shape == (64, executor.model.config.hidden_size)
    assert rows[0].isfinite().all()
    assert 0.1 < rows[0].std() < 10


def test_the_voice_speaks_audibly_and_without_clipping(folder: Path) -> None:
    assets = folder / "assets" / "token2wav"
    vocoder = load_token2wav(assets)
    voice = VoiceEncoder.from_folder(assets, torch.device("cpu")).prepare_voice(voice_sample())
    state = vocoder.new_state(vocoder.set_up(voice), torch.Generator().manual_seed(0))
    codes = torch.randint(0, 6561, (28,), generator=torch.Generator().manual_seed(0)).tolist()
    samples = torch.cat([vocoder.stream(state, codes), vocoder.stream(state, codes)])
    assert samples.shape == (2 * 25 * 960,)
    assert samples.isfinite().all()
    assert 0.005 < samples.square().mean().sqrt() < 0.3
