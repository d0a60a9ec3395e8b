"""The text and the work made of it: ours, small, the same every time, and laid out as it says."""

from __future__ import annotations

from importlib.resources import files
from itertools import islice, pairwise
from pathlib import Path

import pytest

from pagoda.catalog import open_model
from pagoda.errors import InvalidConfig
from pagoda.gate import text
from pagoda.gate.subject import PAGE
from pagoda.gate.work import LOOP_TOKENS, set_work
from pagoda.text.tokenizer import Tokenizer
from tiny import tiny_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tiny_model(tmp_path_factory.mktemp("tiny"))
    with open_model(path) as file:
        return Tokenizer.from_metadata(file.metadata)


def decoded(tokenizer: Tokenizer, ids: tuple[int, ...]) -> str:
    return b"".join(map(tokenizer.token_bytes, ids)).decode(errors="replace")


def test_it_is_small() -> None:
    data = Path(str(files("pagoda.gate") / "data"))
    assert sum(file.stat().st_size for file in data.iterdir()) < 15_000
    assert len(text.prose()) > 6000


def test_questions_have_one_right_answer_and_others() -> None:
    asked = text.questions()
    assert 30 <= len(asked) <= 60
    assert len({q.text for q in asked}) == len(asked)
    for q in asked:
        assert len(q.choices) == len(set(q.choices)) == 4
        assert f"{q.text}\n" not in text.EXAMPLES


def test_filler_is_the_same_every_time_and_does_not_repeat() -> None:
    some = list(islice(text.filler(3), 200))
    assert some == list(islice(text.filler(3), 200))
    assert some != list(islice(text.filler(4), 200))
    assert len(set(some)) == len(some)
    assert not any("secret" in paragraph or "Remember" in paragraph for paragraph in [*some, text.prose()])


def test_a_passage_is_as_long_as_it_says_and_holds_its_needles(tokenizer: Tokenizer) -> None:
    work = set_work(tokenizer, 8192, (2048, 4000))
    assert [p.length for p in work.passages] == [2048, 4000]
    for passage in work.passages:
        assert passage.length % PAGE == 0
        said = decoded(tokenizer, passage.ids)
        assert said[-200:] in text.prose() * 2
        assert len(passage.needles) >= 5
        places = []
        for needle in passage.needles:
            (tail,) = needle.tails
            number = decoded(tokenizer, tail[-needle.answers[0] :])
            assert number.strip().isdigit()
            assert said.count(number) == 1
            places.append(said.index(number) / len(said))
        gaps = [b - a for a, b in pairwise(places)]
        assert min(gaps) > 0.3 * max(gaps), "spread evenly"
    assert len(work.opening) % PAGE == 0
    assert work.positions >= 4000 + LOOP_TOKENS
    assert work == set_work(tokenizer, 8192, (4000, 2048, 2048))


def test_lengths_that_do_not_fit(tokenizer: Tokenizer) -> None:
    assert [p.length for p in set_work(tokenizer, 1024).passages] == [512]
    assert [p.length for p in set_work(tokenizer, 300).passages] == [160], "none of the usual fits: as long as may be"
    for wrong in (10, 8000):
        with pytest.raises(InvalidConfig, match=f"got {wrong}"):
            set_work(tokenizer, 1024, (wrong,))
