"""Stages of the voice, each from files to files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Annotated

import torch
import typer

from core.packages import Wheel, fetch_wheel
from training.nano import shapes
from training.nano.batches import Conversations, loader
from training.nano.domain.catalogue import reply_texts
from training.nano.listening import load_model, to_device
from training.nano.model import SpokenUnits, spoken_units
from training.nano.optimizing import allow_tf32
from training.nano.voice.lines import LineWriter
from training.nano.voice.recordings import PROMPT_TEXT, Recordings, record
from training.nano.voice.stage_clock import StageClock
from training.nano.voice.texts import common_words, everyday_sentences, with_other_words, word_lists
from training.nano.voice.tts_stage import (
    collect,
    spoken_lines,
    train_tts,
    write_conversations,
    write_lines,
)

RECORDINGS_FILE = "voice.npz"
HELD_OUT_FILE = "voice_held_out.npz"
UNITS_PER_BATCH = 512
CONVERSATIONS_SEED = 1_000
CONVERSATION_BATCHES, CONVERSATION_PROCESSES = 60, 4
EVERYDAY_SENTENCES = 15_000
WORD_LISTS = 6_000
OWN_WORDS_TIMES = 4  # repetitions of the words of replies, relative to everyday words
CHANGED_REPLIES = 25_000
CHITCHAT = Wheel(
    "chitchat-dataset==0.9.0", "7bf89f36645e2d5ec87d53370c8e851b5a688479c7beb7079cb4c87fc5acea3e"
)
CHATTERBOT = Wheel(
    "chatterbot-corpus==1.3.3", "86de5300afb9a80826386339d3bec79c0a72eb0358abb8327e2ecef5ae0ce154"
)
SEED = 0
HELD_OUT_IN = 40  # one of so many texts is held out


def fetch_texts(
    downloads: Annotated[Path, typer.Option(help="Folder for the fetched packages.")],
    out: Annotated[Path, typer.Option(help="File to write.")],
) -> None:
    """Choose the texts of the target voice."""
    downloads.mkdir(parents=True, exist_ok=True)
    chitchat, chatterbot = (fetch_wheel(each, downloads) for each in (CHITCHAT, CHATTERBOT))
    choose_texts(chitchat, chatterbot, out)


def choose_texts(chitchat: Path, chatterbot: Path, path: Path) -> None:
    """Choose the texts of the target voice, from the wheels of both collections."""
    path.parent.mkdir(parents=True, exist_ok=True)
    everyday = everyday_sentences(chitchat, chatterbot)
    replies = reply_texts()
    words = [*common_words(everyday), *common_words(replies) * OWN_WORDS_TIMES]
    lists = word_lists(words, WORD_LISTS, SEED)
    Random(SEED).shuffle(everyday)
    changed = with_other_words(replies, CHANGED_REPLIES, SEED)
    texts = [*replies, *changed, *everyday[:EVERYDAY_SENTENCES], *lists]
    path.write_text(json.dumps(texts, indent=0), encoding="utf8")


def is_held_out(text: str) -> bool:
    """Return whether a text is held out, a function of its words."""
    return hashlib.sha256(text.encode()).digest()[0] < 256 // HELD_OUT_IN


def speak_texts(
    texts: Annotated[Path, typer.Option(help="Output of `texts`.")],
    data: Annotated[Path, typer.Option(help="Folder with the recordings.")],
    most: Annotated[int | None, typer.Option(help="Most texts besides the domain's.")] = None,
) -> None:
    """Speak the texts in the target voice, on all cores."""
    random = Random(SEED)
    chosen = json.loads(texts.read_text(encoding="utf8"))
    random.shuffle(chosen)
    replies = set(reply_texts())
    others = [text for text in chosen if text not in replies]
    chosen = [*(text for text in chosen if text in replies), *others[:most]]
    random.shuffle(chosen)
    for file, is_wanted in ((RECORDINGS_FILE, False), (HELD_OUT_FILE, True)):
        spoken = [text for text in chosen if is_held_out(text) == is_wanted]
        record([PROMPT_TEXT, *spoken], data / file)


def learn_tts(
    data: Path,
    out: Path,
    clock: StageClock,
    device: torch.device,
    batch_rows: int,
    banks: Sequence[Path] = (),
    encoder: Path | None = None,
) -> None:
    """Train the speech decoder on the states of the language model in `out`.

    Without a trained one, a random one is used, for rehearsals. With `banks` and the encoder, the
    replies of conversations about recorded questions are trained, too.
    """
    config = shapes.config()
    writer = LineWriter(shapes.tokenizer(), config.tts_config)
    spoken, held_out = (spoken_lines(data / name) for name in (RECORDINGS_FILE, HELD_OUT_FILE))
    torch.manual_seed(0)
    llm = load_model(out, None).llm.requires_grad_(False).to(device)
    lines = write_lines(writer, spoken)
    if encoder is not None:
        replies = _conversation_replies(banks, encoder, out, device)
        lines += write_conversations(writer, spoken, replies)
    evaluated = collect(write_lines(writer, held_out), llm, config)
    train_tts(collect(lines, llm, config), evaluated, config, out, clock, batch_rows=batch_rows)


def _conversation_replies(
    banks: Sequence[Path], encoder: Path, folder: Path, device: torch.device
) -> Iterator[SpokenUnits]:
    """Yield replies with the language model's states, from composed conversations."""
    model = load_model(folder, encoder).to(device)
    side = folder / "conversations"
    side.mkdir(exist_ok=True)
    shapes.write_side_files(side)
    composed = Conversations(banks, side, UNITS_PER_BATCH, CONVERSATIONS_SEED)
    for batch in islice(loader(composed, CONVERSATION_PROCESSES), CONVERSATION_BATCHES):
        for units in spoken_units(model, to_device(batch, device)):
            yield replace(units, hidden=tuple(rows.half().cpu() for rows in units.hidden))


def recordings_on(device: torch.device, data: Path) -> Recordings:
    """Load the recordings for training, and enable TF32 and cuDNN autotuning on a GPU."""
    if device.type == "cuda":
        allow_tf32()
        torch.backends.cudnn.benchmark = True
    return Recordings.load(data / RECORDINGS_FILE, device)
