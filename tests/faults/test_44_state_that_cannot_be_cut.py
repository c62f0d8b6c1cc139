"""44: a recurrent target keeps rejected drafts in its state, and the text decays."""

from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.decoding.generate import generate
from outpace.errors import UnsupportedError
from outpace.models.shape import Shape
from outpace.models.toy import tiny_config
from outpace.models.transformer import Transformer
from outpace.verification.tree import DraftTree
from toys import Scripted, Watched, must_fail, reference, right_then_wrong

PROMPT, NEW = (5, 6, 7), 15


class Recurrent(Watched):
    """What it has read, it has read: it keeps every draft."""

    says = False

    def __init__(self, target: Transformer) -> None:
        super().__init__(target)
        self.can_rewind = self.says

    def open(self, slots: int, positions: int) -> Any:
        return super().open(slots, 4 * positions)

    def score(self, state: Any, last: Tensor, tree: DraftTree, taps: Any = ()) -> Any:
        self.nodes = tree.num_nodes.tolist()
        return super().score(state, last, tree, taps)

    def keep(self, state: Any, path: Tensor, num_accepted: list[int]) -> None:
        super().keep(state, torch.arange(max(self.nodes)).expand(len(self.nodes), -1), self.nodes)


def case(target: Transformer) -> None:
    """Refused by name with a drafter and before any work, or right; plain decoding is right in any case."""
    said = reference(target, PROMPT, NEW)
    for counts in ([0], [4], [2, 0, 4]):
        recurrent = Recurrent(target)
        script = right_then_wrong([[*PROMPT, *said, *said]], counts)
        try:
            result = generate(recurrent, Scripted(script), list(PROMPT), max_new_tokens=NEW, num_draft_tokens=4)
        except UnsupportedError as error:
            assert str(error).startswith("the target 'tiny-llama' cannot rewind") and "'scripted'" in str(error)
            assert recurrent.prefills == []
        else:
            assert result.token_ids == said
        assert generate(Recurrent(target), None, list(PROMPT), max_new_tokens=NEW).token_ids == said
    for changes in ({"layer_types": ["full_attention", "linear_attention"]}, {"model_type": "mamba"}):
        with pytest.raises(UnsupportedError, match=r"'(linear_attention|mamba)'"):
            Shape.from_config(tiny_config("qwen3", sliding_window=8, use_sliding_window=True) | changes)


def test_a_target_that_cannot_rewind_is_not_drafted_for(tiny: Transformer) -> None:
    case(tiny)


def test_planted_fault(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recurrent, "says", True)
    with must_fail():
        case(tiny)
