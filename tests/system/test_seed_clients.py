"""The Python clients of the published documents work with a system as it ships."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import websockets

from core.audio import write_wav
from tests.system.client import RATE_HZ, DuplexClient, Samples
from tests.system.loops import in_loop, new_id
from tests.system.running import RunningSystem

CLIENTS = Path(__file__).parent / "seed_clients"
SERVER = "wss://localhost:8006"  # as written in the clients
PAUSE_S = 1.5  # ends a turn of half duplex


@pytest.fixture
def files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: Samples, voice: Samples
) -> None:
    silence = np.zeros(round(PAUSE_S * RATE_HZ), np.float32)
    write_wav(tmp_path / "test_audio.wav", np.concatenate([silence, question, silence]), RATE_HZ)
    write_wav(tmp_path / "ref.wav", voice, RATE_HZ)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("duplex", ("Session ready", "Session ended: stopped")),
        ("half_duplex", ("Session ready: hdx_",)),
    ],
)
def test_a_published_client_passes(
    shipped: RunningSystem,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    expected: tuple[str, ...],
) -> None:
    real_connect = partial(websockets.connect, open_timeout=None, proxy=None)

    def connect(url: str) -> Any:  # Any: whatever websockets returns for `async with`
        return real_connect(url.replace(SERVER, shipped.ws("")))

    monkeypatch.setattr(websockets, "connect", connect)
    path = CLIENTS / f"{name}.py.txt"
    exec(compile(path.read_text(encoding="utf8"), str(path), "exec"), {"__name__": "__main__"})
    said = capsys.readouterr().out
    assert all(words in said for words in expected), said


@in_loop
async def test_the_voice_that_the_documents_name_ships(shipped: RunningSystem) -> None:
    path = "assets/ref_audio/ref_minicpm_signature.wav"
    async with DuplexClient.connected(shipped.ws(f"/ws/duplex/{new_id('adx')}")) as client:
        await client.hear("queue_done")
        await client.say("prepare", ref_audio_path=path)
        assert (await client.hear("prepared", "error"))["type"] == "prepared"
        warning = await client.hear("warning")
        assert warning["code"] == "one_voice", "it was found, and is not the model's own sample"
