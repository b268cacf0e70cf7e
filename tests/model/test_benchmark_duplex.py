"""The duplex benchmark on the toy checkpoint: all its measurements are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from benchmarks import duplex
from benchmarks.summary import STAGES

ASKED: dict[str, Any] = {
    "device": "cpu",
    "scenario": ["omni:700", "audio:700", "early:700", "ahead:700", "pages:700"],
    "units": 4,
    "warm_up": 0,
    "text_tokens": 3,
    "prepares": 1,
    "load": ["audio:half:1,3:2", "early:all:1:2"],
}
TOTALS = {"first_audio", "answer", "finalize", "unit"}
USUAL = set(STAGES) - {"prefetch"}


measuring = pytest.mark.matrix
"""For what needs a whole run of the benchmark."""


@pytest.fixture(scope="module")
def measured(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("benchmark") / "all.json"
    duplex.main(checkpoint=str(checkpoint), json_path=path, **ASKED)
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf8"))
    return record


def scenario(measured: dict[str, Any], kind: duplex.Kind) -> dict[str, Any]:
    [found] = [each for each in measured["scenarios"] if each["name"] == f"{kind}:700"]
    return found


@measuring
def test_every_stage_of_every_kind_is_timed(measured: dict[str, Any]) -> None:
    stages = scenario(measured, duplex.Kind.OMNI)["summary_ms"]
    assert list(stages) == ["listen", "speak", "speak, end"]
    assert set(stages["speak"]) == USUAL
    spoken = {"decode", "tts", "token2wav", "first_audio"}
    assert set(stages["listen"]) == USUAL - spoken
    assert set(scenario(measured, duplex.Kind.AUDIO)["summary_ms"]["listen"]) == USUAL - {
        *spoken,
        "encode_vision",
    }


@measuring
def test_stages_add_up_to_the_answer(measured: dict[str, Any]) -> None:
    for unit in scenario(measured, duplex.Kind.OMNI)["units"]:
        stages = unit["stages_ms"]
        parts = sum(ms for stage, ms in stages.items() if stage not in TOTALS)
        assert parts == pytest.approx(stages["answer"])
        assert stages["answer"] + stages["finalize"] == pytest.approx(stages["unit"])


@measuring
def test_floors_add_up_and_belong_to_stages(measured: dict[str, Any]) -> None:
    for each in measured["scenarios"]:
        for kind, floors in each["floors_ms"].items():
            assert floors["answer"] == pytest.approx(
                sum(ms for stage, ms in floors.items() if stage != "answer")
            )
            assert set(floors) <= set(each["summary_ms"][kind]) | {"encode_vision"}


@measuring
def test_early_audio_precedes_the_answer(measured: dict[str, Any]) -> None:
    early, pages, whole = (
        [unit["stages_ms"] for unit in scenario(measured, kind)["units"] if unit["samples"]]
        for kind in (duplex.Kind.EARLY, duplex.Kind.PAGES, duplex.Kind.OMNI)
    )
    assert early and pages
    assert all(stages["first_audio"] < stages["answer"] for stages in [*early, *pages])
    assert all(stages["first_audio"] == pytest.approx(stages["answer"]) for stages in whole)


@measuring
@pytest.mark.parametrize("kind", [duplex.Kind.AHEAD, duplex.Kind.PAGES])
def test_prefetch_is_not_part_of_the_answer(measured: dict[str, Any], kind: duplex.Kind) -> None:
    record = scenario(measured, kind)
    for unit in record["units"]:
        stages = unit["stages_ms"]
        assert stages["prefetch"] > 0 and "encode_vision" not in stages
        parts = [ms for stage, ms in stages.items() if stage not in {*TOTALS, "prefetch"}]
        assert sum(parts) == pytest.approx(stages["answer"])
    assert all(floors["encode_vision"] == 0 for floors in record["floors_ms"].values())


@measuring
def test_cache_length_follows_the_option(measured: dict[str, Any]) -> None:
    lengths = [unit["cache_tokens"] for unit in scenario(measured, duplex.Kind.AUDIO)["units"]]
    assert all(abs(length - 700) < 600 for length in lengths)


@measuring
def test_preparation_and_concurrent_load_are_measured(measured: dict[str, Any]) -> None:
    assert {name: len(ms) for name, ms in measured["preparing_ms"].items()} == {
        "known voice": 1,
        "new voice": 1,
    }
    *loads, early = measured["loads"]
    assert [(each["sessions"], each["units"]) for each in loads] == [(1, 2), (3, 6)]
    assert all(each["name"] == "audio:half:1,3:2" for each in loads)
    assert all(each["first_audio_ms"] is None for each in loads)
    assert early["first_audio_ms"]["p50"] < early["latency_ms"]["p50"]


@measuring
def test_rates_and_options_are_recorded(measured: dict[str, Any]) -> None:
    assert set(measured["rates"]) == {"bytes_per_s", "flops_per_s", "vocoder_flops_per_s"}
    assert all(rate > 0 for rate in measured["rates"].values())
    assert measured["options"]["rig"]["device"] == "cpu"
    assert measured["options"]["scenarios"]["omni:700"]["units"] == 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"load": ["omni:half:3"]},
        {"load": ["all:omni:3:2"]},
        {"scenario": ["video"]},
        {"scenario": ["omni:1k"]},
    ],
)
def test_invalid_options_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(typer.BadParameter):
        duplex.main(checkpoint="nowhere", **(ASKED | wrong))
