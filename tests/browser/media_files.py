"""What the fake microphone plays and the fake camera shows, made when a test needs it."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import soundfile
import soxr  # type: ignore[import-untyped]  # ships no type information
from PIL import Image, ImageDraw

from tests.system.client import Samples, read_wav

RECORDINGS = Path(__file__).parents[1] / "golden" / "recordings" / "inputs"
QUESTIONS = Path(__file__).parents[1] / "assets"
DEVICE_RATE_HZ = 48_000
INPUT_RATE_HZ = 16_000
PEAK = 32_767

FILM_SIZE = (640, 360)
FILM_FRAMES = 20
FILM_HZ = 10
BALL_PX = 180
STEP_PX = 4  # of the ball from one picture to the next
PAPER = (236, 232, 222)
RED = (205, 30, 35)


def speech_16k(name: str = "speech_8s") -> Samples:
    """Return a recorded voice at 16 kHz: "speech_8s", "question_1" or "ref_voice"."""
    return read_wav(RECORDINGS / f"{name}.wav")


def question_16k(name: str) -> Samples:
    """Return a question the embedded model can answer: "sum", "sight" or "name", at 16 kHz."""
    samples: Samples = soundfile.read(QUESTIONS / f"question_{name}.ogg", dtype="float32")[0]
    return samples


def silence_16k(duration_s: float) -> Samples:
    """Return silence at 16 kHz."""
    return np.zeros(round(duration_s * INPUT_RATE_HZ), np.float32)


def write_speech(path: Path, samples: Samples) -> Path:
    """Write sound of 16 kHz as the WAV file a fake microphone plays in a loop."""
    pcm = soxr.resample(samples, INPUT_RATE_HZ, DEVICE_RATE_HZ)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(DEVICE_RATE_HZ)
        file.writeframes((np.clip(pcm, -1, 1) * PEAK).astype("<i2").tobytes())
    return path


def scene(moved_px: int = 0) -> Image.Image:
    """Return a picture the embedded model can name: a red circle on paper."""
    picture = Image.new("RGB", FILM_SIZE, PAPER)
    left = (FILM_SIZE[0] - BALL_PX) // 2 + moved_px
    top = (FILM_SIZE[1] - BALL_PX) // 2
    ImageDraw.Draw(picture).ellipse((left, top, left + BALL_PX, top + BALL_PX), fill=RED)
    return picture


def write_film(path: Path) -> Path:
    """Write the .y4m file a fake camera shows in a loop: a ball that goes to and fro."""
    width, height = FILM_SIZE
    with path.open("wb") as file:
        file.write(f"YUV4MPEG2 W{width} H{height} F{FILM_HZ}:1 Ip A1:1 C420jpeg\n".encode())
        for index in range(FILM_FRAMES):
            steps = min(index, FILM_FRAMES - index)
            luma, blue, red = scene(STEP_PX * steps).convert("YCbCr").split()
            half = (width // 2, height // 2)
            file.write(b"FRAME\n" + luma.tobytes())
            file.write(blue.resize(half).tobytes() + red.resize(half).tobytes())
    return path
