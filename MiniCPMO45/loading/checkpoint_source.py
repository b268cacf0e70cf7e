"""Finds a checkpoint: a local folder, or a hub id, which is downloaded."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import constants as hub_constants
from huggingface_hub import errors as hub_errors


class CheckpointError(Exception):
    """A checkpoint cannot be found, does not fit or is damaged; the message says what to do."""


CONFIG_FILE = "config.json"
HUGGINGFACE_ID = "openbmb/MiniCPM-o-4_5"
MODELSCOPE_ID = "OpenBMB/MiniCPM-o-4_5"
AWQ, GPTQ, GPTQ_V2 = "awq", "gptq", "gptq_v2"
_VARIANT_KEYS = ("bits", "version", "checkpoint_format")

NEEDED_FILES = (
    "*.json",
    "*.safetensors",
    "*.jinja",
    "merges.txt",
    "vocab.txt",
    "assets/token2wav/*",
    "assets/*.wav",
)
"""Patterns to download; none matches code, and `EXCLUDED_FILES` are excluded as well."""

EXCLUDED_FILES = ("*.py", "*.pyc", "*.so")

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")

_HUGGINGFACE_FAILURES: tuple[type[Exception], ...] = (
    OSError,  # no connection, no cached copy, no room
    ValueError,  # an id of the wrong form
    RuntimeError,  # the native downloader's failures
    # The library's errors and its transport's, which change from release to release.
    *(
        kind
        for kind in vars(hub_errors).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ),
)


def find_checkpoint(
    source: str | Path,
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    token: str | bool | None = None,
    local_files_only: bool = False,
) -> Path:
    """Return the folder of a checkpoint, downloading a hub id if necessary.

    A `Path` is always a folder; a string `owner/name` that is no folder is a hub id. The hub
    library's cache and environment variables apply (`HF_HUB_OFFLINE`, `HF_HOME`, `HF_ENDPOINT`).
    The configuration is downloaded first, so that an unusable checkpoint is refused before its
    weights are downloaded.

    Args:
        source: folder or hub id.
        revision: branch, tag or commit of the hub id.
        cache_dir: the hub cache.
        token: None for the stored login.
        local_files_only: do not download.

    Raises:
        CheckpointError: no such folder, hub unreachable, or an unusable checkpoint.
    """
    folder = Path(source).expanduser()
    try:
        if folder.is_dir():
            return _require_config(folder)
        exists = folder.exists()
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error}") from error
    if exists:
        raise CheckpointError(
            f"{folder} is a file. Give the folder that holds {CONFIG_FILE} and the weights."
        )
    if isinstance(source, Path) or not _HUB_ID.fullmatch(source):
        raise CheckpointError(
            f"There is no folder {folder}. Give an existing checkpoint folder, or the hub id "
            f"{HUGGINGFACE_ID} to download it."
        )

    def fetch(patterns: Sequence[str]) -> Path:
        try:
            fetched = huggingface_hub.snapshot_download(
                source,
                revision=revision,
                cache_dir=cache_dir,
                allow_patterns=list(patterns),
                ignore_patterns=list(EXCLUDED_FILES),
                token=token,
                local_files_only=local_files_only,
            )
        except _HUGGINGFACE_FAILURES as error:
            raise CheckpointError(_advice(source, revision, cache_dir, error)) from error
        return _require_config(Path(fetched))

    read_quantisation(read_json_object(fetch([CONFIG_FILE]) / CONFIG_FILE))
    return fetch(NEEDED_FILES)


def read_json_object(path: Path) -> dict[str, Any]:
    """Parse a JSON file that holds one object.

    Raises:
        CheckpointError: it is missing, unreadable, not JSON, or not an object.
    """
    try:
        values = json.loads(path.read_text(encoding="utf8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} does not hold a JSON object.")
    return values


def read_quantisation(config: Mapping[str, Any]) -> str | None:
    """Return the form of a checkpoint's quantised weights, None if they are not quantised.

    Raises:
        CheckpointError: they cannot be read; the message says what to use instead.
    """
    match config.get("quantization_config"):
        case None:
            return None
        case {"quant_method": "awq", "bits": 4, **rest} if rest.get("version", "gemm") == "gemm":
            return AWQ
        case {"quant_method": "gptq", "bits": 4, **rest} if (
            form := rest.get("checkpoint_format", GPTQ)
        ) in (GPTQ, GPTQ_V2):
            return str(form)
        case {"quant_method": method, **rest}:
            more = [f"{key} {rest[key]}" for key in _VARIANT_KEYS if key in rest]
            found = ", ".join((f"quant_method {method}", *more))
        case _:
            found = "quant_method unknown"
    raise CheckpointError(
        f"This checkpoint is quantised ({found}), and such weights are not supported; AWQ (version "
        "gemm) and GPTQ are, with 4 bits. Use one of these, or the bf16 checkpoint "
        f"{HUGGINGFACE_ID} (on ModelScope {MODELSCOPE_ID}; 18.7 GB) and choose model.weights."
    )


def _require_config(folder: Path) -> Path:
    if (folder / CONFIG_FILE).is_file():
        return folder
    raise CheckpointError(
        f"{folder} holds no {CONFIG_FILE}, so it is no checkpoint. Give the folder that holds "
        f"{CONFIG_FILE}, the tokenizer files, the safetensors and assets/token2wav."
    )


def _advice(repo: str, revision: str | None, cache_dir: str | Path | None, error: Exception) -> str:
    at = f" at revision {revision}" if revision else ""
    wanted = f"There is no folder {repo} here, and the checkpoint {repo}{at}"
    by_hand = f"or fetch it elsewhere with `hf download {repo} --local-dir DIR` and give DIR"
    cache = cache_dir or hub_constants.HF_HUB_CACHE
    match error:
        case hub_errors.GatedRepoError():
            return f"{wanted} needs a login at Hugging Face: run `hf auth login`, {by_hand}."
        case hub_errors.RepositoryNotFoundError():
            return (
                f"{wanted} does not exist at Hugging Face (or needs a login: `hf auth login`). "
                f"The public checkpoint is {HUGGINGFACE_ID}."
            )
        case hub_errors.RevisionNotFoundError():
            return f"{wanted} does not exist. Give another revision, or none for the newest."
    if hub_constants.HF_HUB_OFFLINE:
        return (
            f"{wanted} is not completely in the cache {cache} while HF_HUB_OFFLINE forbids "
            f"downloading. Unset HF_HUB_OFFLINE once to fetch it, {by_hand}."
        )
    lines = str(error).strip().splitlines()
    reason = lines[0].rstrip(".") if lines else type(error).__name__
    is_public = repo == HUGGINGFACE_ID
    elsewhere = f" or ModelScope ({MODELSCOPE_ID})" if is_public else ""
    spelling = "" if is_public else f"the spelling (the public checkpoint is {HUGGINGFACE_ID}), "
    return (
        f"{wanted} cannot be fetched from Hugging Face ({reason}). Check {spelling}the network, "
        f"the proxy (HTTPS_PROXY) and the free space of {cache}; use a mirror (HF_ENDPOINT)"
        f"{elsewhere}; {by_hand}."
    )
