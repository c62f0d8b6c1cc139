"""What a processor may not be is refused before any work; what it may not do is named by class and position."""

import math
from collections.abc import Callable
from threading import Lock
from typing import Any

import pytest
import torch
from torch import Tensor

from changed import Spy, made, processed, rows_of
from outpace.decoding.processors import processors_of
from outpace.errors import NumericsError, UsageError


class Locked:
    """A state that cannot be copied."""

    def __init__(self) -> None:
        self.lock = Lock()

    def rewind(self, length: int) -> None:
        """Nothing to forget."""

    def __call__(self, prefix_ids: Tensor, logits: Tensor) -> Tensor:
        return logits


def three(prefix_ids: Tensor, logits: Tensor, mask: Tensor) -> Tensor:
    return logits


def watermark() -> Any:
    return type("SynthIDTextWatermarkLogitsProcessor", (Spy,), {})()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"repetition_penalty": 0.0}, r"repetition_penalty is 0\.0; allowed: any number above 0, 1 is off"),
    ({"repetition_penalty": -1.0}, r"repetition_penalty is -1\.0; allowed"),
    ({"repetition_penalty": math.inf}, "repetition_penalty is inf; allowed"),
    ({"presence_penalty": math.nan}, "presence_penalty is nan; allowed: any finite number, 0 is off"),
    ({"frequency_penalty": -math.inf}, "frequency_penalty is -inf; allowed"),
    ({"min_new_tokens": -1}, "min_new_tokens is -1; allowed: 0 or more"),
    ({"logit_bias": {3: math.inf}}, "logit_bias of token 3 is inf; allowed: a finite number, or -inf"),
    ({"logit_bias": {3: math.nan}}, "logit_bias of token 3 is nan; allowed"),
    ({"logit_bias": {-1: 2.0}}, "logit_bias holds the id -1; allowed: 0 or more"),
    ({"logit_bias": {12: 2.0}, "vocab_size": 12}, "logit_bias holds the id 12; allowed: 0 to 11"),
    ({"bad_words": [[1], []]}, "a bad word is empty; allowed: one id or more"),
    ({"bad_words": [[1, 12]], "vocab_size": 12}, "bad_words holds the id 12; allowed: 0 to 11"),
    ({"bad_words": [[9]]}, r"the bad word \[9\] is an end-of-text id; allowed: any other\nhint: min_new_tokens"),
    ({"processors": [3]}, r"a processor is 3; allowed: a function of \(prefix_ids, logits\)"),
    ({"processors": [Spy]}, "a processor is the class Spy; allowed: a function"),
    ({"processors": [three]}, "the processor three does not take two arguments: missing a required argument: 'mask'"),
    ({"processors": [Locked()]}, "the processor Locked has a state and cannot be copied: cannot pickle '_thread.lock'"),
    (
        {"processors": [watermark()]},
        "the processor SynthIDTextWatermarkLogitsProcessor keeps a state that cannot be re",
    ),
]


@pytest.mark.parametrize(
    ("options", "words"), REFUSED, ids=lambda value: value if isinstance(value, str) else ", ".join(value)
)
def test_refusals(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        made(**options)


def test_a_bad_word_may_contain_an_end() -> None:
    assert len(made(bad_words=[[9, 1], [1, 9]])) == 1


class Wrong:
    """Leaves good logits until the prefix has six ids."""

    def __init__(self, answer: Callable[[Tensor], object]) -> None:
        self.answer = answer

    def __call__(self, prefix_ids: Tensor, logits: Tensor) -> Any:
        return self.answer(logits) if prefix_ids.shape[1] == 6 else logits


ANSWERS: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "one row too few": (
        lambda logits: logits[1:],
        r"returned torch.float64 \(2, 12\) for position 6; allowed: .*\(3, 12\)",
    ),
    "integers": (lambda logits: logits.long(), r"returned torch.int64 \(3, 12\) for position 6"),
    "nothing": (lambda logits: None, "returned NoneType for position 6; allowed: logits of the shape"),
    "nan": (lambda logits: logits * torch.nan, "left no distribution for position 6: the largest logit is nan"),
    "inf": (lambda logits: logits + torch.inf, "left no distribution for position 6: the largest logit is inf"),
    "-inf": (lambda logits: logits - torch.inf, "left no distribution for position 6: .* is -inf\nhint: -inf forbids"),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("users", [False, True])
def test_what_is_no_law_is_named(name: str, users: bool) -> None:
    """The class and the position of the first row that is none, at a depth where the others are fine."""
    answer, words = ANSWERS[name]
    own = made(processors=[Wrong(answer)]) if users else (Wrong(answer),)
    with pytest.raises(NumericsError, match=f"the processor Wrong {words}"):
        processed(rows_of(1), own)


def test_another_shape_among_ended_paths_is_named() -> None:
    """Where some paths have ended the processor is asked about the others alone: its answer has their shape."""
    own = processors_of(prompt_length=2, eos_ids=[2], processors=[Wrong(lambda logits: logits[:1])])
    with pytest.raises(NumericsError, match=r"the processor Wrong returned torch.float64 \(1, 12\) for position 6"):
        processed(rows_of(1), own)
