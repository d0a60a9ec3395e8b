"""The golden file agrees with itself, and the comparison measures what it says."""

from pathlib import Path

import numpy as np
import pytest
from golden_logits import Golden, log_softmax
from golden_texts import TEXTS


@pytest.fixture(scope="module")
def golden() -> Golden:
    return Golden(Path(__file__).with_name("smollm2_logits.npz"))


def test_the_file_is_whole(golden: Golden) -> None:
    arrays = golden.arrays
    count = int(arrays["offsets"][-1])
    assert [name for name, _, _ in golden.sequences()] == list(TEXTS)
    assert arrays["texts"].tolist() == list(TEXTS.values())
    assert sum(len(ids) for _, _, ids in golden.sequences()) == count == len(arrays["ids"]) >= 400
    assert len(golden.sha256) == 64
    top = arrays["top_logp"].astype(np.float64)
    assert (np.diff(top, axis=1) <= 0).all()
    np.testing.assert_allclose(np.exp(top).sum(1) + arrays["rest"], 1.0, atol=1e-6)
    np.testing.assert_allclose(top[:, 0] - top[:, 1], arrays["gap"], atol=1e-5)
    assert all(len(set(row)) == len(row) for row in arrays["top_ids"].tolist())
    assert not any(
        set(a) & set(b) for a, b in zip(arrays["top_ids"].tolist(), arrays["tail_ids"].tolist(), strict=True)
    )
    assert 0 < float(arrays["noise"]) < 2e-4


def test_the_whole_rows_agree_with_the_stored_entries(golden: Golden) -> None:
    arrays = golden.arrays
    for row, whole in zip(arrays["full_rows"], arrays["full_logp"], strict=True):
        assert np.exp(whole.astype(np.float64)).sum() == pytest.approx(1.0, abs=1e-5)
        for name in ("top", "tail", "spot"):
            np.testing.assert_array_equal(whole[arrays[name + "_ids"][row]], arrays[name + "_logp"][row])
        assert whole.argmax() == arrays["top_ids"][row, 0]


def test_log_probabilities_compare_as_logits_and_a_shift_changes_nothing(golden: Golden) -> None:
    for row, whole in zip(golden.arrays["full_rows"].tolist(), golden.arrays["full_logp"], strict=True):
        found = golden.compare(slice(row, row + 1), whole[None] + np.float32(3.0))
        assert found.difference[0] < 1e-5
        assert found.same.all()
        assert found.kl[0] == pytest.approx(0.0, abs=1e-5)
        assert found.floor[0] == pytest.approx(0.0, abs=1e-5)


def test_the_estimates_of_kl_bracket_the_exact_one(golden: Golden) -> None:
    rng = np.random.default_rng(5)
    kinds: dict[str, list[float]] = {"exact": [], "kl": [], "floor": []}
    for row, whole in zip(golden.arrays["full_rows"].tolist(), golden.arrays["full_logp"], strict=True):
        rows = slice(row, row + 1)
        for _ in range(8):
            logits = (whole + rng.normal(0.0, 0.3, whole.shape))[None]
            found, exact = golden.compare(rows, logits), golden.exact_kl(rows, logits)
            assert exact[0] == pytest.approx((np.exp(whole) * (whole - log_softmax(logits)[0])).sum(), rel=1e-4)
            assert found.floor[0] <= exact[0] + 1e-6
            for name, value in (("exact", exact), ("kl", found.kl), ("floor", found.floor)):
                kinds[name].append(float(value[0]))
    means = {name: float(np.mean(values)) for name, values in kinds.items()}
    assert means["kl"] == pytest.approx(means["exact"], rel=0.15)
    assert means["floor"] > 0.6 * means["exact"] > 0


def test_a_changed_token_is_seen(golden: Golden) -> None:
    row, whole = int(golden.arrays["full_rows"][0]), golden.arrays["full_logp"][0].copy()
    second = int(golden.arrays["top_ids"][row, 1])
    whole[second] += golden.arrays["gap"][row] + 1.0
    found = golden.compare(slice(row, row + 1), whole[None])
    assert not found.same.any()
    assert found.agreement() == 0.0
    assert found.difference[0] > 0.5


def test_logits_of_another_shape_are_refused(golden: Golden) -> None:
    with pytest.raises(ValueError, match="these rows need"):
        golden.compare(slice(0, 2), np.zeros((1, golden.vocab), np.float32))
