"""The toy model and the available recordings."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.goldens.folder import GoldenFolder
from tests.goldens.places import recordings
from tests.goldens.runner import open_folder
from tests.model.conftest import toy as toy  # the fixture

Recorded = Callable[[str], GoldenFolder]


@pytest.fixture
def recorded() -> Recorded:
    """Open the first folder of recordings that has a file, or skip the test."""

    def find(file: str) -> GoldenFolder:
        for path in recordings().values():
            folder = open_folder(path)
            if folder.has(file):
                return folder
        pytest.skip(f"no folder with {file} is here")

    return find
