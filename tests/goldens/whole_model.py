"""The whole tiny model with the defects of the reference, and logs of its decoders' inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from MiniCPMO45.engine.kv_cache import PackedRows
from MiniCPMO45.model.transformer import Decoder
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.processing.processor import MiniCPMOProcessor
from MiniCPMO45.settings import LoadOptions
from MiniCPMO45.token2wav.load import load_token2wav
from MiniCPMO45.token2wav.vocoder import Token2Wav
from MiniCPMO45.token2wav.vocoder_state import SpeechStream, VoicePrompt
from tests.goldens.folder import GoldenFolder
from tests.goldens.recorded_model import GappedRope, RecordedExecutor
from tests.goldens.recorded_vocoder import RecordedVocoder
from tests.goldens.report import Report

HIDDEN = {"rtol_of_max": 1e-4}
LOGITS = {"atol": 1e-3, "rtol": 1e-4}
SERVED_STEPS = 5  # ODE steps of the chat and duplex recordings; source: their README


@dataclass
class DecoderLog:
    """Every input row of one decoder, in order.

    Attributes:
        rope: the rope with position gaps, if any.
    """

    rope: GappedRope | None = None
    rows: list[Tensor] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    cache_lengths: list[int] = field(default_factory=list)

    def watch(self, decoder: Decoder) -> None:
        """Record every later pass through `decoder`, one conversation at a time."""
        decoder.register_forward_pre_hook(self._before)
        decoder.register_forward_hook(self._after)

    def clear(self) -> None:
        self.rows, self.hidden, self.positions, self.cache_lengths = [], [], [], []

    def _before(self, module: nn.Module, args: tuple[Tensor, PackedRows]) -> None:
        rows, batch = args
        places = batch.map.positions
        self.positions += (self.rope.place(places) if self.rope else places).tolist()
        self.cache_lengths += places.tolist()
        self.rows.append(rows.clone())

    def _after(self, module: nn.Module, args: Any, hidden: Tensor) -> None:
        self.hidden.append(hidden.clone())


@dataclass(frozen=True)
class WholeModel:
    """The reference's model on the tiny checkpoint, and its logs."""

    model: MiniCPMOForConditionalGeneration
    executor: RecordedExecutor
    processor: MiniCPMOProcessor
    llm_log: DecoderLog
    tts_log: DecoderLog


def build(folder: GoldenFolder) -> WholeModel:
    """Load everything in float32, with the defects that recordings show."""
    with torch.device("meta"):
        model = MiniCPMOForConditionalGeneration(folder.config)
    model.load_state_dict(folder.weights(""), assign=True)
    model.requires_grad_(False)
    vocoder = None
    if (folder.path / "token2wav_weights").is_dir():
        options = LoadOptions(flow_steps=SERVED_STEPS)
        loaded = load_token2wav(folder.path / "token2wav_weights", options)
        vocoder = RecordedVocoder(loaded.flow, loaded.hift, options)
    executor = RecordedExecutor(model, vocoder)
    llm_log, tts_log = DecoderLog(), DecoderLog(executor.speech_rope)
    llm_log.watch(model.llm.model)
    tts_log.watch(model.tts.model)
    processor = MiniCPMOProcessor.from_pretrained(folder.checkpoint)
    return WholeModel(model, executor, processor, llm_log, tts_log)


def recorded_voice(folder: GoldenFolder, vocoder: Token2Wav) -> SpeechStream:
    """Return the voice of the recordings: fixed prompt and noise, silent excitation."""
    given = folder.tensors("token2wav_overlap")
    voice = VoicePrompt(
        torch.from_numpy(given["prompt_tokens"]).long(),
        torch.from_numpy(given["prompt_speaker"]),
        torch.from_numpy(given["prompt_mel"]),
    )
    noise = torch.from_numpy(given["initial_noise"])
    return vocoder.new_state(vocoder.set_up(voice, noise=noise))


def compare_feeds(
    report: Report, file: str, want: dict[str, np.ndarray], parts: WholeModel, tags: list[int]
) -> None:
    """Compare every recorded language-model call with the rows of our calls.

    The reference feeds a unit in several calls and we in one; rows, positions and the states at
    each recorded call's last row are the same.

    Args:
        report: takes the verdicts.
        file: name of the golden file.
        want: its tensors.
        parts: the model that ran.
        tags: purpose of each of our rows, as in `feed_tag`.
    """
    log = parts.llm_log
    rows, hidden = torch.cat(log.rows), torch.cat(log.hidden)
    report.close(f"{file}/feed_embeds", rows, want["feed_embeds"], **HIDDEN)
    lengths = want["feed_lens"]
    report.exact(f"{file}/feed_lens", [int(lengths.sum())], [len(rows)])
    ends = np.cumsum(lengths)
    starts = ends - lengths
    report.exact(f"{file}/feed_kv_before", _at(log.cache_lengths, starts), want["feed_kv_before"])
    report.exact(f"{file}/feed_pos_start", _at(log.positions, starts), want["feed_pos_start"])
    report.exact(f"{file}/feed_tag", _at(tags, starts), want["feed_tag"])
    inside = ends[ends <= len(rows)] - 1
    last = hidden[torch.from_numpy(inside)]
    if "feed_last_hidden" in want:
        report.close(f"{file}/feed_last_hidden", last, want["feed_last_hidden"], **HIDDEN)
    with torch.inference_mode():
        logits = parts.model.llm.lm_head(last)
    top = torch.from_numpy(want["feed_last_top_ids"]).long()
    report.exact(f"{file}/feed_last_top_ids", _same_top(logits, top), np.ones(len(top), dtype=bool))
    report.close(
        f"{file}/feed_last_top_logits",
        logits.gather(1, top),
        want["feed_last_top_logits"],
        **LOGITS,
    )
    probe = torch.from_numpy(want["probe_ids"]).long()
    report.given(f"{file}/probe_ids")
    report.close(
        f"{file}/feed_last_probe_logits", logits[:, probe], want["feed_last_probe_logits"], **LOGITS
    )
    report.close(
        f"{file}/feed_last_logsumexp", logits.logsumexp(-1), want["feed_last_logsumexp"], **LOGITS
    )


def _at(values: list[int], index: np.ndarray) -> np.ndarray:
    return np.array([values[i] if i < len(values) else -1 for i in index], dtype=np.int32)


def _same_top(logits: Tensor, recorded: Tensor) -> np.ndarray:
    """Return whether each row's largest logits are those of the recorded ids, within tolerance."""
    count = recorded.shape[1]
    border = logits.topk(count).values[:, -1:]
    at_recorded = logits.gather(1, recorded)
    slack = LOGITS["atol"] + LOGITS["rtol"] * border.abs()
    return (at_recorded >= border - slack).all(-1).numpy()
