"""Single conversations on one rig, with lower bounds of their stages."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.conversation import Conversation, Plan
from benchmarks.floors import Floors, measure_rates
from benchmarks.machine import waiter
from benchmarks.rig import Rig
from benchmarks.summary import Talk, by_kind

PROFILED_ROWS = 40


class Talks:
    """Runs conversations; `rates` are those of the device."""

    def __init__(self, rig: Rig) -> None:
        executor = rig.executor
        self.rates = measure_rates(executor.device, executor.dtype, waiter(executor.device))
        if executor.device.type == "cuda":
            torch.cuda.empty_cache()  # of what the rates were measured with
        self._rig = rig

    def rates_record(self) -> dict[str, float]:
        return asdict(self.rates)

    def hold(self, name: str, plan: Plan, profile: Path | None = None) -> Talk:
        """Run and measure one conversation.

        Args:
            name: of the conversation.
            plan: its plan.
            profile: file for a profile of one more round of its pattern.

        Raises:
            BenchmarkError: a unit did not follow the script.
            CacheFullError: the plan exceeds the model's context.
        """
        conversation = Conversation(self._rig, plan)
        try:
            units = tuple(conversation.measure())
            if profile is not None:
                write_profile(conversation, profile)
        finally:
            conversation.close()
        cached = sum(unit.cache_tokens for unit in units) / len(units)
        floors = Floors.of(self._rig, plan, self.rates, cached)
        tokens = plan.script.text_tokens
        least = {kind: floors.by_stage(kind, tokens) for kind in by_kind(units)}
        return Talk(name, units, least, plan.most_spread)


def write_profile(conversation: Conversation, path: Path) -> None:
    """Run one round of the pattern under the profiler and write the slowest operations."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    is_gpu = conversation.rig.executor.device.type == "cuda"
    if is_gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in conversation.plan.script.pattern:
            conversation.run_unit(-1)
    averages = profiler.key_averages()
    orders = ["self_cpu_time_total", *(["self_device_time_total"] if is_gpu else [])]
    tables = [averages.table(sort_by=order, row_limit=PROFILED_ROWS) for order in orders]
    path.write_text("\n\n".join(tables) + "\n", encoding="utf8")
