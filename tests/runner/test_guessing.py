"""The runner's own drafter: what it guesses is what its layers give, whoever fed it what and when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from pagoda.backends import open_backend
from pagoda.plan import GUESS, LAST, Capacity, StepResult
from pagoda.runner.guessing import Guesser
from pagoda.runner.runner import Runner
from pagoda.types import SamplingParams
from tiny import tiny_model

from .machine import PAGES, POSITIONS, Script, open_runner, read_model

PROMPT = (7, 300, 12, 45, 45, 260, 3)
GREEDY = SamplingParams(temperature=0, seed=0)
WARM = SamplingParams(temperature=1.2, seed=3, logprobs=1)
STERN = SamplingParams(temperature=1.2, seed=3, presence_penalty=1.5, repetition_penalty=1.3)
LAYERS = 2


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {"width": 96, "heads": 6, "kv_heads": 2, "head_dim": 32, "ffn": 160, "vocabulary": 331, "layers": LAYERS}
    return tiny_model(tmp_path_factory.mktemp("tiny"), **shape)


def open_guessing(path: Path, layers: int, own: bool, page_size: int = 4) -> Runner:
    """A runner whose drafter is its model's first layers, or a model of its own, which is the same one."""
    backend = open_backend("cpu")
    model = read_model(path, backend)
    store, beside = (backend.kv_store(model.groups, [PAGES], page_size, "f16") for _ in range(2))
    capacity = Capacity((PAGES,) * (1 + own), page_size, POSITIONS, model.vocabulary, "any")
    return Runner(backend, model, store, capacity, Guesser(backend, model, layers, beside if own else store, int(own)))


class Drafting(Script):
    """Writes plans with drafts."""

    def draft(self, sequence: int, last: int, drafts: Sequence[int]) -> None:
        """The last token of a sequence, and drafts."""
        at, count = self.computed[sequence], len(drafts)
        extension = self.cache.extend(sequence, at, at + 1 + count)
        assert extension.fits
        self.copies.extend(extension.copies)
        self.add(sequence, last)
        pages = self.cache.extend(sequence, at, at + 1 + count)
        assert pages.fits
        self.copies.extend(pages.copies)
        table = self.cache.table(sequence)
        self.chunks[-1] = replace(self.chunks[-1], tokens=(last, *drafts), pages=table, drafts=count, drafter="any")

    def read(self, result: StepResult) -> dict[int, list[int]]:
        """Tokens by sequence; what was right is computed."""
        got: dict[int, list[int]] = {}
        for sampled in result.sampled:
            got.setdefault(sampled.sequence, []).append(sampled.token)
        for sequence, tokens in got.items():
            self.computed[sequence] += len(tokens) - 1
        return got


def plain(path: Path, prompt: Sequence[int], params: SamplingParams, count: int) -> list[int]:
    script = Script(open_runner(path))
    script.start(1, prompt, params)
    script.add(1, *prompt)
    tokens = script.tokens()
    while len(tokens) < count:
        script.add(1)
        tokens += script.tokens()
    script.runner.close()
    return tokens


@pytest.mark.parametrize("own", [False, True], ids=["first layers", "a model of its own"])
@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("wait", [False, True], ids=["in flight", "waited for"])
def test_the_whole_model_guesses_what_it_will_say(path: Path, own: bool, params: SamplingParams, wait: bool) -> None:
    """All drafts are right, at any temperature: also after plain steps in which the drafter was not asked, with prompts
    in parts, and for two sequences of different lengths at once.
    """
    want = {1: plain(path, PROMPT, params, 24), 2: plain(path, PROMPT[:3], params, 24)}
    script = Drafting(open_guessing(path, LAYERS, own))
    script.start(1, PROMPT, params)
    script.add(1, *PROMPT[:5], samples=False)
    script.step()
    script.start(2, PROMPT[:3], params)
    script.add(1, *PROMPT[5:])
    script.add(2, *PROMPT[:3])
    got = script.read(script.step())
    for plain_steps, depth in ((0, 3), (2, 1), (1, 4), (0, 2)):
        handles = []
        for _ in range(plain_steps):
            for sequence in (1, 2):
                script.add(sequence)
            handles.append(script.submit())
            if wait:
                for sequence, tokens in script.read(script.runner.finish(handles.pop())).items():
                    got[sequence] += tokens
        for sequence in (2, 1):
            script.draft(sequence, got[sequence][-1] if wait else LAST, (GUESS,) * (depth + sequence - 1))
        handles.append(script.submit())
        for handle in handles:
            result = script.runner.finish(handle)
            news = script.read(result)
            for sequence, tokens in news.items():
                got[sequence] += tokens
        assert {s: len(t) for s, t in news.items()} == {1: depth + 1, 2: depth + 2}, "a guess was wrong"
        assert 0 < result.guessing < result.seconds
    for sequence, tokens in got.items():
        assert tokens == want[sequence][: len(tokens)]
    script.runner.close()


@pytest.mark.parametrize("own", [False, True], ids=["first layers", "a model of its own"])
@pytest.mark.parametrize("params", [GREEDY, STERN], ids=["greedy", "stern"])
def test_wrong_guesses_change_nothing(path: Path, own: bool, params: SamplingParams) -> None:
    """One layer of two guesses badly, and so does any who knows no penalties."""
    want = plain(path, PROMPT, params, 20)
    script = Drafting(open_guessing(path, 1, own))
    script.start(1, PROMPT, params)
    script.add(1, *PROMPT)
    tokens = script.tokens()
    wrong = 0
    while len(tokens) < 20:
        script.draft(1, tokens[-1], (GUESS,) * 3)
        (news,) = script.read(script.step()).values()
        wrong += len(news) < 4
        tokens += news
        script.runner.check()
    assert tokens[:20] == want
    assert wrong > 2


def test_a_fork_has_its_parents_guesses_at_hand(path: Path) -> None:
    """Pages of the drafter's own model are shared and copied as the model's are."""
    script = Drafting(open_guessing(path, LAYERS, True))
    script.start(1, PROMPT, GREEDY)
    script.add(1, *PROMPT[:6], samples=False)
    script.step()
    script.fork(1, 2, 6, PROMPT, GREEDY)
    for sequence in (1, 2):
        script.add(sequence, PROMPT[6])
    got = script.read(script.step())
    for sequence in (1, 2):
        script.draft(sequence, got[sequence][-1], (GUESS,) * 4)
    news = script.read(script.step())
    assert [len(tokens) for tokens in news.values()] == [5, 5]
    assert news[1] == news[2] == plain(path, PROMPT, GREEDY, 6)[1:]
    script.runner.close()


def test_a_plan_may_not_leave_drafts_open_to_nobody(path: Path) -> None:
    script = Drafting(open_runner(path))
    script.start(1, PROMPT, GREEDY)
    script.add(1, *PROMPT)
    (token,) = script.tokens()
    script.draft(1, token, (GUESS,))
    with pytest.raises(AssertionError, match="nobody is here"):
        script.submit()
