"""Compares tokenizer, chat template, placeholders and control tokens with `tokenizer_cases`."""

from __future__ import annotations

from typing import Any

from PIL import Image

from MiniCPMO45.processing.mel import SAMPLE_RATE_HZ, embedding_count
from MiniCPMO45.processing.processor import MiniCPMOProcessor, PromptOptions
from MiniCPMO45.processing.prompts import audio_placeholder
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast
from tests.goldens.folder import GoldenFolder
from tests.goldens.report import Report

FILES = ("tokenizer_cases",)


def compare(folder: GoldenFolder, report: Report) -> None:
    """Compare every recorded case.

    Args:
        folder: skipped without `tokenizer_cases.json` or without a tokenizer in the checkpoint.
        report: receives the verdicts.
    """
    has_cases = (folder.path / "tokenizer_cases.json").is_file()
    if not has_cases or not (folder.checkpoint / "tokenizer_config.json").is_file():
        return
    recorded = folder.meta("tokenizer_cases")
    processor = MiniCPMOProcessor.from_pretrained(folder.checkpoint)
    _compare_texts(recorded["cases"], processor.tokenizer, report)
    _compare_templates(recorded["chat_templates"], processor.tokenizer, report)
    _compare_vocabulary(recorded, processor.tokenizer, report)
    _compare_audio(recorded, folder, processor.tokenizer, report)
    _compare_images(recorded["image_placeholders"], processor, report)


def _compare_texts(cases: list[Any], tokenizer: MiniCPMOTokenizerFast, report: Report) -> None:
    for i, case in enumerate(cases):
        name = f"tokenizer_cases/cases/{i}"
        report.exact(f"{name}/ids", tokenizer.encode(case["text"]), case["ids"])
        report.exact(f"{name}/decoded", tokenizer.decode(case["ids"]), case["decoded"])
        report.exact(
            f"{name}/decoded_skip_special",
            tokenizer.decode(case["ids"], skip_special_tokens=True),
            case["decoded_skip_special"],
        )


def _compare_templates(cases: list[Any], tokenizer: MiniCPMOTokenizerFast, report: Report) -> None:
    for i, case in enumerate(cases):
        text = tokenizer.render_chat(
            case["messages"],
            add_generation_prompt=case["add_generation_prompt"],
            enable_thinking=case["enable_thinking"],
            use_tts_template=case["use_tts_template"],
        )
        name = f"tokenizer_cases/chat_templates/{i}"
        report.exact(f"{name}/prompt", text, case["prompt"])
        report.exact(f"{name}/ids", tokenizer.encode(text), case["ids"])


def _compare_vocabulary(
    recorded: dict[str, Any], tokenizer: MiniCPMOTokenizerFast, report: Report
) -> None:
    for token, expected in recorded["special_ids"].items():
        report.exact(
            f"tokenizer_cases/special_ids/{token}", tokenizer.convert_tokens_to_ids(token), expected
        )
    bad = tokenizer.special.bad_token_ids
    for name, value in (
        ("vocab_size", len(tokenizer)),
        ("n_bad_token_ids", len(bad)),
        ("bad_token_ids_sum", sum(bad)),
    ):
        report.exact(f"tokenizer_cases/{name}", value, recorded[name])


def _compare_audio(
    recorded: dict[str, Any],
    folder: GoldenFolder,
    tokenizer: MiniCPMOTokenizerFast,
    report: Report,
) -> None:
    per_chunk = embedding_count(int(folder.config.audio_chunk_length * SAMPLE_RATE_HZ))
    for n_samples, text in recorded["audio_placeholders"].items():
        whole = audio_placeholder(embedding_count(int(n_samples)), tokenizer.special)
        report.exact(
            f"tokenizer_cases/audio_placeholders/{n_samples}", tokenizer.decode(whole), text
        )
    for n_samples, text in recorded["audio_placeholders_chunked"].items():
        count = embedding_count(int(n_samples))
        chunks = [
            audio_placeholder(min(per_chunk, count - done), tokenizer.special)
            for done in range(0, count, per_chunk)
        ]
        report.exact(
            f"tokenizer_cases/audio_placeholders_chunked/{n_samples}",
            tokenizer.decode([each for chunk in chunks for each in chunk]),
            text,
        )


def _compare_images(cases: list[Any], processor: MiniCPMOProcessor, report: Report) -> None:
    for i, case in enumerate(cases):
        prompt = processor.render_content(
            [Image.new("RGB", tuple(case["size"]))],
            lambda text: text,
            PromptOptions(max_slice_nums=case["max_slice_nums"], use_image_id=case["use_image_id"]),
        )
        report.exact(
            f"tokenizer_cases/image_placeholders/{i}/text",
            processor.tokenizer.decode(prompt.ids),
            case["text"],
        )
