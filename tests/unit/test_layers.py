"""Imports point down the layers of docs/architecture.md, section 4."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

import pytest

from scripts import module_map
from tests.source_tree import ROOT, SourceFile, imported_modules, python_files


@dataclass(frozen=True)
class Layer:
    """One row of the table.

    Attributes:
        name: number and word.
        modules: dotted prefixes of what belongs to it; the longest prefix of all layers wins.
        below: layers it may import, besides itself.
        packages: third-party packages it may import.
        forbidden: parts of the standard library it must not import.
    """

    name: str
    modules: tuple[str, ...]
    below: tuple[str, ...]
    packages: frozenset[str]
    forbidden: frozenset[str] = frozenset()


IO_AND_CLOCKS = frozenset(
    "asyncio concurrent datetime http io multiprocessing os pathlib queue random selectors shutil "
    "signal socket ssl subprocess sys tempfile threading time urllib".split()
)
EVENT_LOOP = frozenset({"asyncio"})
WORDS = frozenset({"pydantic", "pydantic_core", "pydantic_settings"})
MEDIA = frozenset({"PIL", "av", "numpy", "onnxruntime", "pybase64", "soundfile", "soxr"})
MODEL = frozenset(
    "PIL google huggingface_hub jinja2 numpy onnx onnxruntime pydantic safetensors tokenizers "
    "torch tqdm transformers triton yaml".split()
)
TERMINAL = frozenset({"rich", "typer"})
BROWSER = frozenset({"playwright"})
DRAWING = frozenset({"matplotlib"})
RECIPE = frozenset({"hibari"})
CASCADE = frozenset({"hibari", "xllamacpp"})
PEERS = frozenset({"aiortc"})
CLUSTER = frozenset({"ray"})
SPEECH = frozenset({"ctranslate2", "faster_whisper"})
NETWORK = frozenset(
    "cryptography fastapi h11 httpx jsonschema obstore opentelemetry prometheus_client "
    "referencing starlette structlog uvicorn websockets yaml".split()
)

LAYERS = (
    # What users' programs import: nothing of the server, so that it needs none of its packages.
    Layer("client", ("minicpmo_live",), (), frozenset({"websockets", "livekit"})),
    Layer("build", ("setup",), (), frozenset({"setuptools"})),
    Layer(
        "0 words",
        (
            "core",
            "core.schemas",
            "core.addresses",
            "core.errors",
            "core.sums",
            "gateway_modules.queue.estimates",
            "config",
            "settings",
        ),
        (),
        WORDS | {"pybase64"},  # sound in messages
        IO_AND_CLOCKS - {"datetime", "os", "pathlib"},  # settings read files; types may be dates
    ),
    Layer(
        "1 rules",
        (
            "core.protocols",
            "core.endpointing",
            "core.history",
            "core.stop_signals",
            "core.tools",
        ),
        ("0 words",),
        frozenset({"pybase64"}),  # sound in events
        IO_AND_CLOCKS,
    ),
    Layer(
        "2 media",
        (
            "core.audio",
            "core.images",
            "core.media",
            "core.media_process",
            "core.sound_encoder",
            "core.transcription",
            "core.vad",
            "core.video",
            "core.process_memory",
            "core.whisper_program",
        ),
        ("0 words", "1 rules"),
        MEDIA | WORDS | SPEECH,
        EVENT_LOOP,
    ),
    Layer("3 model", ("MiniCPMO45",), (), MODEL, EVENT_LOOP),
    Layer("4 engine", ("core.engine",), ("0 words", "3 model"), MODEL | {"structlog"}),
    Layer(
        "5 use",
        ("core.modes", "core.processors"),
        ("0 words", "2 media", "3 model", "4 engine"),
        MEDIA | MODEL | WORDS,
        EVENT_LOOP,
    ),
    Layer(
        "6 service",
        (
            "core.cascade",
            "core.serving",
            "core.files",
            "core.store",
            "core.logging_setup",
            "core.metrics",
            "core.sockets",
            "core.telemetry",
            "core.worker_tls",
            "gateway_modules",
            "recording",
            "session_recorder",
            "webrtc",
        ),
        ("0 words", "1 rules", "2 media", "4 engine", "5 use"),
        MEDIA | WORDS | NETWORK | CASCADE | PEERS,
    ),
    Layer(
        "7 programs",
        (
            "gateway",
            "worker",
            "launcher",
            "minicpmo_live.__main__",
            "session_cleanup",
            "core.talk",
            "core.cascade.assets",
            "core.nano_assets",
            "core.packages",
            "core.whisper_assets",
            "benchmarks",
            "training",
            "webrtc.__main__",
            # What else is in `core.schemas.export` is layer 0: the gateway serves a part of it.
            "core.schemas.export.__main__",
            "core.schemas.export.client_types",
            "core.schemas.export.pages",
        ),
        ("client", "0 words", "1 rules", "2 media", "3 model", "4 engine", "5 use", "6 service"),
        MEDIA
        | MODEL
        | WORDS
        | TERMINAL
        | NETWORK
        | BROWSER
        | DRAWING
        | RECIPE
        | SPEECH
        | PEERS
        | CLUSTER,
    ),
)

# The folders of `MiniCPMO45/` in the order in which data flows: each may import those before it.
ROOMS = (
    ("configuration_minicpmo", "settings", "token2wav.config"),
    ("processing",),
    ("kernels",),
    ("model",),
    ("loading",),
    ("token2wav",),
    ("modeling_minicpmo",),
    ("engine",),
    ("modes",),
    ("modeling_minicpmo_unified", "auto", "tiny"),
)

# The same of `gateway_modules/`: each folder may import those before it.
GATEWAY_ROOMS = (
    ("web",),
    ("queue",),
    ("voices", "pages"),
    ("relay", "administration"),
    ("openai.chat_request", "openai.worker_request"),
    ("service",),
    ("routes",),
    ("openai",),
)

FILES = python_files(with_tests=False)
GATEWAY_FILES = [source for source in FILES if source.module.split(".")[0].startswith("gateway")]
OURS = frozenset(source.module.split(".")[0] for source in FILES)


def layer_of(module: str) -> Layer | None:
    """The layer whose longest prefix fits, None if no layer names the module."""
    best: tuple[int, Layer] | None = None
    for layer in LAYERS:
        for prefix in layer.modules:
            # `core` stands for the package's own file, not for everything below it.
            fits = module == prefix or (prefix != "core" and module.startswith(f"{prefix}."))
            if fits and (best is None or len(prefix) > best[0]):
                best = (len(prefix), layer)
    return best[1] if best else None


def offences(source: SourceFile) -> list[str]:
    """Imports of `source` that its layer may not make."""
    layer = layer_of(source.module)
    if layer is None:
        return [f"{source.name} belongs to no layer: add it to the table here and in the docs"]
    modules = {known.module for known in FILES}
    found = []
    for name, line in imported_modules(source):
        top = name.split(".")[0]
        where = f"{source.name}:{line} imports {name}"
        if top in OURS:
            target = layer_of(name) if name in modules else None
            if target and target is not layer and target.name not in layer.below:
                found.append(f"{where}: {layer.name} may not import {target.name}")
        elif top == "tests":
            found.append(f"{where}: tests are not part of the program")
        elif top in sys.stdlib_module_names:
            if top in layer.forbidden:
                found.append(f"{where}: forbidden in {layer.name}")
        elif top not in layer.packages:
            found.append(f"{where}: not among the packages of {layer.name}")
    return sorted(set(found))


@pytest.mark.parametrize("source", FILES, ids=lambda source: source.name)
def test_imports_point_down(source: SourceFile) -> None:
    assert offences(source) == []


def room_of(module: str, rooms: Sequence[Sequence[str]], package: str) -> int | None:
    """The place in `rooms` of a module of `package`, by its longest prefix; None for others."""
    name = f"{module.removeprefix(package)}."
    fits = [
        (len(prefix), place)
        for place, prefixes in enumerate(rooms)
        for prefix in prefixes
        if module.startswith(package) and name.startswith(f"{prefix}.")
    ]
    return max(fits)[1] if fits else None


@pytest.mark.parametrize(
    ("rooms", "package"), [(ROOMS, "MiniCPMO45."), (GATEWAY_ROOMS, "gateway_modules.")]
)
def test_folders_import_those_before_them(rooms: Sequence[Sequence[str]], package: str) -> None:
    mine = [source for source in FILES if source.module.startswith(package)]
    places = {source.module: room_of(source.module, rooms, package) for source in mine}
    assert [name for name, place in places.items() if place is None] == []
    found = [
        f"{source.name}:{line} imports {name}"
        for source in mine
        for name, line in imported_modules(source)
        if (room_of(name, rooms, package) or 0) > (places[source.module] or 0)
    ]
    assert found == []


@pytest.mark.parametrize("package", ["gateway_modules", "recording"])
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    """An import only for types counts: a reader follows it like any other."""
    mine = {s.module: s for s in FILES if s.module.split(".")[0] == package}
    imports = {
        module: {name for name, _ in imported_modules(source) if name in mine}
        for module, source in mine.items()
    }
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules


@pytest.mark.parametrize("source", GATEWAY_FILES, ids=lambda source: source.name)
def test_the_gateway_knows_no_tensors(source: SourceFile) -> None:
    """Stricter than its layer, which serves the worker too."""
    for name, line in imported_modules(source):
        where = f"{source.name}:{line} imports {name}"
        assert name.split(".")[0] not in {"MiniCPMO45", "torch", "numpy"}, where
        assert not name.startswith(("core.processors", "core.serving")), where


def test_one_module_knows_ray() -> None:
    """It is optional, so the rest works without it."""
    knowing = {
        source.name
        for source in FILES
        for name, _ in imported_modules(source)
        if name.split(".")[0] == "ray"
    }
    assert knowing == {"launcher/ray_engine.py"}


LIGHT_MODULES = ("core", "core.schemas", "core.errors", "gateway")


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_importing_leaves_torch_and_transformers_out(module: str) -> None:
    heavy = ("torch", "numpy", "transformers", "ray")
    program = f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_media_leave_torch_out() -> None:
    program = "import sys, core.audio, core.images, core.vad; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"


def test_the_module_map_is_true() -> None:
    page = module_map.PAGE.read_text(encoding="utf8")
    is_true = module_map.rewritten(page) == page
    assert is_true, "docs/module-map.md is out of date: make map"
