"""A long conversation in a real browser: `python -m benchmarks.pages_soak`."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from playwright.sync_api import CDPSession, Page, sync_playwright

from benchmarks import processes
from benchmarks.launched import HOST, LaunchedSystem, Plan, free_ports
from benchmarks.page_tap import METER, TAP
from benchmarks.relay import running
from benchmarks.summary import (
    BYTES_PER_MIB,
    MS_PER_S,
    Verdict,
    exit_unless_met,
    print_verdicts,
    write_json,
)
from config import PROJECT_ROOT
from core.audio import write_wav

PAGE = "/audio_duplex"
SETTINGS_KEY = "audio_duplex_settings"
KV_TOKENS = 40_960  # enough for 48 minutes of the fake's 14 tokens a second
SETTLING_S = 10.0  # gaps count from here on
SAMPLE_S = 60.0
LISTEN_S = 5.0  # between readings of the meter

AUDIBLE_RMS = 0.003  # of full scale; the fake's tone has 0.14
SHORTEST_GAP_MS = 20.0  # two blocks of the meter
TURN_PAUSE_MS = 1_200.0  # the fake listens for two seconds between turns; a gap is shorter

HISS_LEVEL = 0.0005  # quiet background noise, unlike a muted microphone
HISS_S = 10
MICROPHONE_RATE_HZ = 48_000

WARM_UP_SHARE = 0.25  # of the samples; caches and compiled code grow at first
MOST_GROWN_BYTES = 1 * BYTES_PER_MIB
MOST_GROWN_NODES = 100
START_LIMIT_MS = 60_000


@dataclass(frozen=True)
class PageMemory:
    """Memory of the page after a garbage collection."""

    minute: float  # since the start of the conversation
    heap_bytes: int  # objects of the page's scripts, including buffers
    nodes: int  # DOM nodes in memory
    gaps: int  # reported by the page so far


@dataclass
class GapMeter:
    """Finds gaps in the samples of the meter.

    Gaps are measured in audio time, since the clock jumps when the audio thread is delayed.
    """

    gaps_ms: list[tuple[float, float]] = field(default_factory=list)  # position, duration
    audible_ms: float = 0.0  # audible time in total
    _last_ms: float | None = None

    def add(self, blocks: Sequence[tuple[float, float]], block_ms: float = 10.0) -> None:
        for at_ms, rms in blocks:
            if rms <= AUDIBLE_RMS:
                continue
            self.audible_ms += block_ms
            if self._last_ms is not None:
                pause_ms = at_ms - self._last_ms
                if SHORTEST_GAP_MS < pause_ms < TURN_PAUSE_MS:
                    self.gaps_ms.append((at_ms, pause_ms))
            self._last_ms = at_ms + block_ms


class Reports:
    """Gaps reported by the page, in what it sends."""

    def __init__(self) -> None:
        self.received: list[tuple[float, dict[str, Any]]] = []  # Any: a message is JSON

    def __call__(self, text: str | bytes) -> None:
        if isinstance(text, str) and '"client_diagnostic"' in text:
            self.received.append((time.monotonic(), json.loads(text)["metrics"]))

    def gaps_after(self, since_s: float) -> list[dict[str, Any]]:
        return [
            gap
            for at_s, metrics in self.received
            if at_s >= since_s and metrics.get("event") == "gap"
            for gap in metrics["gaps"]
        ]


def plan() -> Plan:
    """Return the plan of the system: one worker that answers at once, without a window."""
    config: dict[str, dict[str, Any]] = {  # Any: a configuration file is JSON
        "duplex": {"max_kv_tokens": KV_TOKENS},
        "recording": {"enabled": False},
        "logging": {"level": "WARNING"},
    }
    return Plan(workers=1, backend="fake", config=config)


def find_chromium() -> str:
    """Return the path of Chromium; typer.BadParameter if it is not installed."""
    script = PROJECT_ROOT / "scripts" / "find_chromium.sh"
    done = subprocess.run([script, "--look-only"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise typer.BadParameter(done.stderr.strip())
    return done.stdout.strip()


def measure_memory(session: CDPSession, minute: float, gaps: int) -> PageMemory:
    session.send("HeapProfiler.collectGarbage")
    heap = session.send("Runtime.getHeapUsage")
    counters = session.send("Memory.getDOMCounters")
    heap_bytes = int(heap["usedSize"]) + int(heap.get("backingStorageSize", 0))
    return PageMemory(minute, heap_bytes, int(counters["nodes"]), gaps)


def begin(page: Page, url: str) -> None:
    settings = json.dumps({"max_kv_tokens": KV_TOKENS})
    page.context.add_init_script(f"window.__meter = {json.dumps(METER.read_text('utf8'))};")
    page.context.add_init_script(TAP.read_text("utf8"))
    page.context.add_init_script(
        f"localStorage.setItem({json.dumps(SETTINGS_KEY)}, {json.dumps(settings)})"
    )
    page.goto(url + PAGE)
    page.wait_for_selector("html[data-ready=true]", state="attached", timeout=START_LIMIT_MS)
    page.locator("[data-action=start]").click()
    page.wait_for_function(
        "(rms) => __tap.frames.some((frame) => frame.rms > rms)",
        arg=AUDIBLE_RMS,
        timeout=START_LIMIT_MS,
    )


def converse(
    page: Page, minutes: float, reports: Reports
) -> tuple[list[PageMemory], GapMeter, float]:
    """Return the memory each minute, the meter after the warm-up, and its start (monotonic)."""
    session = page.context.new_cdp_session(page)
    began_s = time.monotonic()
    settled_s = began_s + SETTLING_S
    end_s, sample_s = began_s + minutes * SAMPLE_S, began_s + SAMPLE_S
    samples: list[PageMemory] = []
    meter: GapMeter | None = None
    while time.monotonic() < end_s:
        page.wait_for_timeout(LISTEN_S * MS_PER_S)
        blocks = page.evaluate("__tap.frames.splice(0).map((one) => [one.soundMs, one.rms])")
        if meter is not None:
            meter.add(blocks)
        elif time.monotonic() >= settled_s:
            meter = GapMeter()
        if time.monotonic() >= sample_s:
            sample_s += SAMPLE_S
            gaps = len(reports.gaps_after(settled_s))
            sample = measure_memory(session, (time.monotonic() - began_s) / SAMPLE_S, gaps)
            samples.append(sample)
            print(
                f"{sample.minute:5.1f} min  heap {sample.heap_bytes / BYTES_PER_MIB:6.2f} MiB  "
                f"{sample.nodes:6d} nodes  {sample.gaps} gaps reported",
                flush=True,
            )
    return samples, meter or GapMeter(), settled_s


def verdicts_of(
    samples: list[PageMemory], meter: GapMeter, reports: Reports, settled_s: float, minutes: float
) -> list[Verdict]:
    reported = reports.gaps_after(settled_s)
    # The fake speaks three seconds of five.
    expected_s = 0.5 * (minutes * SAMPLE_S - SETTLING_S - LISTEN_S)
    sound_s, gaps = meter.audible_ms / MS_PER_S, meter.gaps_ms
    within = f"{len(gaps)} within turns, {sound_s:.0f} s of sound"
    verdicts = [
        Verdict("reported gaps", not reported, f"{len(reported)} after {SETTLING_S:g} s"),
        Verdict("measured gaps", not gaps, within),
        Verdict("sound", sound_s >= expected_s, f"{sound_s:.0f} s, at least {expected_s:.0f}"),
    ]
    warm = samples[round(len(samples) * WARM_UP_SHARE) :]
    half = len(warm) // 2
    if half:
        grown, nodes = (
            median(values[half:]) - median(values[:half])
            for values in ([each.heap_bytes for each in warm], [each.nodes for each in warm])
        )
        most_mib = MOST_GROWN_BYTES / BYTES_PER_MIB
        heap = f"{grown / BYTES_PER_MIB:+.2f} MiB, at most {most_mib:g} MiB"
        held = f"{nodes:+.0f}, at most {MOST_GROWN_NODES}"
        verdicts.append(Verdict("heap", grown <= MOST_GROWN_BYTES, heap))
        verdicts.append(Verdict("nodes", nodes <= MOST_GROWN_NODES, held))
    return verdicts


def main(
    minutes: Annotated[float, typer.Option(min=0.5, help="Duration of the conversation.")] = 30.0,
    jitter_ms: Annotated[float, typer.Option(min=0, help="Longest delay of a message.")] = 50.0,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write it all here.")] = None,
) -> None:
    """Run a long conversation in a browser; exits with 1 if a condition is not met."""
    chromium, reports, port = find_chromium(), Reports(), free_ports(1)
    relay = ["-m", "benchmarks.tcp_relay", str(port)]
    with (
        tempfile.TemporaryDirectory() as folder,
        LaunchedSystem(Path(folder), plan()) as system,
        running("the relay", [*relay, str(system.port), str(jitter_ms / MS_PER_S)], port),
        sync_playwright() as playwright,
    ):
        hiss, generator = Path(folder) / "hiss.wav", np.random.default_rng(0)
        samples = generator.standard_normal(HISS_S * MICROPHONE_RATE_HZ, np.float32) * HISS_LEVEL
        write_wav(hiss, samples, MICROPHONE_RATE_HZ)
        browser = playwright.chromium.launch(
            executable_path=chromium,
            chromium_sandbox=os.getuid() != 0,
            args=[
                "--disable-background-networking",
                "--use-fake-device-for-media-stream",
                "--use-fake-ui-for-media-stream",
                f"--use-file-for-fake-audio-capture={hiss}",
            ],
        )
        # The meter is not the page's own, so the page's policy would not let it in.
        page = browser.new_context(bypass_csp=True, reduced_motion="reduce").new_page()
        page.on("websocket", lambda socket: socket.on("framesent", reports))
        begin(page, f"http://{HOST}:{port}")
        memory, meter, settled_s = converse(page, minutes, reports)
        browser.close()
    verdicts = verdicts_of(memory, meter, reports, settled_s, minutes)
    print_verdicts(verdicts)
    host = processes.describe_host("playwright", "websockets", "uvicorn")
    record = {"minutes": minutes, "jitter_ms": jitter_ms, "machine": host}
    record |= {"memory": memory, "meter": meter, "reports": reports.received}
    write_json(json_path, {**record, "verdicts": verdicts})
    exit_unless_met(verdicts)


if __name__ == "__main__":
    typer.run(main)
