"""Compares turn-based conversations: prompts, inputs, tokens, text and streamed speech."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.engine.passes import run_alone
from MiniCPMO45.engine.policies import ReplyPolicy
from MiniCPMO45.modes.prompt_input import PrefillOptions, render_history, render_message
from MiniCPMO45.modes.speech import ReplyChunk
from MiniCPMO45.modes.streaming import GROUP_TOKENS
from MiniCPMO45.processing.processor import Message, MiniCPMOProcessor, Part
from MiniCPMO45.processing.prompts import AUDIO_MARKER, IMAGE_MARKER
from MiniCPMO45.settings import GenerationSettings, SpeechSampling
from tests.fakes.batching import collect
from tests.goldens import whole_model
from tests.goldens.folder import GoldenFolder
from tests.goldens.llm import compare_cache
from tests.goldens.recorded_chat import RecordedStreaming, clip_count
from tests.goldens.report import Report
from tests.goldens.resizing import compare_in_either_order
from tests.goldens.whole_model import HIDDEN, WholeModel, compare_feeds, recorded_voice

# Media of each run in the order of their markers; source: the README of the recordings.
MEDIA = {
    "chat_multimodal": ("ref_voice.wav", "image_small.png", "question_1.wav", "question_2.wav"),
    "chat_sliced_image": ("image_large.png",),
    "chat_speech": ("ref_voice.wav",),
    "chat_two_audios": ("question_1.wav", "question_2.wav"),
    "chat_two_images": ("image_small.png", "frame_1.png"),
}
FILES = tuple(MEDIA)

MOST_SLICES = 64  # no recording asks for more per picture
MOST_CODES = 60  # speech codes per text chunk; the reference's own limit is 500
TEMPLATE_MESSAGE = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", re.DOTALL)
PIECE_FRAME = re.compile(
    r"^(?:(?:<\|tts_eos\|>)?<\|im_end\|>\n)?<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>\n)?$",
    re.DOTALL,
)
WAVE = {"atol": 2e-3, "min_correlation": 0.999}


def compare(folder: GoldenFolder, report: Report) -> None:
    parts = whole_model.build(folder)
    for file in FILES:
        if folder.has(file):
            compare_in_either_order(file, report, partial(_replay, folder, parts, file))


def _replay(folder: GoldenFolder, parts: WholeModel, file: str, report: Report) -> None:
    _Replay(folder, report, parts, file).run()


class _Replay:
    """One recorded conversation against ours."""

    def __init__(self, folder: GoldenFolder, report: Report, parts: WholeModel, file: str) -> None:
        self.folder, self.report, self.parts, self.file = folder, report, parts, file
        self.want = folder.tensors(file)
        self.turns = folder.meta(f"{file}_meta")["turns"]
        policy = ReplyPolicy(parts.processor.tokenizer.special, torch.device("cpu"))
        self.chat = RecordedStreaming(folder.config, parts.processor.tokenizer, policy)
        self.chat.rope = parts.executor.speech_rope
        self.session = parts.executor.open_session(file, seed=0)
        self.media = self._load_media()
        self.tags: list[int] = []

    @property
    def has_speech(self) -> bool:
        return any("tts_tokens" in turn for turn in self.turns)

    def run(self) -> None:
        self.parts.llm_log.clear()
        if self.has_speech and self.parts.executor.vocoder is not None:
            self.session.speech.vocoder = recorded_voice(self.folder, self.parts.executor.vocoder)
        for number, turn in enumerate(self.turns):
            self._run_turn(number, turn)
        compare_feeds(self.report, self.file, self.want, self.parts, self.tags)
        compare_cache(self.report, self.file, "final_kv", self.session.kv, self.want)
        self.session.close()

    def _run_turn(self, number: int, turn: dict[str, Any]) -> None:
        name = f"{self.file}_meta/turn{number}"
        for index, given in enumerate(turn["prefills"]):
            prompt, kv = self._prefill(given)
            self.report.exact(f"{name}/prefill{index}/prompt", prompt, given["prompt"])
            self.report.exact(f"{name}/prefill{index}/kv", kv, given["kv"])
        self._tag(10 * number)
        self.parts.tts_log.clear()
        first_call = len(self.parts.llm_log.hidden)
        chunks, result = self._generate(turn)
        self._tag(10 * number + 1)
        self.report.exact(f"{name}/tokens", list(result.ids), turn["tokens"])
        self.report.exact(f"{name}/decoded", result.text, turn["decoded"])
        self.report.exact(
            f"{name}/kv_after_generate", self.session.kv.length, turn["kv_after_generate"]
        )
        rounds = [
            {"length": each.length, "type": each.role, "round": each.number}
            for each in self.session.window.rounds
        ]
        self.report.exact(f"{name}/rounds", rounds, turn["rounds"])
        texts = "".join(turn["texts"] if self.has_speech else turn["streamed_text"])
        self.report.exact(f"{name}/streamed_text", "".join(p.text for p in chunks), texts)
        self._compare_hidden(number, turn, self.parts.llm_log.hidden[first_call:])
        if self.has_speech:
            self._compare_speech(number, turn, chunks)

    def _prefill(self, given: dict[str, Any]) -> tuple[str, int]:
        processor = self.parts.processor
        if "role" in given:
            match = PIECE_FRAME.match(given["prompt"])
            assert match is not None, given["prompt"]
            messages = [Message(match[1], self._content(match[2]))]
            piece = PrefillOptions(omni_mode=False, max_slice_nums=1)
            prompt = render_message(processor, self.session, messages[0], piece)
            steps = self.chat.prefill(self.session, prompt, piece)
        else:
            messages = [
                Message(role, self._content(text))
                for role, text in TEMPLATE_MESSAGE.findall(given["prompt"])
            ]
            options = history_options(processor, messages, given["kv"])
            steps = self.chat.prefill_history(
                self.session, render_history(processor, messages, options)
            )
        self.chat.counts = [clip_count(message) for message in messages]
        return run_alone(steps, self.parts.executor), self.session.kv.length

    def _generate(self, turn: dict[str, Any]) -> tuple[list[ReplyChunk], Any]:
        settings = GenerationSettings(
            max_new_tokens=GROUP_TOKENS * len(turn["token_chunks"]),
            do_sample=False,
            generate_audio=self.has_speech,
            speech=SpeechSampling(max_codes_per_chunk=MOST_CODES, is_greedy=True),
        )
        return collect(self.chat.generate(self.session, settings), self.parts.executor)

    def _compare_hidden(self, number: int, turn: dict[str, Any], calls: list[Tensor]) -> None:
        """The prefix is the first call; each later call fed one token."""
        fed = torch.cat(calls[1:]) if len(calls) > 1 else torch.zeros(0)
        start = 0
        for index in range(len(turn["token_chunks"])):
            key = f"turn{number}_llm_hidden_chunk{index}"
            if key not in self.want:
                continue
            stop = start + len(self.want[key])
            self.report.close(f"{self.file}/{key}", fed[start:stop], self.want[key], **HIDDEN)
            start = stop

    def _compare_speech(self, number: int, turn: dict[str, Any], chunks: list[ReplyChunk]) -> None:
        log, want, prefix = self.parts.tts_log, self.want, f"turn{number}"
        calls = turn["tts_calls"]
        got = [
            {"q": len(rows), "kv": len(rows) + before}
            for rows, before in zip(log.rows, _call_starts(log), strict=True)
        ]
        name = f"{self.file}_meta/{prefix}/tts_calls"
        self.report.exact(name, got, [{"q": c["q"], "kv": c["kv"]} for c in calls])
        starts = [position for rows, position in zip(log.rows, _positions(log), strict=True)]
        self.report.exact(f"{name}/pos0", starts, [c["pos0"] for c in calls])
        conditions = [rows for rows in log.rows if len(rows) > 1]
        for index, rows in enumerate(conditions):
            key = f"{prefix}_tts_condition{index}"
            self.report.close(f"{self.file}/{key}", rows, want[key], **HIDDEN)
        key = f"{prefix}_tts_hidden"
        hidden = torch.stack([each[-1] for each in log.hidden])
        self.report.close(f"{self.file}/{key}", hidden, want[key], **HIDDEN)
        waves = [chunk.waveform for chunk in chunks if chunk.waveform is not None]
        lengths = [len(wave) for wave in waves]
        self.report.exact(f"{self.file}_meta/{prefix}/wav_lengths", lengths, turn["wav_lengths"])
        for index, wave in enumerate(waves):
            key = f"{prefix}_wav{index}"
            self.report.close(f"{self.file}/{key}", wave, want[key], **WAVE)

    def _content(self, text: str) -> list[Part]:
        parts: list[Part] = []
        for line in text.split("\n"):
            if line in (IMAGE_MARKER, AUDIO_MARKER):
                parts.append(next(self.media))
            else:
                parts.append(line)
        return parts

    def _load_media(self) -> Iterator[Part]:
        for name in MEDIA[self.file]:
            yield self.folder.wav(name) if name.endswith(".wav") else self.folder.image(name)

    def _tag(self, tag: int) -> None:
        fed = sum(len(rows) for rows in self.parts.llm_log.rows)
        self.tags += [tag] * (fed - len(self.tags))


def history_options(
    processor: MiniCPMOProcessor, messages: Sequence[Message], length: int
) -> PrefillOptions:
    """Return options with the lowest slice limit that gives the recorded length of a history."""
    choices = [
        PrefillOptions(omni_mode=False, max_slice_nums=limit) for limit in range(1, MOST_SLICES + 1)
    ]
    fitting = (each for each in choices if len(processor.render(messages, each).ids) == length)
    return next(fitting, choices[0])


def _call_starts(log: whole_model.DecoderLog) -> list[int]:
    return _first_of_calls(log, log.cache_lengths)


def _positions(log: whole_model.DecoderLog) -> list[int]:
    return _first_of_calls(log, log.positions)


def _first_of_calls(log: whole_model.DecoderLog, per_row: list[int]) -> list[int]:
    lengths = [len(rows) for rows in log.rows]
    firsts = np.cumsum([0, *lengths[:-1]])
    return [per_row[int(first)] for first in firsts]
