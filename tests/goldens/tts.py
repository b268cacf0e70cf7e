"""Compares the speech decoder: conditions, logits, states and greedy codes of several calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.engine.passes import run_alone
from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.policies import CodeRule
from MiniCPMO45.engine.session import Session
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.modes.speech import CodeRun, condition
from tests.goldens.folder import GoldenFolder
from tests.goldens.llm import compare_cache
from tests.goldens.report import Report
from tests.goldens.whole_model import HIDDEN, LOGITS, DecoderLog

FILES = ("tts",)

TEMPERATURE, PENALTY = 0.8, 1.05
WHOLE_LEAST, WHOLE_MOST = 50, 70  # codes of the one-shot run; source: the README of the recordings
FIRST_LOGITS = 4  # steps whose full logits are recorded


def compare(folder: GoldenFolder, report: Report) -> None:
    _Replay(folder, report).run()


class _Replay:
    """Replays the recorded calls."""

    def __init__(self, folder: GoldenFolder, report: Report) -> None:
        self.report = report
        self.want = folder.tensors("tts")
        self.calls = folder.meta("tts_meta")
        with torch.device("meta"):
            self.model = MiniCPMOForConditionalGeneration(folder.config)
        self.model.load_state_dict(folder.weights(""), assign=True)
        self.model.requires_grad_(False)
        self.executor = Executor(self.model)
        self.log = DecoderLog()
        self.log.watch(self.model.tts.model)
        self.config = folder.config.tts_config

    def run(self) -> None:
        session = self.executor.open_session("tts", seed=0)
        for index, call in enumerate(self.calls):
            self._run_part(session, index, call)
        compare_cache(self.report, "tts", "final_kv", session.speech.kv, self.want)
        session.close()
        self._run_whole()

    def _draw(
        self, session: Session, name: str, least: int, most: int, *, is_text_end: bool
    ) -> CodeRun:
        ids = [int(i) for i in self.want[f"{name}_text_ids"]]
        hidden = torch.from_numpy(self.want[f"{name}_llm_hidden"])
        self.log.clear()
        run = CodeRun(
            session,
            condition(ids, hidden, self.config, is_text_end=is_text_end),
            CodeRule(TEMPERATURE, PENALTY, is_greedy=True),
            eos=self.config.speech_eos_id,
            first_row_id=self.config.num_text_tokens,
            most=most,
            least=least,
        )
        run_alone(run.finish(), self.executor)
        return run

    def _run_part(self, session: Session, index: int, call: dict[str, Any]) -> None:
        report, want, name = self.report, self.want, f"part{index}"
        report.given(f"tts/{name}_text_ids", f"tts/{name}_llm_hidden")
        meta = f"tts_meta/{name}"
        report.exact(f"{meta}/text_start_pos", session.speech.kv.length, call["text_start_pos"])
        least, most = call["min_new_tokens"], call["max_new_token"]
        run = self._draw(session, name, least, most, is_text_end=False)
        codes = run.codes[: most - 1]
        report.exact(f"tts/{name}_tokens", codes, want[f"{name}_tokens"].tolist())
        report.exact(f"{meta}/tokens", codes, call["tokens"])
        report.exact(f"{meta}/n_tokens", len(codes), call["n_tokens"])
        report.exact(f"{meta}/steps", len(self.log.hidden), call["steps"])
        report.exact(f"{meta}/kv_length_after", session.speech.kv.length, call["kv_length_after"])
        key = f"{name}_condition"
        report.close(f"tts/{key}", self.log.rows[0], want[key], **HIDDEN)
        hidden = torch.stack([rows[-1] for rows in self.log.hidden])
        report.close(f"tts/{name}_hidden", hidden, want[f"{name}_hidden"], **HIDDEN)
        self._compare_logits(name, hidden)

    def _compare_logits(self, name: str, hidden: Tensor) -> None:
        report, want = self.report, self.want
        logits = hidden @ self.executor._speech.head.T
        key = f"{name}_raw_logits_first{FIRST_LOGITS}"
        report.close(f"tts/{key}", logits[:FIRST_LOGITS], want[key], **LOGITS)
        top = torch.from_numpy(want[f"{name}_raw_top_ids"]).long()
        at_recorded = logits.gather(1, top)
        border = logits.topk(top.shape[1]).values[:, -1:]
        slack = LOGITS["atol"] + LOGITS["rtol"] * border.abs()
        is_top = (at_recorded >= border - slack).all(-1).numpy()
        report.exact(f"tts/{name}_raw_top_ids", is_top, np.ones(len(top), dtype=bool))
        key = f"{name}_raw_top_logits"
        report.close(f"tts/{key}", at_recorded, want[key], **LOGITS)

    def _run_whole(self) -> None:
        """Compare the one-shot run of the first part's text, with its end-of-text token."""
        if "whole_tokens" not in self.want:
            return
        session = self.executor.open_session("whole", seed=0)
        run = self._draw(session, "part0", WHOLE_LEAST, WHOLE_MOST, is_text_end=True)
        key = "whole_condition"
        self.report.close(f"tts/{key}", self.log.rows[0], self.want[key], **HIDDEN)
        codes = run.codes if run.has_ended else run.codes[: WHOLE_MOST - 1]
        self.report.exact("tts/whole_tokens", codes, self.want["whole_tokens"].tolist())
        session.close()
