"""The speech decoder: rows in the order of serving, and training on states of the model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from MiniCPMO45.engine.policies import penalise_frequency
from MiniCPMO45.model.transformer import CausalLM, MiniCPMTTS
from tests.training.voice_recordings import FILE_NAME, recordings
from training.nano import shapes
from training.nano.export import GAIN, SHARPNESS, speech_decoder_tensors
from training.nano.model import SpokenUnits
from training.nano.pace import split_reply
from training.nano.voice.alphabet import CODES_USED, SILENCE
from training.nano.voice.lines import (
    GROUP_TOKENS,
    NO_LABEL,
    NO_STATE,
    UNIT_CODES,
    Line,
    LineWriter,
    Spoken,
    UnfitTextError,
    fit,
)
from training.nano.voice.stage_clock import StageClock
from training.nano.voice.tts_stage import (
    FILE,
    CodeTable,
    Lines,
    code_loss,
    collect,
    silence_unused,
    spoken_lines,
    train_tts,
    write_conversations,
    write_lines,
)

CONFIG = shapes.config()
EOS = CONFIG.tts_config.speech_eos_id
TEXT = "The capital of France is Paris, and the capital of Italy is Rome."


@pytest.fixture(scope="module")
def writer() -> LineWriter:
    return LineWriter(shapes.tokenizer(), CONFIG.tts_config)


@pytest.fixture(scope="module")
def spoken() -> Spoken:
    """Words of five codes each; all codes differ."""
    n_words = len(TEXT.split())
    return Spoken(TEXT, CODES_USED[: 5 * n_words], tuple(range(0, 5 * n_words, 5)))


def _runs(line: Line) -> list[list[int]]:
    runs: list[list[int]] = []
    for at, label in enumerate(line.labels):
        if not line.is_code[at]:
            if at + 1 == len(line.labels) or line.is_code[at + 1] or label != NO_LABEL:
                runs.append([label])
        else:
            runs[-1].append(label)
    return runs


def test_label_of_a_row_is_the_next_code(writer: LineWriter, spoken: Spoken) -> None:
    for line in (writer.duplex(spoken), writer.streamed(spoken), writer.whole(spoken)):
        assert len(line.ids) == len(line.is_code) == len(line.labels) == len(line.states)
        for at, following in enumerate(line.ids[1:]):
            if line.is_code[at + 1]:
                assert line.labels[at] == following


def test_unit_within_a_turn_has_25_codes_and_no_end(writer: LineWriter, spoken: Spoken) -> None:
    runs = _runs(writer.duplex(spoken))
    assert len(runs) == len(split_reply(TEXT))
    for run in runs[:-1]:
        assert len(run) == UNIT_CODES + 1
        assert run[-1] == NO_LABEL
        assert EOS not in run
    assert runs[-1][-1] == EOS
    assert len(runs[-1]) <= UNIT_CODES + 1


def test_text_rows_use_the_state_of_their_token(writer: LineWriter, spoken: Spoken) -> None:
    for line in (writer.duplex(spoken), writer.streamed(spoken)):
        rows = [(i, state) for i, state in enumerate(line.states) if state != NO_STATE]
        assert all(line.context[state] == line.ids[row] for row, state in rows)
        assert all(not line.is_code[row] for row, _ in rows)


def test_text_ends_with_the_audio_bos_marker(writer: LineWriter, spoken: Spoken) -> None:
    line = writer.streamed(spoken)
    before_codes = [i for i in range(len(line.ids) - 1) if line.is_code[i + 1]]
    first = [i for i in before_codes if not line.is_code[i]]
    assert all(line.ids[i] == CONFIG.tts_config.audio_bos_token_id for i in first)
    assert line.ids[first[-1] - 1] == CONFIG.tts_config.text_eos_token_id


def test_group_ends_before_an_unfinished_word(writer: LineWriter, spoken: Spoken) -> None:
    runs = _runs(writer.streamed(spoken))
    codes = [label for run in runs for label in run if label != EOS]
    assert codes == list(spoken.codes)
    assert all(run[-1] == EOS for run in runs)
    n_tokens = sum(state != NO_STATE for state in writer.streamed(spoken).states)
    assert len(runs) == -(-n_tokens // GROUP_TOKENS)
    assert all((len(run) - 1) % 5 == 0 for run in runs[:-1])


def test_short_whole_reply_is_padded_with_silence(writer: LineWriter) -> None:
    line = writer.whole(Spoken("Yes.", CODES_USED[:9], (0,)))
    (run,) = _runs(line)
    assert run == [*CODES_USED[:9], *[SILENCE] * 41, EOS]


def test_silence_precedes_a_word_of_a_later_unit() -> None:
    codes = fit(Spoken("a b", CODES_USED[:10], (0, 5)), [1, 1])
    assert codes == [*CODES_USED[:5], *[SILENCE] * 20, *CODES_USED[5:10]]


def test_all_units_but_the_last_are_full() -> None:
    assert len(fit(Spoken("a", CODES_USED[:5], (0,)), [1, 0])) == UNIT_CODES


def test_speech_longer_than_its_units_is_rejected() -> None:
    with pytest.raises(UnfitTextError, match="do not fit"):
        fit(Spoken("a", CODES_USED[:26], (0,)), [1])
    with pytest.raises(UnfitTextError, match="words in units"):
        fit(Spoken("a b", CODES_USED[:2], (0, 1)), [1])


def test_loss_counts_every_unused_code() -> None:
    table = CodeTable(CONFIG.tts_config, torch.device("cpu"))
    logits = torch.zeros(1, len(table.rows))
    loss, _ = code_loss(logits, torch.tensor([0]), table.n_unused)
    assert float(loss) == pytest.approx(
        torch.tensor(float(CONFIG.tts_config.num_audio_tokens)).log().item()
    )


def test_unused_codes_share_one_row() -> None:
    tts = MiniCPMTTS(CONFIG.tts_config)
    table = CodeTable(CONFIG.tts_config, torch.device("cpu"))
    tts.load_state_dict(silence_unused(tts.state_dict(), table))
    head = tts.folded_head()
    assert len(head[table.unused].unique(dim=0)) == 1
    assert len(head[table.rows].unique(dim=0)) == len(table.rows)


def test_normalised_logits_keep_the_repetition_penalty_mild() -> None:
    likely = torch.tensor([0.9, 0.1]).log()
    assert float(penalise_frequency(likely, [0, 0], 1.05).softmax(0)[0]) > 0.88


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Spoken]:
    folder = tmp_path_factory.mktemp("recordings")
    recordings(folder)
    return spoken_lines(folder / FILE_NAME)


@pytest.fixture(scope="module")
def lines(writer: LineWriter, recorded: list[Spoken]) -> Lines:
    torch.manual_seed(0)
    llm = CausalLM(CONFIG).requires_grad_(False)
    return collect(write_lines(writer, recorded), llm, CONFIG)


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
    train_tts(lines, lines, CONFIG, tmp_path, StageClock(1))
    tensors = {name.removeprefix("tts."): t for name, t in speech_decoder_tensors(tmp_path).items()}
    exported = MiniCPMTTS(CONFIG.tts_config)
    exported.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    gain = torch.load(tmp_path / FILE, weights_only=True)[GAIN].float()
    assert torch.allclose(exported.state_dict()[GAIN], SHARPNESS * gain, rtol=1e-2)
    assert (tmp_path / FILE).stat().st_size < 16 * 2**20


def test_replies_of_conversations_keep_their_states(
    writer: LineWriter, recorded: list[Spoken]
) -> None:
    ids = tuple(writer.streamed(recorded[1]).context[-7:-2])
    hidden = torch.randn(len(ids), CONFIG.hidden_size)
    completed = SpokenUnits(recorded[1].text, (ids,), (hidden,), has_ended=True, is_duplex=False)
    cut_short = SpokenUnits(recorded[1].text, (ids,), (hidden,), has_ended=False, is_duplex=False)
    unknown = SpokenUnits("Never recorded.", (ids,), (hidden,), has_ended=True, is_duplex=False)
    (line,) = write_conversations(writer, recorded, [completed, cut_short, unknown])
    assert line.hidden is not None and torch.equal(line.hidden, hidden)
    assert [state for state in line.states if state != NO_STATE] == list(range(len(ids)))
