"""40: log-probabilities or hidden states are taken from another token's row, or from another request's."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from outpace.decoding import loop, turn
from outpace.decoding.loop import Request, decode
from outpace.models.transformer import Transformer
from toys import Scripted, dense_logits, must_fail, reference, right_then_wrong

PROMPTS = [(9,), (5, 6, 7), (1, 2, 3, 4, 5, 6, 7)]
NEW = 13


def outputs(target: Transformer, rows: list[int]) -> list[tuple[list[float], Tensor]]:
    """Log-probabilities and states of these prompts, decoded together, which accept 0, 2 and 4 drafts a turn."""
    texts = [[*prompt, *reference(target, prompt, NEW + 9)] for prompt in PROMPTS]
    guesser = Scripted(right_then_wrong(texts, [[0], [2], [4]]), taps=("last_normed",))
    values: list[list[float]] = [[] for _ in rows]
    for emission in decode(target, guesser, [Request(PROMPTS[row], max_new_tokens=NEW) for row in rows], logprobs=1):
        values[emission.index] += [entry.logprob for entry in emission.logprobs or []]
    return [(own, torch.cat(row.features)[:, 0]) for own, row in zip(values, guesser.rows, strict=True)]


def case(target: Transformer) -> None:
    """Every token of a batch of three gets what it gets when its row is decoded alone, and without a cache."""
    for row, (values, states) in enumerate(outputs(target, [0, 1, 2])):
        [(own_values, own_states)] = outputs(target, [row])
        assert len(values) == NEW and values == pytest.approx(own_values, abs=1e-4)
        assert_close(states, own_states, atol=1e-4, rtol=0)
        prompt = PROMPTS[row]
        said = reference(target, prompt, NEW)
        logits = dense_logits(target, [*prompt, *said[:-1]])
        with torch.inference_mode():
            assert_close(target.head(states), logits, atol=1e-3, rtol=0)
        wanted = logits[len(prompt) - 1 :].log_softmax(-1)[range(NEW), said]
        assert values == pytest.approx(wanted.tolist(), abs=1e-4)


def test_rows_are_those_of_their_tokens(tiny: Transformer) -> None:
    case(tiny)


@pytest.mark.parametrize("fault", ["another token's logprob", "another row's states", "another token's states"])
def test_planted_fault(fault: str, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    gathered, listed = turn._path_features, loop._logprobs

    def features(scores: Any, paths: list[list[int]]) -> Any:
        if fault == "another row's states":
            parts = gathered(scores, paths)
            return None if parts is None else [parts[0][: len(part)].expand_as(part) for part in parts]
        return gathered(scores, [[max(node - 1, 0) for node in path] for path in paths])

    if "logprob" in fault:
        monkeypatch.setattr(loop, "_logprobs", lambda logits, *more: listed(logits.roll(1, 0), *more))
    else:
        monkeypatch.setattr(turn, "_path_features", features)
    with must_fail():
        case(tiny)
