"""The largest logits of a hosted bf16 model are added up anew, where its head is a matrix and nothing follows it."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from hosts import hosted, model_of, random_ids
from outpace.models.hosted import Hosted, host
from outpace.models.refine import REFINED
from outpace.models.target import Target
from outpace.verification.tree import DraftTree
from toys import must_fail

PROMPTS = [random_ids(9, 1), random_ids(5, 2)]
CHAIN = DraftTree.from_lists([([3, 1], [-1, 0]), ([4, 1], [-1, 0])])


def halved(family: str, *, packed: bool, tied: bool) -> Any:
    """A host of a bf16 copy of a family's model, its head the embeddings or its own."""
    model = copy.deepcopy(model_of(family)).bfloat16()
    if tied:
        model.get_output_embeddings().weight = model.get_input_embeddings().weight
    return host(model, packed=packed)


def spoken(target: Target) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Logits and the states that led to them: of two prompts, and of a chain behind them."""
    state = target.open(2, 32)
    lengths = [len(prompt) for prompt in PROMPTS]
    ids = torch.tensor([prompt + [0] * (max(lengths) - len(prompt)) for prompt in PROMPTS])
    read = target.prefill(state, ids, lengths, ("last_normed",))
    scored = target.score(state, torch.tensor([7, 8]), CHAIN, ("last_normed",))
    assert read.features is not None and scored.features is not None
    ends = read.features[torch.arange(2), torch.tensor(lengths) - 1]
    return [(read.logits[:, 0], ends[:, 0]), (scored.logits.flatten(0, 1), scored.features[:, :, 0].flatten(0, 1))]


def exact(target: Target, rows: torch.Tensor) -> None:
    """The largest logits of every row are sums in fp32, where bf16 knows three digits."""
    for logits, states in spoken(target):
        assert logits.dtype == torch.float32
        whole = states.float() @ rows.float().T
        best = logits.topk(REFINED // 2).indices
        torch.testing.assert_close(logits.gather(1, best), whole.gather(1, best), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("packed", "tied"), [(False, False), (False, True), (True, True)])
def test_the_largest_logits_are_those_of_fp32(packed: bool, tied: bool) -> None:
    target = halved("llama", packed=packed, tied=tied)
    assert isinstance(target, Hosted) and target.packed is packed
    rows = target.model.get_input_embeddings().weight if tied else target.model.get_output_embeddings().weight
    exact(target, rows.detach())
    target.head_rows = None  # planted: left as the head rounded them
    with must_fail():
        exact(target, rows.detach())


def test_rows_that_lie_packed_are_not_kept_twice() -> None:
    assert halved("llama", packed=True, tied=False).head_rows is None


def test_logits_that_are_bent_behind_the_head_are_left() -> None:
    """Gemma's last softcap is not the head's: what the head would give is not what the model says."""
    target = halved("gemma2", packed=False, tied=False)
    assert target.head_rows is None and all(logits.dtype == torch.bfloat16 for logits, _ in spoken(target))


def test_full_precision_needs_none() -> None:
    target: Any = hosted("llama")
    assert target.head_rows is None


def test_a_head_with_a_bias_is_left() -> None:
    model = copy.deepcopy(model_of("phi")).bfloat16()
    assert isinstance(model.get_output_embeddings(), nn.Linear) and model.get_output_embeddings().bias is not None
    target: Any = host(model, packed=False)
    assert target.head_rows is None
