"""Processors see each path with its own prefix, once a depth, and are what transformers has."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from changed import BUSH, PATHS, TEXT, WIDTH, Spy, made, one_text_for_all, processed, rows_of
from outpace.decoding import processors as room
from outpace.decoding.processors import process, processors_of
from outpace.verification.tree import DraftTree
from toys import must_fail


def case_paths() -> None:
    spy, logits = Spy(), rows_of(1)
    rows = processed(logits, [spy])
    assert spy.asked == [[TEXT + path for path in PATHS if len(path) == depth] for depth in range(4)]
    for row, path in enumerate(PATHS):
        text = TEXT + path
        wanted = [float(len(text)), float(sum(place * token for place, token in enumerate(text, 1)))]
        assert rows[row, :2].tolist() == wanted
        assert_close(rows[row, 2:], logits[0, row, 2:])


def test_each_path_has_its_own_prefix() -> None:
    case_paths()


def flat(logits: Tensor, text: list[int], own: Any, tokens: list[int], parents: list[int]) -> None:
    """The fault: what stands before a node in the flat order is taken for its prefix."""
    for row in range(1 + len(tokens)):
        prefix = torch.tensor([text + tokens[:row]])
        logits[row] = room._asked(own, prefix, logits[row : row + 1])[0]


@pytest.mark.parametrize("fault", [flat, one_text_for_all])
def test_planted_fault(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_process_entry", fault)
    with must_fail():
        case_paths()
    with must_fail():
        case_parity("repetition", 4)


def test_a_batch_is_its_rows() -> None:
    """Ragged drafts, texts of other lengths, an entry without processors, and filler that is left alone."""
    logits = rows_of(2, batch=4)
    tree = DraftTree.from_lists([BUSH, ([], []), ([5, 6], [-1, 0]), BUSH])
    texts = [TEXT, [1], [4, 4, 4], [2, 2]]
    own = [made(repetition_penalty=2.0), made(presence_penalty=1.5), made(frequency_penalty=0.5), ()]
    before = logits.clone()
    together = process(logits, tree, texts, own)
    assert_close(logits, before, rtol=0, atol=0)
    for row, (draft, count) in enumerate(zip(tree.to_lists(), (7, 1, 3, 7), strict=True)):
        alone = processed(logits[row : row + 1, :count], own[row], texts[row], draft)
        assert_close(together[row, :count], alone, rtol=0, atol=0)
        assert_close(together[row, count:], logits[row, count:], rtol=0, atol=0)
    assert_close(together[3], logits[3], rtol=0, atol=0)


def test_nothing_to_do_copies_nothing() -> None:
    logits = rows_of(3, batch=2)
    assert process(logits, DraftTree.from_lists([BUSH, BUSH]), [TEXT, [1]], [(), ()]) is logits
    assert made() == made(logit_bias={}, bad_words=[], repetition_penalty=1.0) == ()
    assert processors_of(prompt_length=2, eos_ids=(), min_new_tokens=5) == ()


def test_a_processor_may_write_into_what_it_is_given() -> None:
    def in_place(prefix_ids: Tensor, logits: Tensor) -> Tensor:
        return logits.mul_(0.5)

    logits = rows_of(4)
    before = logits.clone()
    assert_close(processed(logits, [in_place]), before[0] / 2, rtol=0, atol=0)
    assert_close(logits, before, rtol=0, atol=0)


def test_no_text_goes_on_behind_a_forbidden_token() -> None:
    """Its node is judged by its parent's row; the rows below are not asked about, and stay what they were."""
    spy, logits = Spy(), rows_of(5)
    rows = processed(logits, [*made(logit_bias={5: -math.inf}), spy])
    assert spy.asked == [[TEXT], [[*TEXT, 1]], [[*TEXT, 1, 1]]]
    assert bool((rows[[0, 2, 5], 5] == -math.inf).all())
    for row in (1, 3, 4, 6):
        assert_close(rows[row], logits[0, row], rtol=0, atol=0)


def test_no_text_goes_on_behind_its_end() -> None:
    """An end of text that was drafted ends the questions; one that stands in the prompt does not."""
    spy, logits = Spy(), rows_of(6)
    own = processors_of(prompt_length=2, eos_ids=[2, 3], processors=[spy])
    rows = processed(logits, own)
    assert spy.asked == [[TEXT], [[*TEXT, 5], [*TEXT, 1]], [[*TEXT, 5, 7], [*TEXT, 1, 1]]]
    for row in (4, 6):
        assert_close(rows[row], logits[0, row], rtol=0, atol=0)
    assert rows[3, 0] == rows[5, 0] == 6


# ---- they are what transformers has --------------------------------------------------------------------------------


def theirs(name: str) -> list[Any]:
    from transformers.generation import logits_process as lp

    made: dict[str, Callable[[], list[Any]]] = {
        "repetition": lambda: [lp.RepetitionPenaltyLogitsProcessor(1.7)],
        "reward": lambda: [lp.RepetitionPenaltyLogitsProcessor(0.6)],
        "bias": lambda: [lp.SequenceBiasLogitsProcessor([[[5], -4.0], [[8], 2.5]])],
        "bad words": lambda: [lp.NoBadWordsLogitsProcessor([[4], [1, 6], [7, 1, 3], [5, 2, 6], [5] * 20], [0, 9])],
        "least": lambda: [lp.MinNewTokensLengthLogitsProcessor(2, 4, [0, 9])],
    }
    if name == "all":
        return [part for one in ("bias", "repetition", "bad words", "least") for part in made[one]()]
    return made[name]()


OURS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.7},
    "reward": {"repetition_penalty": 0.6},
    "bias": {"logit_bias": {5: -4.0, 8: 2.5}},
    "bad words": {"bad_words": [[4], [1, 6], [7, 1, 3], [5, 2, 6], [5] * 20]},
    "least": {"min_new_tokens": 4},
}
OURS["all"] = OURS["bias"] | OURS["repetition"] | OURS["bad words"] | OURS["least"]


def case_parity(name: str, seed: int) -> None:
    logits = rows_of(seed).float()
    rows = processed(logits, made(**OURS[name]))
    as_they_stand = processed(logits, theirs(name))
    for row, path in enumerate(PATHS):
        wanted, prefix = logits[:, row].clone(), torch.tensor([TEXT + path])
        for processor in theirs(name):
            wanted = processor(prefix, wanted)
        assert_close(rows[row], wanted[0], rtol=0, atol=0)
        assert_close(as_they_stand[row], wanted[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", OURS)
def test_parity_with_transformers(name: str) -> None:
    """Row by row: ours on the tree, theirs on the tree as they stand, and theirs on every path alone."""
    for seed in range(5):
        case_parity(name, seed)


def test_presence_and_frequency_count_new_tokens_only() -> None:
    """OpenAI's definition: ``logit - count * frequency - (count > 0) * presence``; the prompt is [3, 7]."""
    logits = rows_of(7)
    rows = processed(logits, made(presence_penalty=0.75, frequency_penalty=-0.25))
    for row, path in enumerate(PATHS):
        new = [7, 1, *path]
        for token in range(WIDTH):
            count = new.count(token)
            wanted = float(logits[0, row, token]) + 0.25 * count - 0.75 * (count > 0)
            assert float(rows[row, token]) == pytest.approx(wanted, abs=1e-12)
    assert_close(processed(logits, made(presence_penalty=1.0), [3, 7], ([], []))[0], logits[0, 0], rtol=0, atol=0)


def test_the_order_is_that_of_transformers() -> None:
    own = made(**OURS["all"], presence_penalty=1.0, frequency_penalty=1.0, processors=[Spy()])
    assert [type(processor).__name__ for processor in own] == [
        "LogitBias",
        "RepetitionPenalty",
        "PresencePenalty",
        "FrequencyPenalty",
        "BadWords",
        "MinNewTokens",
        "UserProcessor",
    ]
