"""`python -m core.talk` on files: every mode, and errors for unusable input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image
from typer.testing import CliRunner, Result

from core.talk.__main__ import app
from core.talk.conversation import read_inputs

RATE_HZ = 16_000
SPEECH = Path(__file__).parents[1] / "golden" / "recordings" / "inputs" / "speech_8s.wav"
VOICE = SPEECH.with_name("ref_voice.wav")


def _talk(checkpoint: Path, out: Path, *arguments: object) -> Result:
    given = ["--checkpoint", str(checkpoint), "--out", str(out), "--seed", "1"]
    return CliRunner().invoke(app, [*given, *map(str, arguments)])


def _noise(path: Path, seconds: float, rate_hz: int = RATE_HZ, channels: int = 1) -> Path:
    samples = 0.1 * np.random.default_rng(0).standard_normal((int(seconds * rate_hz), channels))
    soundfile.write(path, samples, rate_hz)
    return path


@pytest.mark.parametrize("mode", ["duplex", "half_duplex", "streaming"])
def test_a_reply_is_placed_on_the_input_timeline(
    checkpoint: Path, tmp_path: Path, mode: str
) -> None:
    out, notes = tmp_path / "reply.wav", tmp_path / "rows.json"
    result = _talk(checkpoint, out, "--mode", mode, "--audio", SPEECH, "--json", notes)
    assert result.exit_code == 0, result.output
    stereo, rate_hz = soundfile.read(out)
    recording, input_hz = soundfile.read(SPEECH)
    assert rate_hz == 24_000 and stereo.shape[1] == 2
    assert len(stereo) / rate_hz >= len(recording) / input_hz - 0.01
    assert np.abs(stereo[:, 0]).max() > 0.1, "the user is on the left"
    report = json.loads(notes.read_text(encoding="utf8"))
    spoken = [row for row in report["rows"] if row["action"] == "speak"]
    assert spoken and all(row["text"] for row in spoken)
    starts = [row for row in spoken if row["starts_at_s"] is not None]
    for row in starts:
        assert row["starts_at_s"] >= row["at_s"], "nobody answers before the question"
    assert np.abs(stereo[:, 1]).max() > 0, "the model is on the right"


def test_pictures_and_a_voice_are_used(checkpoint: Path, tmp_path: Path) -> None:
    frames = tmp_path / "frames"
    frames.mkdir()
    for index in range(2):
        Image.new("RGB", (320, 180), (80 * index, 20, 120)).save(frames / f"{index}.png")
    audio = _noise(tmp_path / "in.wav", 2)
    notes = tmp_path / "rows.json"
    result = _talk(
        checkpoint, tmp_path / "out.wav", "--audio", audio, "--frames", frames,
        "--voice", VOICE, "--system", "You are kind.", "--json", notes,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = json.loads(notes.read_text(encoding="utf8"))["rows"]
    assert rows[0]["kv_tokens"] > 64, "a picture takes 64 places in the cache"


def test_pictures_beyond_the_longest_input_are_not_read(tmp_path: Path) -> None:
    audio = _noise(tmp_path / "in.wav", 0.9)
    Image.new("RGB", (32, 32)).save(tmp_path / "0.png")
    (tmp_path / "1.png").write_bytes(b"never opened")
    given = read_inputs(audio, None, tmp_path, None, max_duration_s=1)
    assert [picture.size for picture in given.frames] == [(32, 32)]


def test_the_same_seed_gives_the_same_reply(checkpoint: Path, tmp_path: Path) -> None:
    audio = _noise(tmp_path / "in.wav", 2)
    replies = []
    for name in ("a.wav", "b.wav"):
        assert _talk(checkpoint, tmp_path / name, "--audio", audio).exit_code == 0
        replies.append((tmp_path / name).read_bytes())
    assert replies[0] == replies[1]


@pytest.mark.parametrize(
    ("rate_hz", "channels", "suffix"), [(44_100, 2, "flac"), (8_000, 1, "ogg")]
)
def test_any_sample_rate_and_channels_are_accepted(
    checkpoint: Path, tmp_path: Path, rate_hz: int, channels: int, suffix: str
) -> None:
    audio = _noise(tmp_path / f"in.{suffix}", 1, rate_hz, channels)
    assert _talk(checkpoint, tmp_path / "out.wav", "--audio", audio).exit_code == 0


def _bad_inputs(folder: Path) -> dict[str, Path]:
    def written(name: str, content: bytes) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    silent = folder / "silent.wav"
    soundfile.write(silent, np.zeros(RATE_HZ), RATE_HZ)
    whole = _noise(folder / "whole.flac", 2).read_bytes()
    long = folder / "three_hours.wav"
    with soundfile.SoundFile(long, "w", RATE_HZ, 1, subtype="PCM_U8") as file:
        file.seek(3 * 3600 * RATE_HZ - 1)
        file.write(np.zeros(1))
    return {
        "missing": folder / "nowhere.wav",
        "empty": written("empty.wav", b""),
        "silent": silent,
        "corrupt": written("corrupt.flac", whole[: len(whole) // 2][:60] + b"\x00" * 5000),
        "text": written("notes.wav", b"this is no sound at all\n" * 50),
        "folder": folder,
        "three hours": long,
    }


@pytest.mark.parametrize(
    "kind", ["missing", "empty", "silent", "corrupt", "text", "folder", "three hours"]
)
def test_unusable_file_gives_one_sentence_and_exit_code_2(
    checkpoint: Path, tmp_path: Path, kind: str
) -> None:
    audio = _bad_inputs(tmp_path)[kind]
    result = _talk(checkpoint, tmp_path / "out.wav", "--audio", audio)
    assert result.exit_code == 2, result.output
    sentence = result.stderr.strip()
    assert sentence.endswith(".") and "\n" not in sentence and "Traceback" not in sentence
    assert not (tmp_path / "out.wav").exists()


def test_an_unusable_voice_names_the_limit(checkpoint: Path, tmp_path: Path) -> None:
    audio = _noise(tmp_path / "in.wav", 1)
    short = _noise(tmp_path / "short.wav", 0.2)
    result = _talk(checkpoint, tmp_path / "out.wav", "--audio", audio, "--voice", short)
    assert result.exit_code == 2
    assert "0.5" in result.stderr and "0.20" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--frames", "nowhere"], "nowhere"),
        (["--out", "nowhere/out.wav"], "nowhere"),
        (["--checkpoint", "/nowhere/at/all"], "/nowhere/at/all"),
        (["--json", "/"], "/: Is a directory"),
    ],
)
def test_unusable_paths_are_named(
    checkpoint: Path, tmp_path: Path, arguments: list[str], named: str
) -> None:
    audio = _noise(tmp_path / "in.wav", 1)
    result = _talk(checkpoint, tmp_path / "out.wav", "--audio", audio, *arguments)
    assert result.exit_code == 2
    assert named in result.stderr and "Traceback" not in result.stderr
