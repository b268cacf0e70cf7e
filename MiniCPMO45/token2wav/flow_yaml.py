"""Reads the sizes in the published `flow.yaml` without building anything it names.

The file is an object graph with class tags. Only its node tree is read: no tag is resolved, no
constructor runs, nothing is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from MiniCPMO45.token2wav.config import FlowConfig

_SCALARS: Mapping[str, Callable[[str], Any]] = {
    "tag:yaml.org,2002:int": lambda text: int(text.replace("_", "")),
    "tag:yaml.org,2002:float": float,
    "tag:yaml.org,2002:bool": lambda text: text.lower() in ("true", "yes", "on"),
    "tag:yaml.org,2002:null": lambda _: None,
}


def parse_flow_yaml(text: str) -> FlowConfig:
    """Parse the text of `flow.yaml`.

    Args:
        text: YAML whose top level is the flow or has it under `flow`.

    Returns:
        The sizes; whatever the file does not name keeps the published value.

    Raises:
        ValueError: the text is not a YAML mapping, or names an unsupported variant.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"flow.yaml is not valid YAML: {error}") from error
    if not isinstance(root, yaml.MappingNode):
        raise ValueError("flow.yaml holds no mapping")
    values = _plain(root)
    inner = values.get("flow", values)
    if not isinstance(inner, dict):
        raise ValueError("flow.yaml: `flow` is not a mapping")
    return FlowConfig.from_dict(inner)


def read_flow_yaml(path: Path) -> FlowConfig:
    """Parse the file at `path`, see `parse_flow_yaml`."""
    return parse_flow_yaml(path.read_text(encoding="utf8"))


def _plain(node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): _plain(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item) for item in node.value]
    convert = _SCALARS.get(node.tag)
    return convert(node.value) if convert else node.value
