"""Fixtures for every test."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagoda import catalog
from pagoda.errors import DownloadError


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's file, fetched if need be. Tests that use it carry the marker `model`."""
    try:
        return catalog.resolve("smollm2")
    except DownloadError as error:
        pytest.skip(f"the default model is not to be had: {error}")
