"""Training of the speech decoder on states of the language model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from MiniCPMO45.model.transformer import CausalLM, MiniCPMTTS
from tests.training.voice_recordings import FILE_NAME, recordings
from training.nano import shapes
from training.nano.export import SHARPNESS, speech_decoder_tensors
from training.nano.model import SpokenUnits
from training.nano.voice.alphabet import CODES_USED
from training.nano.voice.lines import NO_STATE, LineWriter, Spoken
from training.nano.voice.stage_clock import StageClock
from training.nano.voice.tts_stage import (
    FILE,
    Lines,
    collect,
    spoken_lines,
    train_tts,
    write_conversations,
    write_lines,
)

CONFIG = shapes.config()
GAIN = "head_code.0.parametrizations.weight.original0"


@pytest.fixture(scope="module")
def writer() -> LineWriter:
    return LineWriter(shapes.tokenizer(), CONFIG.tts_config)


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> list[Spoken]:
    folder = tmp_path_factory.mktemp("recordings")
    recordings(folder)
    return spoken_lines(folder / FILE_NAME)


@pytest.fixture(scope="module")
def lines(writer: LineWriter, spoken: list[Spoken]) -> Lines:
    torch.manual_seed(0)
    llm = CausalLM(CONFIG.decoder, CONFIG.vocab_size).requires_grad_(False)
    return collect(write_lines(writer, spoken), llm, CONFIG)


def test_exactly_the_text_rows_have_states(lines: Lines) -> None:
    has_state = lines.state_of != NO_STATE
    assert not bool((has_state & lines.is_code).any())
    assert int(has_state.sum()) == len(lines.states)
    assert lines.states.shape[1] == CONFIG.hidden_size
    assert int(lines.starts[-1]) == len(lines.ids)


def test_labels_index_the_used_codes(lines: Lines) -> None:
    assert int(lines.labels.max()) == len(CODES_USED)  # the end, behind the alphabet
    assert int(lines.labels.min()) == -1


@pytest.mark.learning
def test_training_step_changes_the_decoder_and_its_file_loads(lines: Lines, tmp_path: Path) -> None:
    trained = train_tts(lines, lines, CONFIG, tmp_path, StageClock(1))
    tensors = {name.removeprefix("tts."): t for name, t in speech_decoder_tensors(tmp_path).items()}
    exported = MiniCPMTTS(CONFIG.tts_config)
    exported.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    gain = torch.load(tmp_path / FILE, weights_only=True)[GAIN].float()
    assert torch.allclose(exported.state_dict()[GAIN], SHARPNESS * gain, rtol=1e-2)
    assert torch.allclose(trained.state_dict()[GAIN], gain, rtol=1e-2)
    assert (tmp_path / FILE).stat().st_size < 16 * 2**20


def test_replies_of_conversations_keep_their_states(
    writer: LineWriter, spoken: list[Spoken]
) -> None:
    ids = tuple(writer.streamed(spoken[1]).context[-7:-2])
    hidden = torch.randn(len(ids), CONFIG.hidden_size)
    completed = SpokenUnits(spoken[1].text, (ids,), (hidden,), has_ended=True, is_duplex=False)
    cut_short = SpokenUnits(spoken[1].text, (ids,), (hidden,), has_ended=False, is_duplex=False)
    unknown = SpokenUnits("Never recorded.", (ids,), (hidden,), has_ended=True, is_duplex=False)
    (line,) = write_conversations(writer, spoken, [completed, cut_short, unknown])
    assert line.hidden is not None and torch.equal(line.hidden, hidden)
    assert [state for state in line.states if state != NO_STATE] == list(range(len(ids)))
