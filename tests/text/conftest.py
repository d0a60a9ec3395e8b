"""The default model's tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagoda.catalog import ModelFile
from pagoda.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Tokenizer:
    with ModelFile(smollm2_path) as file:
        return Tokenizer.from_metadata(file.metadata)
