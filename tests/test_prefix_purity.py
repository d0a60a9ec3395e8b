"""The prefix cache on a real (tiny) model: off, cold, warm, shared, pinned, and under pressure give the same bits.

llama.cpp#28527, #4902: a cached repeat changes the answer at temperature 0. OVMS#4376: suspected inaccuracy.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from tiny import tiny_model
from tiny_engine import answers, opened

SYSTEM = tuple(3 + (i * i) % 200 for i in range(53))
PROMPTS = [(*SYSTEM[:n], 20 + i, 30 + n) for i, n in enumerate((53, 53, 53, 40, 21, 7, 0, 53, 40))]
NAMES = count()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model(tmp_path_factory.mktemp("tiny"), seed=9))


@pytest.fixture(scope="module")
def plain(path: str) -> list[Any]:
    """Without the cache, one after another."""
    with opened(path, prefix_cache=False) as made:
        told, found = answers(made, PROMPTS)
        assert not any(found)
        return told


@pytest.mark.parametrize("options", [{}, {"page_size": 1}, {"page_size": 4, "chunk": 5}, {"page_size": 64}], ids=str)
def test_off_cold_warm_and_pinned_are_the_same(path: str, plain: list[Any], options: dict[str, Any]) -> None:
    with opened(path, **options) as made:
        cold, found = answers(made, PROMPTS)
        assert cold == plain
        assert any(found)
        warm, found = answers(made, PROMPTS)
        assert warm == plain
        assert found == [len(prompt) - 1 for prompt in PROMPTS] * 2, "a repeat finds all but the last token"
        assert made.engine.pin(SYSTEM, "someone").result(20).tokens == len(SYSTEM)
        pinned, found = answers(made, PROMPTS, tenant="another")
        assert pinned == plain
        assert min(found[:3]) >= len(SYSTEM)


@pytest.mark.parametrize("options", [{}, {"page_size": 4, "chunk": 16}, {"kv_memory": 2**15, "page_size": 4}], ids=str)
def test_all_at_once_is_the_same(path: str, plain: list[Any], options: dict[str, Any]) -> None:
    with opened(path, **options) as made:
        assert answers(made, PROMPTS, together=True)[0] == plain
        assert answers(made, PROMPTS, together=True)[0] == plain
