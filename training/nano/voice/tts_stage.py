"""Stage: trains the speech decoder on the states of the language model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from MiniCPMO45.configuration_minicpmo import DecoderConfig, MiniCPMOConfig, TTSConfig
from MiniCPMO45.model.transformer import CausalLM, MiniCPMTTS
from training.nano.model import PaddedBatch, SpokenUnits
from training.nano.optimizing import Optimizer, Recipe, fast
from training.nano.voice.alphabet import CODES_USED, PHONEMES, PITCH_CLASSES, SILENCE
from training.nano.voice.lines import NO_LABEL, NO_STATE, Line, LineWriter, Spoken, UnfitTextError
from training.nano.voice.pronunciation import LEAD_CODES
from training.nano.voice.stage_clock import Average, StageClock, resume, save

PEAK_RATE = 1e-3
RECIPE = Recipe(inside=("model.layers.",), weight_decay=0.02)
CONTEXTS_PER_BATCH = 256
LENGTH_JITTER = 12  # rows, so that batches of equal lengths differ from epoch to epoch
STATE_DROPOUT = 0.2  # share of sequences without states of the language model
OTHER_PITCH, OTHER_CODE = 0.08, 0.03  # share of input codes that are replaced
NORMALISER_WEIGHT = 0.01  # keeps logits near log probabilities, for a mild repetition penalty
WHOLE_IN = 3
FILE = "tts.pt"


@dataclass(frozen=True, eq=False)
class Lines:
    """Concatenated lines on the training device."""

    starts: Tensor  # first row of each line and the end, int64 [N + 1], on the CPU
    ids: Tensor
    is_code: Tensor
    labels: Tensor  # index into the used codes, or `NO_LABEL`, int64 [R]
    states: Tensor  # float16 [S, llm width]
    state_of: Tensor  # row of `states`, or `NO_STATE`, int64 [R]

    def __len__(self) -> int:
        return len(self.starts) - 1


class CodeTable:
    """Output rows: the used codes, the end code, and one row for all unused codes."""

    def __init__(self, config: TTSConfig, device: torch.device) -> None:
        common = len(PHONEMES) * PITCH_CLASSES
        used = [*CODES_USED, config.speech_eos_id]
        self.rows = torch.tensor([*used, common], device=device)
        self.common = common
        self.n_unused = config.num_audio_tokens - len(used)
        self.unused = sorted(set(range(config.num_audio_tokens)) - set(used))
        self._index = {code: index for index, code in enumerate(used)}

    def index_of(self, label: int) -> int:
        """Return the index of a code among the used ones; `NO_LABEL` is unchanged."""
        return NO_LABEL if label == NO_LABEL else self._index[label]


def spoken_lines(path: Path) -> list[Spoken]:
    """Return the texts of a set of recordings with their codes after the lead."""
    with np.load(path) as file:
        described = json.loads(str(file["described"]))
        starts, codes = file["starts"].tolist(), file["codes"].tolist()
    return [
        Spoken(text, tuple(codes[start + LEAD_CODES : stop]), tuple(words))
        for text, words, (start, stop) in zip(
            described["texts"], described["word_codes"], pairwise(starts), strict=True
        )
    ]


def write_lines(writer: LineWriter, spoken: Sequence[Spoken]) -> list[Line]:
    """Return every text as a streamed reply and, if it fits, as a duplex turn; a third as whole."""
    lines = []
    for number, each in enumerate(spoken):
        lines.append(writer.streamed(each))
        if number % WHOLE_IN == 0:
            lines.append(writer.whole(each))
        try:
            lines.append(writer.duplex(each))
        except UnfitTextError:
            continue
    return lines


def write_conversations(
    writer: LineWriter, spoken: Sequence[Spoken], replies: Iterable[SpokenUnits]
) -> list[Line]:
    """Return the completed replies of conversations that are recorded."""
    by_text = {each.text: each for each in spoken}
    lines = []
    for units in replies:
        if units.has_ended and units.text in by_text:
            try:
                lines.append(writer.from_conversation(units, by_text[units.text]))
            except UnfitTextError:
                continue
    return lines


@torch.no_grad()
def collect(lines: Sequence[Line], llm: CausalLM, config: MiniCPMOConfig) -> Lines:
    """Compute missing states with the language model and concatenate all on its device."""
    device = llm.lm_head.weight.device
    table = CodeTable(config.tts_config, device)
    add_states([line for line in lines if line.hidden is None], llm, config)
    states, state_of, base = [], [], 0
    for line in lines:
        assert line.hidden is not None
        wanted = [position for position in line.states if position != NO_STATE]
        states.append(line.hidden[wanted].half().to(device))
        places = iter(range(base, base + len(wanted)))
        state_of += [NO_STATE if at == NO_STATE else next(places) for at in line.states]
        base += len(wanted)
    starts = torch.tensor([0, *(len(line.ids) for line in lines)]).cumsum(0)
    return Lines(
        starts,
        torch.tensor([each for line in lines for each in line.ids], device=device),
        torch.tensor([each for line in lines for each in line.is_code], device=device),
        torch.tensor([table.index_of(x) for line in lines for x in line.labels], device=device),
        torch.cat(states),
        torch.tensor(state_of, device=device),
    )


@torch.no_grad()
def add_states(lines: Sequence[Line], llm: CausalLM, config: MiniCPMOConfig) -> None:
    """Compute the states of lines from their contexts, in which audio is `<unk>`."""
    device = llm.lm_head.weight.device
    order = sorted(lines, key=lambda line: len(line.context))
    for at in range(0, len(order), CONTEXTS_PER_BATCH):
        some = order[at : at + CONTEXTS_PER_BATCH]
        contexts = [torch.tensor(line.context) for line in some]
        ids = torch.nn.utils.rnn.pad_sequence(contexts, batch_first=True).to(device)
        batch = PaddedBatch.build(len(ids), ids.shape[1], config, device)
        with torch.autocast(device.type, torch.bfloat16):
            hidden = llm.model(llm.model.embed_tokens(ids).flatten(0, 1), batch).half()
        for line, rows in zip(some, hidden.unflatten(0, ids.shape), strict=True):
            line.hidden = rows[: len(line.context)].clone()


def batches(lines: Lines, n_rows: int, random: Random) -> Iterator[Tensor]:
    """Yield endless batches of lines of similar length, `n_rows` with padding."""
    lengths = lines.starts.diff().tolist()
    while True:
        order = sorted(
            range(len(lines)), key=lambda i: lengths[i] + random.uniform(0, LENGTH_JITTER)
        )
        chunks, first = [], 0
        for at, index in enumerate(order):
            if (at + 1 - first) * (lengths[index] + LENGTH_JITTER) > n_rows and at > first:
                chunks.append(order[first:at])
                first = at
        chunks.append(order[first:])
        random.shuffle(chunks)
        for chunk in chunks:
            yield torch.tensor(chunk)


def logits_of(
    tts: MiniCPMTTS,
    lines: Lines,
    chosen: Tensor,
    table: CodeTable,
    shape: DecoderConfig,
    *,
    is_training: bool,
) -> tuple[Tensor, Tensor]:
    """Run the speech decoder over some lines, in training with replaced codes and missing states.

    Returns:
        Logits [n, used codes + 1], the last for each unused code; labels [n].
    """
    device = lines.ids.device
    begin, end = lines.starts[chosen], lines.starts[chosen + 1]
    length = int((end - begin).max())
    at = begin[:, None] + torch.arange(length)
    is_real = (at < end[:, None]).to(device)
    at = torch.minimum(at, end[:, None] - 1).to(device)
    ids, is_code, state_of = lines.ids[at], lines.is_code[at], lines.state_of[at]
    has_state = state_of != NO_STATE
    states = lines.states[state_of.clamp(min=0)].to(tts.emb_text.weight.dtype)
    if is_training:
        ids = torch.where(is_code, replace_some(ids, table), ids)
        is_kept = torch.rand(len(chosen), 1, 1, device=device) >= STATE_DROPOUT
        states = states * is_kept
    semantic = F.normalize(tts.projector_semantic(states), dim=-1) * has_state[..., None]
    text = tts.emb_text(torch.where(is_code, 0, ids)) + semantic
    code = tts.emb_code[0](torch.where(is_code, ids, SILENCE))
    rows = torch.where(is_code[..., None], code, text)
    batch = PaddedBatch.build(len(chosen), length, shape, device)
    hidden = tts.model(rows.flatten(0, 1), batch)
    labels = torch.where(is_real, lines.labels[at], NO_LABEL).flatten()
    is_target = labels != NO_LABEL
    head = tts.folded_head()[table.rows]
    return (hidden[is_target] @ head.T).float(), labels[is_target]


def replace_some(codes: Tensor, table: CodeTable) -> Tensor:
    """Replace some codes by the same phoneme at another pitch, and a few by any code."""
    drawn = torch.rand(codes.shape, device=codes.device)
    pitch = torch.randint(PITCH_CLASSES, codes.shape, device=codes.device)
    same = torch.where(codes == SILENCE, codes, codes // PITCH_CLASSES * PITCH_CLASSES + pitch)
    n_codes = len(CODES_USED)
    other = table.rows[torch.randint(n_codes, codes.shape, device=codes.device)]
    changed = torch.where(drawn < OTHER_PITCH, same, codes)
    return torch.where(drawn > 1 - OTHER_CODE, other, changed)


def code_loss(logits: Tensor, labels: Tensor, n_unused: int) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy in nats and the mean square of the log normaliser."""
    unused = logits[:, -1:] + math.log(n_unused)
    normaliser = torch.cat((logits[:, :-1], unused), dim=1).logsumexp(dim=1)
    target = logits.gather(1, labels[:, None])[:, 0]
    return (normaliser - target).mean(), normaliser.square().mean()


def silence_unused(tensors: dict[str, Tensor], table: CodeTable) -> dict[str, Tensor]:
    """Copy the common row of unused codes to each of them."""
    for part in ("original0", "original1"):
        weight = tensors[f"head_code.0.parametrizations.weight.{part}"]
        weight[table.unused] = weight[table.common].clone()
    return tensors


def train_tts(
    lines: Lines,
    held_out: Lines,
    config: MiniCPMOConfig,
    folder: Path,
    clock: StageClock,
    *,
    batch_rows: int = 16_384,
    seed: int = 0,
) -> None:
    """Train, or resume training, and write `tts.pt`."""
    torch.manual_seed(seed)
    device = lines.ids.device
    tts = MiniCPMTTS(config.tts_config)
    peak = PEAK_RATE * resume(tts, folder / FILE)
    tts.to(device).train()
    average = Average(tts)
    table = CodeTable(config.tts_config, device)
    shape = config.tts_config
    optimizer = Optimizer(tts, peak, RECIPE)
    order = batches(lines, batch_rows, Random(seed))
    for tick in clock.ticks("tts"):
        with fast(device):
            logits, labels = logits_of(tts, lines, next(order), table, shape, is_training=True)
        loss, normaliser = code_loss(logits, labels, table.n_unused)
        optimizer.step(loss + NORMALISER_WEIGHT * normaliser, tick)
        average.update(tick.step)
        tick.show(nats=loss, norm=normaliser)
        if tick.is_save_due:
            tensors = silence_unused(average.state_dict(), table)
            save(tensors, folder / FILE)
            averaged = MiniCPMTTS(config.tts_config)
            averaged.load_state_dict(tensors)
            nats, share = evaluate(averaged.to(device), held_out, table, shape)
            tick.bar.write(f"held out: {nats:.3f} nats a code, {share:.1%} top-1 accuracy")


@torch.no_grad()
def evaluate(
    tts: MiniCPMTTS, lines: Lines, table: CodeTable, shape: DecoderConfig
) -> tuple[float, float]:
    total = right = count = 0.0
    for at in range(0, len(lines), 32):
        chosen = torch.arange(at, min(at + 32, len(lines)))
        logits, labels = logits_of(tts, lines, chosen, table, shape, is_training=False)
        loss, _ = code_loss(logits, labels, table.n_unused)
        total += float(loss) * len(labels)
        right += float((logits[:, :-1].argmax(1) == labels).sum())
        count += len(labels)
    return total / count, right / count
