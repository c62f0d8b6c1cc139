"""What is refused is refused before any work, by name, with what is allowed."""

from typing import Any

import pytest
import torch
from torch import Tensor

from asked import entries_of
from outpace.decoding.generate import generate, speculative_decode, stream
from outpace.decoding.jobs import answer
from outpace.decoding.loop import Request, decode
from outpace.drafters.lookup import Lookup
from outpace.errors import NumericsError, UnsupportedError, UsageError
from outpace.models.function import FunctionTarget
from outpace.models.toy import random_table, table_target
from outpace.models.transformer import Transformer
from toys import Scripted, Watched, lively, spelling

OPTIONS = [
    ({"num_beams": 4}, r"unknown option 'num_beams'; allowed: temperature, top_k, .*trace"),
    ({"n": 3}, "unknown option 'n'; allowed: "),
    ({"no_repeat_ngram_size": 3}, "unknown option 'no_repeat_ngram_size'; allowed: "),
    ({"do_sample": True, "best_of": 2}, "unknown option 'best_of'; allowed: "),
    ({"num_draft_tokens": -1}, "num_draft_tokens is -1; allowed: 0 or more, auto"),
    ({"max_new_tokens": -1}, "max_new_tokens is -1; allowed: 0 or more, None"),
    ({"temperature": -0.5}, r"temperature is -0\.5; allowed: 0 \(greedy\) or any positive number"),
    ({"temperature": float("nan")}, "temperature is nan; allowed"),
    ({"temperature": float("inf")}, "temperature is inf; allowed"),
    ({"top_k": -2}, r"top_k is -2; allowed: 0 \(off\) or a positive count"),
    ({"top_p": 0.0}, r"top_p is 0\.0; allowed: above 0, up to 1"),
    ({"min_p": 1.0}, r"min_p is 1\.0; allowed: 0 \(off\) up to, not including, 1"),
    ({"num_draft_tokens": 2.5}, r"num_draft_tokens is 2\.5; allowed: 0 or more, auto"),
    ({"num_draft_tokens": "x"}, "num_draft_tokens is 'x'; allowed: 0 or more, auto"),
    ({"max_new_tokens": "many"}, "max_new_tokens is 'many'; allowed: 0 or more, None"),
    ({"eos_ids": 5}, "eos_ids is 5; allowed: a list of ids, or None for no such id"),
    ({"tree": "bush"}, "tree is 'bush'; allowed: chain, top-k:K, top-p:P, sampled:K"),
    ({"tree": "top-k"}, "tree is 'top-k'; allowed: chain, top-k:K"),
    ({"tree": "top-k:2.5"}, r"tree is top-k:2\.5; allowed: a whole number of children from 1 on"),
    ({"tree": "top-p:1.5"}, r"tree is top-p:1\.5; allowed: a mass above 0, up to 1"),
    ({"tree": "top-k:many"}, "tree is 'top-k:many'; allowed: a number behind the colon"),
    ({"tree": "top-k:2"}, "tree is top-k:2, and the drafter 'lookup' cannot draft that; allowed: chain"),
    ({"depth": 0}, "depth is 0; allowed: 1 or more, None"),
    ({"depth": 3, "num_draft_tokens": 4}, "num_draft_tokens is 4 and depth 3; allowed: equal numbers for a chain"),
    ({"tree": "top-k:2", "depth": 3, "num_draft_tokens": 2}, "num_draft_tokens is 2 and depth 3; allowed: as many"),
    ({"rule": "luck"}, "rule is 'luck'; allowed: greedy, match, rejection, block, tree-rejection, traversal"),
    (
        {"rule": "greedy", "temperature": 0.7},
        "the rule is greedy and the temperature above 0; allowed: .*\nhint: leave",
    ),
    ({"batch_size": 0}, "batch_size is 0; allowed: 1 or more, None"),
    ({"logprobs": -1}, "logprobs is -1; allowed: 0 or more, None"),
    ({"stop": ""}, "a stop string is empty; allowed: one character or more"),
    ({"stop": ["END", ""]}, "a stop string is empty"),
    ({"stop": "END"}, "the target 'tiny-llama' has no tokenizer; allowed: token ids, and no strings"),
    ({"trace": "/nowhere/trace.jsonl"}, "the trace cannot be written to /nowhere/trace.jsonl: No such file"),
]


@pytest.mark.parametrize(("options", "words"), OPTIONS, ids=lambda value: str(value)[:40])
def test_options(options: dict[str, Any], words: str, tiny: Transformer) -> None:
    """The call itself refuses: nothing was read, and no piece has to be asked for."""
    watched = Watched(tiny)
    with pytest.raises(UsageError, match=words):
        stream(watched, Lookup(), [1, 2, 3], **options)
    assert watched.prefills == []


SHAPES = [
    (
        {"tree": "top-k:3"},
        "tree is top-k:3 and there is no drafter; allowed: with a drafter\nhint: leave it out, or give",
    ),
    ({"num_draft_tokens": 4, "depth": 4}, "depth is 4 and there is no drafter; allowed: with a drafter"),
]


@pytest.mark.parametrize(("options", "words"), SHAPES, ids=lambda value: str(value)[:30])
def test_shapes_of_drafts_without_a_drafter(options: dict[str, Any], words: str, tiny: Transformer) -> None:
    """Plain decoding is told nothing of shapes; the defaults, said aloud, are no matter, nor is a greatest number."""
    watched = Watched(tiny)
    for call in (
        lambda: stream(watched, None, [1, 2, 3], **options),
        lambda: answer(watched, None, entries_of([1, 2]), **options),
    ):
        with pytest.raises(UsageError, match=words):
            call()
    assert watched.prefills == []
    for same in ({"num_draft_tokens": 4}, {"num_draft_tokens": "auto", "tree": "chain", "depth": None}):
        generate(watched, None, [1, 2, 3], max_new_tokens=2, **same)


PROMPTS = [
    ([], "prompt 0 is empty; allowed: at least one token"),
    ([[1], []], "prompt 1 is empty"),
    ([1, 64], "prompt 0 holds the id 64; allowed: 0 to 63"),
    ([[1], [2, -1]], "prompt 1 holds the id -1; allowed: 0 to 63"),
    ("text", "the target 'tiny-llama' has no tokenizer; allowed: token ids"),
    ([{"role": "user", "content": "text"}], "the target 'tiny-llama' has no tokenizer"),
]


@pytest.mark.parametrize(("prompt", "words"), PROMPTS, ids=str)
def test_prompts(prompt: Any, words: str, tiny: Transformer) -> None:
    for guesser in (None, Lookup()):
        with pytest.raises(UsageError, match=words):
            generate(tiny, guesser, prompt)


def test_requests(tiny: Transformer) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"num_draft_tokens": -1}, r"num_draft_tokens is -1; allowed: 0 \(plain decoding\) or more"),
        ({"slots": 0}, "slots is 0; allowed: 1 or more requests at a time"),
        ({"rule": "coupling"}, "rule is 'coupling'; allowed: greedy, match"),
    ]
    for options, words in cases:
        with pytest.raises(UsageError, match=words):
            decode(tiny, None, [Request([1])], **options)
    with pytest.raises(UsageError, match="max_new_tokens is -3; allowed: 0 or more, or None"):
        decode(tiny, None, [Request([1], max_new_tokens=-3)])


def test_the_lessons_call(tiny: Transformer) -> None:
    cases: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((tiny, tiny, [1], -1, 0.0), {}, "K is -1; allowed: 0 or more"),
        ((tiny, tiny, [], 2, 0.0), {}, "prompt 0 is empty"),
        (
            (tiny, tiny, "text", 2, 0.0),
            {},
            "the prompt is a string and the target has no tokenizer; allowed: token ids",
        ),
        (
            (tiny, lively(seed=5, vocab_size=48), [1], 2, 0.0),
            {},
            "has a vocabulary of 48, the target .* one of 64; without a tokenizer",
        ),
        ((tiny, tiny, [1], 2, 0.0), {"num_samples": 0}, "num_samples is 0; allowed: 1 or more"),
        ((tiny, tiny, [1], 2, 0.0), {"batch_size": 0}, "batch_size is 0; allowed: 1 or more"),
        ((tiny, tiny, [1], 2, -1.0), {}, r"temperature is -1\.0"),
        ((tiny, tiny, [1], 2, 1.0), {"rule": "greedy"}, "the rule is greedy and the temperature above 0"),
        ((lambda ids: ids, lambda ids: ids, [], 2, 1.0), {}, "the prompt is empty; allowed: at least one token"),
    ]
    for arguments, options, words in cases:
        with pytest.raises(UsageError, match=words):
            speculative_decode(*arguments, **options)


BAD = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("place", [2, 3, 5])
def test_a_target_row_that_is_no_law(kind: str, temperature: float, place: int) -> None:
    """The error names the position: at the prompt's end, at a draft's root, and within a draft that is accepted."""
    table = random_table(8, seed=1)
    said = torch.tensor([3, 4, 5, 6, 7, 3, 4, 5])

    def logits_of(ids: Tensor) -> Tensor:
        rows = table[ids] + 50 * torch.nn.functional.one_hot(said[: ids.shape[1]], 8)
        rows[:, place:] = BAD[kind] if kind == "-inf" else rows[:, place:].index_fill(2, torch.tensor([6]), BAD[kind])
        return rows

    target = FunctionTarget(logits_of, 8)
    guesser = Scripted(lambda row, limit: said[len(row.known) - 1 :].tolist(), vocab=8)
    words = rf"the target's logits for position {place + 1} are no distribution: their largest is {kind}\nhint"
    with pytest.raises(NumericsError, match=words):
        generate(target, guesser, [1, 2, 0], temperature=temperature, max_new_tokens=6, num_draft_tokens=4)


def test_rows_that_only_forbid_tokens_are_fine() -> None:
    table = random_table(6, seed=1)
    table[:, 3] = -torch.inf
    table[2] = torch.tensor([-torch.inf, -torch.inf, -torch.inf, -torch.inf, 0.0, -torch.inf])
    target = table_target(table)
    for temperature in (0.0, 1.0, 0.01):
        rows = speculative_decode(target, target, [2], 3, temperature, max_new_tokens=8, num_samples=50)
        assert bool((rows != 3).all()) and bool((rows[:, 0] == 4).all())


def test_a_target_that_cannot_rewind_decodes_plainly_only() -> None:
    target = spelling([1, 2, 3], prompt=1, vocab=4, name="recurrent")
    target.can_rewind = False
    words = "the target 'recurrent' cannot rewind, so it cannot verify the drafts of 'lookup'; allowed: plain decoding"
    with pytest.raises(UnsupportedError, match=words):
        generate(target, Lookup(), [0])
    assert generate(target, None, [0], max_new_tokens=3).token_ids == [1, 2, 3]
    assert generate(target, Lookup(), [0], max_new_tokens=3, num_draft_tokens=0).token_ids == [1, 2, 3]


def test_a_refused_call_leaves_an_older_trace_alone(tiny: Transformer, tmp_path: Any) -> None:
    (tmp_path / "trace.jsonl").write_text("older")
    with pytest.raises(UsageError, match="prompt 0 is empty"):
        generate(tiny, None, [], trace=tmp_path / "trace.jsonl")
    assert (tmp_path / "trace.jsonl").read_text() == "older"
