"""Compares the language model: one prefill, its KV cache, and the cache after dropping a range."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from MiniCPMO45.engine.kv_cache import FedRows, KvHandle, KvStore, PackedRows, Rows
from MiniCPMO45.model.transformer import CausalLM
from tests.goldens.folder import GoldenFolder
from tests.goldens.report import Report

FILES = ("llm_prefill", "llm_cache_drop")

HIDDEN = {"rtol_of_max": 1e-4}
LOGITS = {"atol": 1e-3, "rtol": 1e-4}
TABLES = {"model.embed_tokens.weight", "lm_head.weight"}  # omitted from a compact folder
FIRST_DROPPED, DROPPED = 4, 6  # source: the README of the recordings


def build(folder: GoldenFolder) -> tuple[CausalLM, KvStore]:
    """The checkpoint's language model in float32 and a store for it."""
    config = folder.config
    with torch.device("meta"):
        llm = CausalLM(config)
    absent = llm.load_state_dict(folder.weights("llm."), assign=True, strict=False)
    assert set(absent.missing_keys) <= TABLES and not absent.unexpected_keys, absent
    device = torch.device("cpu")
    return llm, KvStore(config, device=device, dtype=torch.float32, pages=1, can_grow=True)


def run_layers(llm: CausalLM, kv: KvHandle, rows: Tensor) -> list[Tensor]:
    """Hidden states: the input, each layer's output, with the final norm on the last one."""
    count = rows.shape[0]
    kv.reserve(kv.length + count)
    packed = PackedRows(kv.store, count, rows_per_tile=count)
    packed.load([FedRows(kv, Rows((0,) * count))])
    states = [rows]
    for index, layer in enumerate(llm.model.layers):
        states.append(layer(states[-1], packed, index))
    kv.advance(count)
    states[-1] = llm.model.norm(states[-1])
    return states


@torch.inference_mode()
def compare(folder: GoldenFolder, report: Report) -> None:
    """Compare `llm_prefill` and, from its cache, `llm_cache_drop`."""
    llm, store = build(folder)
    kv = store.open()
    want = folder.tensors("llm_prefill")
    report.given("llm_prefill/input_ids", "llm_prefill/probe_ids")
    rows = torch.from_numpy(want["inputs_embeds"])
    if llm.model.embed_tokens.weight.is_meta:
        report.given("llm_prefill/inputs_embeds")
    else:
        ids = torch.from_numpy(want["input_ids"]).long()
        embedded = llm.model.embed_tokens(ids).numpy()
        report.exact("llm_prefill/inputs_embeds", embedded, want["inputs_embeds"])
    states = run_layers(llm, kv, rows)
    for index, state in enumerate(states):
        report.close(f"llm_prefill/hidden_{index}", state, want[f"hidden_{index}"], **HIDDEN)
    if not llm.lm_head.weight.is_meta:
        _compare_logits(report, llm.lm_head(states[-1]), want)
    compare_cache(report, "llm_prefill", "kv", kv, want)
    if folder.has("llm_cache_drop"):
        _compare_drop(folder, report, llm, kv)


def _compare_logits(report: Report, logits: Tensor, want: dict[str, np.ndarray]) -> None:
    probe = torch.from_numpy(want["probe_ids"]).long()
    report.close("llm_prefill/last_logits_full", logits[-1], want["last_logits_full"], **LOGITS)
    report.close("llm_prefill/logits_probe", logits[:, probe], want["logits_probe"], **LOGITS)
    report.exact("llm_prefill/logits_argmax", logits.argmax(-1).numpy(), want["logits_argmax"])
    report.close(
        "llm_prefill/logits_logsumexp", logits.logsumexp(-1), want["logits_logsumexp"], **LOGITS
    )


def _compare_drop(folder: GoldenFolder, report: Report, llm: CausalLM, kv: KvHandle) -> None:
    want = folder.tensors("llm_cache_drop")
    kv.drop(FIRST_DROPPED, FIRST_DROPPED + DROPPED)
    compare_cache(report, "llm_cache_drop", "after_kv", kv, want)
    report.given("llm_cache_drop/next_input_id")
    if llm.lm_head.weight.is_meta:
        return
    ids = torch.from_numpy(want["next_input_id"]).long()
    hidden = run_layers(llm, kv, llm.model.embed_tokens(ids))[-1][-1]
    report.close("llm_cache_drop/next_hidden", hidden, want["next_hidden"], **HIDDEN)
    probe = torch.from_numpy(folder.tensors("llm_prefill")["probe_ids"]).long()
    report.close(
        "llm_cache_drop/next_logits_probe",
        llm.lm_head(hidden)[probe],
        want["next_logits_probe"],
        **LOGITS,
    )


def compare_cache(
    report: Report, file: str, prefix: str, kv: KvHandle, want: dict[str, np.ndarray]
) -> None:
    """Compare every layer's keys and values with `file/prefix_key_i`, `file/prefix_value_i`."""
    held = kv.rows(0, kv.length)
    for layer in range(held.keys.shape[0]):
        for name, got in (("key", held.keys), ("value", held.values)):
            key = f"{prefix}_{name}_{layer}"
            report.close(f"{file}/{key}", got[layer], want[key], rtol_of_max=1e-4)
