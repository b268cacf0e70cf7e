"""Function definitions of OpenAI's protocols."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from core.schemas.common import Text, WireModel

FUNCTIONS_MAX: Final = 128  # Source: OpenAI's API reference, "tools"
NAME: Final = r"^[a-zA-Z0-9_-]{1,64}$"  # same, "function.name"


class Function(WireModel):
    """A function that a reply may call."""

    name: str = Field(pattern=NAME, description="Its name.")
    description: Text | None = Field(None, description="Description for the model.")
    # Any: a JSON schema.
    parameters: dict[str, Any] | None = None
    """JSON schema of its arguments; none: no arguments."""
