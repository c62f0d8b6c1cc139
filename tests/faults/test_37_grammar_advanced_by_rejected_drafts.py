"""37: a grammar moves along with drafts that are refused, and its masks are those of another text."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from changed import Grammar, parses
from outpace.decoding import processors
from outpace.decoding.generate import generate
from outpace.decoding.processors import UserProcessor
from outpace.drafters.drafter import Drafter
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.models.transformer import Transformer
from toys import Scripted, lively, must_fail

OPEN, CLOSE, COMMA, EOS = 20, 21, 22, 23
DIGITS = range(10)
STEPS: dict[str, dict[int, str]] = {
    "start": {OPEN: "first"},
    "first": dict.fromkeys(DIGITS, "digits"),
    "digits": dict.fromkeys(DIGITS, "digits") | {CLOSE: "closed", COMMA: "first"},
    "closed": {OPEN: "first", EOS: "end"},
    "end": {},
}
"""Bracketed lists of numbers, one after the other, and an end."""

PROMPT, NEW = [OPEN, 1, 2, CLOSE, OPEN, 1, COMMA, 2, CLOSE], 24


def drafters(target: Transformer, other: Transformer) -> list[Drafter]:
    """Drafts that are valid, then not, then valid again; valid ones that are refused; repetitions of the prompt."""
    mixed = [
        [OPEN, 1, OPEN, 2],
        [1, COMMA, COMMA, 3, CLOSE],
        [CLOSE, OPEN, 4, CLOSE, EOS, 7, 7],
        [0, 1, 2, 3, 4, 5],
        [63, OPEN],
        [],
    ]
    return [
        Scripted(lambda row, limit: mixed[row.turns % len(mixed)]),
        *(Lookup(min_match=size) for size in (1, 2, 8)),
        Small(target, target),
        Small(other, target),
    ]


def case(target: Transformer, other: Transformer) -> None:
    """Every text parses as far as it goes, and is the plain one, whatever was drafted."""
    for options in ({}, {"temperature": 1.5, "seed": 9}):
        texts = []
        for drafter in (None, *drafters(target, other)):
            for depth in (1, 4, 7) if drafter is not None else (0,):
                grammar = Grammar(STEPS, len(PROMPT))
                try:
                    result = generate(
                        target,
                        drafter,
                        PROMPT,
                        max_new_tokens=NEW,
                        num_draft_tokens=depth,
                        processors=[grammar],
                        eos_ids=(EOS,),
                        **options,
                    )
                except RuntimeError as error:
                    raise AssertionError("the grammar failed") from error
                assert grammar.read == [], "the user's own grammar was moved"
                texts.append(result.token_ids)
                whole = Grammar(STEPS, 0)
                for token in result.token_ids:
                    whole.advance(token)
                assert parses(whole, result.token_ids) == (result.finish_reason == "stop")
        assert all(text == texts[0] for text in texts)


def other() -> Transformer:
    return lively(seed=4, layers=1)


def test_case(tiny: Transformer) -> None:
    case(tiny, other())


def test_rows_of_a_batch_have_a_grammar_each(tiny: Transformer) -> None:
    """Refilled slots too: no row moves another's."""
    prompts = [[(token + shift) % 10 if token in DIGITS else token for token in PROMPT] for shift in range(5)]
    options: dict[str, Any] = {"max_new_tokens": NEW, "eos_ids": (EOS,), "temperature": 1.0, "seed": 3}
    options["processors"] = [Grammar(STEPS, len(PROMPT))]
    alone = [generate(tiny, None, prompt, **options).token_ids for prompt in prompts]
    for drafter in drafters(tiny, other()):
        results = generate(tiny, drafter, prompts, num_draft_tokens=4, batch_size=2, **options)
        assert [result.token_ids for result in results] == alone


def never_rewound(self: UserProcessor, prefix_ids: Tensor, logits: Tensor) -> Tensor:
    return self.processor(prefix_ids, logits)


def one_too_far(honest: Callable[[Grammar, int], None]) -> Callable[[Grammar, int], None]:
    return lambda self, length: honest(self, length + 1)


def invalid_drafts_are_read(logits: Tensor, text: list[int], own: Any, tokens: list[int], parents: list[int]) -> None:
    for row in range(len(logits)):
        prefix = torch.tensor([text + tokens[:row]])
        logits[row : row + 1] = processors._asked(own, prefix, logits[row : row + 1])


FAULTS: dict[str, tuple[Any, str, Any]] = {
    "never rewound": (UserProcessor, "_ask", never_rewound),
    "rewound by one too few": (Grammar, "rewind", one_too_far(Grammar.rewind)),
    "invalid drafts are read": (processors, "_process_entry", invalid_drafts_are_read),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault(name: str, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS[name])
    with must_fail():
        case(tiny, other())
