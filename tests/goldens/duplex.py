"""Compares duplex conversations: every input, decision, text, speech code and sample."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image

from core.engine.passes import run_alone
from MiniCPMO45.engine.session import Session
from MiniCPMO45.modes.duplex import UnitResult
from MiniCPMO45.processing.pictures import slice_image
from MiniCPMO45.processing.prompts import duplex_prefix, duplex_suffix
from MiniCPMO45.settings import DuplexSettings, WindowMode, WindowSettings
from tests.goldens import whole_model
from tests.goldens.folder import GoldenFolder
from tests.goldens.llm import compare_cache
from tests.goldens.recorded_duplex import DecisionLog, RecordedDuplex
from tests.goldens.report import Report
from tests.goldens.resizing import compare_in_either_order
from tests.goldens.whole_model import HIDDEN, LOGITS, WholeModel, compare_feeds, recorded_voice

FILES = (
    "duplex_audio",
    "duplex_force_listen",
    "duplex_omni",
    "duplex_vision_sliced",
    "duplex_window_basic",
    "duplex_window_context",
)

SPEECH_INPUT, NOISE_INPUT = "speech_8s.wav", "chirp_noise_8s.wav"
INPUT_OF = {"duplex_audio": SPEECH_INPUT, "duplex_window_basic": SPEECH_INPUT}
SLICED_PICTURES = ("image_large.png", "frame_2.png")
MOST_SLICES = 64  # no recording asks for more per picture
PREPARE, PREFILL, GENERATE, FINALIZE = -1, 0, 1, 2  # values of `feed_tag`

WAVE = {"atol": 70.0, "min_correlation": 0.999}


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
        self.meta = folder.meta(f"{file}_meta")
        self.session: Session = parts.executor.open_session(file, seed=0)
        self.decided = DecisionLog(parts.processor.tokenizer.special)
        self.duplex = RecordedDuplex(
            folder.config,
            parts.processor.tokenizer,
            self.decided,
            _settings(self.meta, has_speech=any("tts" in u for u in self.meta["units"])),
        )
        self.tags: list[int] = []

    def run(self) -> None:
        self.parts.llm_log.clear()
        self._prepare()
        for unit, inputs in zip(self.meta["units"], self._inputs(), strict=True):
            self._run_unit(unit, *inputs)
        compare_feeds(self.report, self.file, self.want, self.parts, self.tags)
        compare_cache(self.report, self.file, "final_kv", self.session.kv, self.want)
        self.session.close()

    def _prepare(self) -> None:
        vocoder = None
        if self.duplex.defaults.generate_audio and self.parts.executor.vocoder is not None:
            vocoder = recorded_voice(self.folder, self.parts.executor.vocoder)
        before, after = self.meta["system_prompt"].split("<|audio_start|>")
        prefix = before + "<|audio_start|>"
        self.report.exact(f"{self.file}_meta/prefix", duplex_prefix(), prefix)
        self._do(
            self.duplex.feed_prompt(
                self.session,
                prefix,
                duplex_suffix(),
                voice_sample=self.folder.wav("ref_voice.wav"),
                vocoder=vocoder,
            ),
            PREPARE,
        )
        self.report.exact(
            f"{self.file}_meta/kv_after_prepare",
            self.session.kv.length,
            self.meta["kv_after_prepare"],
        )

    def _inputs(self) -> Iterator[tuple[np.ndarray | None, list[Image.Image]]]:
        count = len(self.meta["units"])
        if self.file == "duplex_vision_sliced":
            for name in SLICED_PICTURES[:count]:
                yield None, [self.folder.image(name)]
            return
        audio = self.folder.wav(INPUT_OF.get(self.file, NOISE_INPUT))
        for unit in range(count):
            pictures = self.file == "duplex_omni"
            frames = [self.folder.image(f"frame_{unit}.png")] if pictures else []
            yield audio[unit * 16_000 : (unit + 1) * 16_000], frames

    def _run_unit(
        self, unit: dict[str, Any], audio: np.ndarray | None, frames: list[Image.Image]
    ) -> None:
        tag, session = 10 * unit["unit"], self.session
        limit = self._slice_limit(frames, unit["prefill_layout"])
        self.decided.clear()
        self.parts.tts_log.clear()
        prefilled = self._do(
            self.duplex.streaming_prefill(session, audio, frames, limit), tag + PREFILL
        )
        lengths = [session.kv.length]
        layout_rows = sum(1 if isinstance(e, int) else e[1] for e in unit["prefill_layout"])
        result = self._do(
            self.duplex.streaming_generate(session, unit["force_listen"]), tag + GENERATE
        )
        pending = session.turn.pending
        lengths.append(session.kv.length)
        self._do(self.duplex.close_unit(session), tag + FINALIZE)
        lengths.append(session.kv.length)
        kept = session.window.units
        first = unit["unit"] + 1 - len(kept)
        carried = session.window.carried_ids
        marked = session.window.marker_ids + carried if carried else ()
        want_fields = ("kv_after_prefill", "kv_after_generate", "kv_after_finalize")
        got = dict(zip(want_fields, lengths, strict=True)) | {
            "is_listen": result.is_listen,
            "text": result.text,
            "end_of_turn": result.end_of_turn,
            "decided_ids": self.decided.ids,
            "spoken_ids": list(pending.ids) if pending else None,
            "terminator_id": pending.terminator if pending else None,
            "current_turn_ended": session.turn.has_ended,
            "n_tts_tokens": result.n_tts_tokens,
            "previous_token_ids": list(marked),
            "preserve_len": session.window.preserved,
            "unit_history": [[first + at, each.length] for at, each in enumerate(kept)],
        }
        name = f"{self.file}_meta/unit{unit['unit']}"
        self.report.exact(f"{name}/prefill", (prefilled.success, layout_rows > 0), (True, True))
        for key, value in got.items():
            self.report.exact(f"{name}/{key}", value, unit[key])
        self._compare_tensors(f"unit{unit['unit']}", unit, result)

    def _compare_tensors(self, prefix: str, unit: dict[str, Any], result: UnitResult) -> None:
        want, file = self.want, self.file
        top = torch.from_numpy(want[f"{prefix}_step_top_ids"]).long()
        raw = self.decided.logits
        stacked = torch.stack(raw) if raw else torch.zeros(0, 1)
        self.report.exact(f"{file}/{prefix}_step_top_ids", len(raw), len(top))
        got = stacked.gather(1, top) if len(raw) == len(top) else stacked
        self.report.close(
            f"{file}/{prefix}_step_top_logits", got, want[f"{prefix}_step_top_logits"], **LOGITS
        )
        if f"{prefix}_tts_tokens" not in want:
            return
        log = self.parts.tts_log
        self.report.close(
            f"{file}/{prefix}_tts_condition", log.rows[0], want[f"{prefix}_tts_condition"], **HIDDEN
        )
        hidden = torch.stack([each[-1] for each in log.hidden])
        self.report.close(
            f"{file}/{prefix}_tts_hidden", hidden, want[f"{prefix}_tts_hidden"], **HIDDEN
        )
        fed = self._codes(len(want[f"{prefix}_tts_tokens"]))
        self.report.exact(f"{file}/{prefix}_tts_tokens", fed, want[f"{prefix}_tts_tokens"].tolist())
        wave = result.audio_waveform
        assert wave is not None
        self.report.close(
            f"{file}/{prefix}_wav_int16", wave * 32768.0, want[f"{prefix}_wav_int16"], **WAVE
        )

    def _slice_limit(self, frames: list[Image.Image], layout: list[Any]) -> int:
        """Return the lowest slice limit that gives the recorded number of slices."""
        fed = sum(isinstance(each, list) and each[0] == "img" for each in layout)
        cutting = self.folder.config.slice_config
        for limit in range(1, MOST_SLICES):
            if sum(len(slice_image(each, limit, cutting).slices) for each in frames) == fed:
                return limit
        return MOST_SLICES

    def _codes(self, count: int) -> list[int]:
        """Return the unit's speech codes, from the rows fed back."""
        rows, known = self.parts.tts_log.rows[1:], self.parts.model.tts.emb_code[0].weight
        fed = torch.cat(rows) if rows else torch.zeros(0)
        return [int((known == row).all(-1).nonzero()[0]) for row in fed][:count]

    def _do(self, steps: Any, tag: int) -> Any:
        result = run_alone(steps, self.parts.executor)
        fed = sum(len(rows) for rows in self.parts.llm_log.rows)
        self.tags += [tag] * (fed - len(self.tags))
        return result


def _settings(meta: dict[str, Any], *, has_speech: bool) -> DuplexSettings:
    window, given = WindowSettings(), meta["window"]
    if given is not None:
        window = WindowSettings(
            mode=WindowMode(given["sliding_window_mode"]),
            basic_high_tokens=given.get("basic_window_high_tokens", window.basic_high_tokens),
            basic_low_tokens=given.get("basic_window_low_tokens", window.basic_low_tokens),
            context_max_units=given.get("context_max_units", window.context_max_units),
            context_previous_max_tokens=given.get(
                "context_previous_max_tokens", window.context_previous_max_tokens
            ),
        )
    options = meta["generate_kwargs"]
    return DuplexSettings(
        generate_audio=has_speech,
        force_listen_count=0,
        decode_mode=options["decode_mode"],
        text_repetition_penalty=options["text_repetition_penalty"],
        text_repetition_window_size=options["text_repetition_window_size"],
        length_penalty=options["length_penalty"],
        listen_top_k=options["listen_top_k"],
        listen_prob_scale=options["listen_prob_scale"],
        window=window,
    )
