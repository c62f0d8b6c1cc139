"""What a draft in flight sees, by definition; and a state that is no cache of ours."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outpace.models.cached import tree_mask
from outpace.models.toy import table_target, tiny_transformer
from outpace.verification.tree import DraftTree


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    """Parents and kept tokens of every row, some without a draft."""
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(0, 5))
        rows.append([draw(st.integers(-1, node - 1)) for node in range(count)])
    return rows, [draw(st.integers(1, 6)) for _ in rows]


def sees(parents: list[int], start: int, row: int, column: int) -> bool:
    """Kept tokens, the root, and whoever lies on the way to the root."""
    if column <= start:
        return True
    node = row - 1
    while 0 <= node < len(parents):
        if column == start + 1 + node:
            return True
        node = parents[node]
    return False


@given(batches())
def test_a_node_sees_the_text_and_its_ancestors(batch: tuple[list[list[int]], list[int]]) -> None:
    rows, starts = batch
    tree = DraftTree.from_lists([([1] * len(parents), parents) for parents in rows])
    context = max(starts) + 1 + tree.tokens.shape[1]
    seen = tree_mask(tree, torch.tensor(starts), context).tolist()
    for parents, start, found in zip(rows, starts, seen, strict=True):
        for row in range(1 + len(parents)):
            wanted = [sees(parents, start, row, column) for column in range(context)]
            assert found[row] == wanted
        for filler in found[1 + len(parents) :]:
            assert filler[start], "a row of filler that sees nothing is no number"


def test_the_state_of_another_target() -> None:
    table = table_target(torch.zeros(4, 4))
    with pytest.raises(TypeError, match="a Transformer was given the state of another target: Texts"):
        tiny_transformer().select(table.open(1, 4), [])
