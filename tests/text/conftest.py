from __future__ import annotations

from pathlib import Path

import pytest

from pagoda.text.tokenizer import Tokenizer

from .header import read_metadata


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's file, from a folder `models` beside the checkout or above it."""
    for folder in Path(__file__).resolve().parents:
        path = folder / "models" / "smollm2.gguf"
        if path.is_file():
            return path
    pytest.skip("smollm2.gguf is in no folder `models` beside or above this checkout")


@pytest.fixture(scope="session")
def smollm2_metadata(smollm2_path: Path) -> dict[str, object]:
    return read_metadata(smollm2_path)


@pytest.fixture(scope="session")
def smollm2(smollm2_metadata: dict[str, object]) -> Tokenizer:
    return Tokenizer.from_metadata(smollm2_metadata)
