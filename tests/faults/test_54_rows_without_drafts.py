"""54: rows are merged as if each had as many drafts as its neighbours, though one of them has none."""

from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.decoding import turn
from outpace.decoding.loop import Request, decode
from outpace.models.cache import Cache
from outpace.models.transformer import Transformer
from toys import Scripted, must_fail, reference, right_then_wrong

PROMPTS = [(9,), (5, 6, 7), (1, 2, 3, 4, 5, 6, 7)]
NEW = 13
DRAFTS = (0, 2, 5)


def case(target: Transformer) -> None:
    """Rows with 0, 2 and 5 drafts a turn, the empty one first, in the middle and last: own tokens, own features."""
    texts = [[*prompt, *reference(target, prompt, NEW + 9)] for prompt in PROMPTS]
    for shift in range(3):
        sizes = {PROMPTS[row]: DRAFTS[(row + shift) % 3] for row in range(3)}
        said = right_then_wrong(texts, [[1], [5], [0]])
        guesser = Scripted(
            lambda row, limit, said=said, sizes=sizes: said(row, min(limit, sizes[tuple(row.prompt)])), taps=(0,)
        )
        requests = [Request(prompt, max_new_tokens=NEW) for prompt in PROMPTS]
        emitted: list[list[int]] = [[] for _ in PROMPTS]
        for emission in decode(target, guesser, requests, num_draft_tokens=5):
            emitted[emission.index] += emission.ids
        assert emitted == [reference(target, prompt, NEW) for prompt in PROMPTS]
        assert {len(draft) for row, _, draft in guesser.drafts if sizes[tuple(row.prompt)] == 0} == {0}
        for row in guesser.rows:
            wanted = target.embeddings[torch.tensor(row.known[:-1])]
            torch.testing.assert_close(torch.cat(row.features)[:, 0], wanted)


def test_an_empty_row_among_full_ones(tiny: Transformer) -> None:
    case(tiny)


@pytest.mark.parametrize("fault", ["features", "cache"])
def test_planted_fault(fault: str, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    gathered, kept = turn._path_features, Cache.keep

    def keep(self: Cache, path: Tensor, num_accepted: list[int]) -> None:
        kept(self, path, [min(max(num_accepted), 1) if length < 14 else 0 for length in self.lengths])

    def features(scores: Any, paths: list[list[int]]) -> Any:
        return gathered(scores, [paths[0]] * len(paths))

    if fault == "cache":
        monkeypatch.setattr(Cache, "keep", keep)
    else:
        monkeypatch.setattr(turn, "_path_features", features)
    with must_fail():
        case(tiny)
