"""Where texts part, and which differences rounding explains."""

from pathlib import Path

import pytest
import torch

from outpace.evaluation import ties
from outpace.evaluation.ties import Difference, Judge, affordable, compare, first_difference, open_judge
from outpace.models.toy import table_target
from outpace.models.transformer import Transformer
from toys import dense_logits, lively, must_fail


def test_the_first_difference() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 4, 3]) == 1
    assert first_difference([], [1]) is None


def judge(gap: float, tolerance: float = 0.25) -> Judge:
    """Behind token 2 the tokens 5 and 6 lie ``gap`` apart."""
    table = torch.zeros(8, 8, dtype=torch.float64)
    table[2, 5], table[2, 6] = 3.0, 3.0 - gap
    return Judge(table_target(table), "fp32", tolerance)


@pytest.mark.parametrize(("gap", "excused"), [(0.0, True), (0.2, True), (0.26, False), (2.0, False)])
def test_a_near_tie_is_excused_by_the_gap_of_the_two_tokens(gap: float, excused: bool) -> None:
    found = compare(judge(gap), [1], [4, 2, 5, 0], [4, 2, 6, 7])
    assert found is not None and (found.place, found.excused) == (2, excused)
    assert found.gap == pytest.approx(gap)


def test_texts_are_compared_to_their_ends() -> None:
    assert compare(judge(1.0), [1], [2, 5], [2, 5]) is None
    assert compare(judge(0.0), [1], [2, 5], [2, 5, 3]) == Difference(2), "one that goes on is excused by nothing"
    assert compare(None, [1], [2, 5], [2, 6]) == Difference(1, None, False)


def test_the_judge_reads_the_common_prefix(tiny: Transformer) -> None:
    """Against the model written out once more; a prefix one token short would be noticed."""
    prompt, first, second = [3, 1, 4], [7, 8, 9], [7, 8, 10]
    found = Judge(tiny, "fp64", 1e-4).excuse(prompt, first, second, 2)
    row = dense_logits(tiny, [*prompt, 7, 8])[-1]
    assert found.gap == pytest.approx(float(abs(row[9] - row[10])), abs=1e-4)
    with must_fail():
        row = dense_logits(tiny, [*prompt, 7])[-1]
        assert found.gap == pytest.approx(float(abs(row[9] - row[10])), abs=1e-4)


def test_a_copy_is_opened_only_where_memory_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of 3 MB at two bytes a weight: 6 MB in fp32 and 12 MB in fp64, half of that again for opening it."""
    (tmp_path / "model.safetensors").write_bytes(bytes(3 * 2**20))
    (tmp_path / "more").mkdir()
    monkeypatch.setattr(ties, "available_mb", lambda: 10.0)
    assert affordable(tmp_path, "fp32") and not affordable(tmp_path, "fp64")
    monkeypatch.setattr(ties, "available_mb", lambda: None)
    assert not affordable(tmp_path, "fp32"), "where nothing is known, nothing is risked"


def test_no_copy_of_what_has_no_folder_or_no_better_precision(tmp_path: Path) -> None:
    assert open_judge(lively()) is None
    target = table_target(torch.zeros(3, 3, dtype=torch.float64))
    target.folder = tmp_path
    assert open_judge(target) is None, "nothing is better than float64"


def test_the_copy_is_in_a_better_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Transformer) -> None:
    opened = []

    def load(name: Path, dtype: str, device: str) -> Transformer:
        opened.append((name, dtype, device))
        return tiny

    monkeypatch.setattr(ties, "load_target", load)
    target = table_target(torch.zeros(3, 3, dtype=torch.bfloat16))
    target.folder = tmp_path
    found = open_judge(target)
    assert found is not None and (found.dtype, found.tolerance) == ("fp32", 0.25)
    assert opened == [(tmp_path, "fp32", "cpu")]
    monkeypatch.setattr(ties, "affordable", lambda *given: False)
    assert open_judge(target) is None
