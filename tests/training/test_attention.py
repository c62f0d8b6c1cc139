"""Attention of a training-time test against one softmax over all columns, written out."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from outpace.training import attention as module
from outpace.training.attention import Spans, attend


def drawn(seed: int, *sizes: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sizes, generator=generator, dtype=torch.float64).requires_grad_()


def plain(queries: Tensor, keys: Tensor, values: Tensor, later: list[tuple[Tensor, Tensor]], spans: Spans) -> Tensor:
    """Every query on its own, over a list of the keys that it sees."""
    rows, (_, heads, width) = [], queries.shape
    texts = torch.arange(len(spans.queries)).repeat_interleave(torch.tensor(spans.queries))
    for index, query in enumerate(queries):
        start = sum(spans.keys[: int(texts[index])])
        seen = slice(start, start + int(spans.places[index]) + 1)
        key = torch.cat((keys[seen], *(each[index : index + 1] for each, _ in later)))
        value = torch.cat((values[seen], *(each[index : index + 1] for _, each in later)))
        key, value = (each.repeat_interleave(heads // each.shape[1], 1) for each in (key, value))
        weights = (torch.einsum("hw,chw->hc", query, key) / width**0.5).softmax(-1)
        rows.append(torch.einsum("hc,chw->hw", weights, value))
    return torch.stack(rows)


CASES = {
    "one key": Spans([1], [1], torch.tensor([0])),
    "every place": Spans([5, 3], [5, 3], torch.tensor([0, 1, 2, 3, 4, 0, 1, 2])),
    "some places": Spans([6, 0, 4], [3, 0, 2], torch.tensor([1, 2, 5, 0, 3])),
}


@given(
    spans=st.sampled_from(list(CASES.values())),
    heads=st.sampled_from([(1, 1), (4, 2), (3, 1), (2, 2)]),
    steps=st.integers(0, 3),
    tile=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_it_is_one_softmax_over_all_columns(
    spans: Spans, heads: tuple[int, int], steps: int, tile: int, seed: int
) -> None:
    """Values and gradients, wherever the tiles are cut."""
    count, width = sum(spans.queries), 4
    queries = drawn(seed, count, heads[0], width)
    keys, values = (drawn(seed + shift, sum(spans.keys), heads[1], width) for shift in (1, 2))
    own = [drawn(seed + 3 + shift, count, heads[1], width) for shift in range(2 * steps)]
    later = list(zip(own[::2], own[1::2], strict=True))
    wanted = drawn(seed + 20, count, heads[0], width).detach()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TILE", tile)
        fast = attend(queries, keys, values, later, Spans(spans.keys, spans.queries, spans.places))
    expected = plain(queries, keys, values, later, spans)
    torch.testing.assert_close(fast, expected)
    inputs = [queries, keys, values, *own]
    for ours, theirs in zip(
        torch.autograd.grad(fast, inputs, wanted), torch.autograd.grad(expected, inputs, wanted), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_scores_far_apart_lose_no_numbers() -> None:
    spans = CASES["every place"]
    queries, keys, values = 100 * drawn(1, 8, 2, 4), 100 * drawn(2, 8, 1, 4), drawn(3, 8, 1, 4)
    later = [(100 * drawn(4, 8, 1, 4), drawn(5, 8, 1, 4))]
    torch.testing.assert_close(
        attend(queries, keys, values, later, spans), plain(queries, keys, values, later, spans), rtol=1e-7, atol=1e-9
    )


def test_scores_are_not_kept() -> None:
    """What is saved for the way back grows with the text, not with its square."""

    def kept(time: int) -> int:
        spans, sizes = Spans([time], [time], torch.arange(time)), []
        states = [drawn(shift, time, 2, 4) for shift in range(3)]

        def note(tensor: Tensor) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            attend(*states, [(states[1], states[2])], spans)
        return sum(sizes)

    assert kept(64) == 2 * kept(32)


def test_autocast_changes_nothing() -> None:
    """Not a bit, forward and back."""
    spans = CASES["some places"]
    given = [drawn(1, 5, 2, 4), drawn(2, 10, 1, 4), drawn(3, 10, 1, 4)]
    given = [each.detach().float().requires_grad_() for each in given]
    later = [(given[1][:5], given[2][:5])]

    def found() -> list[Tensor]:
        out = attend(*given, later, spans)
        return [out, *torch.autograd.grad(out.square().sum(), given)]

    plainly = found()
    with torch.autocast("cpu", torch.bfloat16):
        cast = found()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(cast, plainly, strict=True))
