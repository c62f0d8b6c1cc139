"""The sampler is the law: the volume of the coins that lead to each outcome is that outcome's probability.

Samplers are mapped as black boxes, by bisection of every coin, so that there is no sampling error and no false alarm.
At the breakpoints themselves, one step beside them, at 0 and at the largest coin, nothing impossible comes out.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from outpace.verification.oracle import LAST_COIN, Table, map_sampler, outcomes, ranked, sampled
from outpace.verification.rules import CHAIN_ONLY, RULES
from outpace.verification.tree import DraftTree

Make = Callable[[int, int, int], tuple[Table, Table]]
Given = tuple[Tensor, DraftTree, Tensor | None]
LINES, TREES = [(-1,), (-1, 0), (-1, 0, 1)], [(-1, 0), (-1, -1, 0), (-1, 0, 0)]
CASES = [
    *((name, shape, False) for name in CHAIN_ONLY for shape in LINES),
    *((name, shape, False) for name in ("tree-rejection", "traversal") for shape in TREES),
    *((name, (-1, 0, 1), True) for name in CHAIN_ONLY),
    *((name, (-1, -1, 0), True) for name in RULES if name not in CHAIN_ONLY),
]


def a_draft(target: Table, draft: Table, shape: tuple[int, ...], deterministic: bool, choice: int) -> Given:
    """One of the drafts that can happen, with the rows it is judged by."""
    drafts = (ranked if deterministic else sampled)(draft, shape)(torch.zeros(1, dtype=torch.int64))
    pick = slice(choice % len(drafts.chances), choice % len(drafts.chances) + 1)
    tree = DraftTree(drafts.tree.tokens[pick], drafts.tree.parents[pick], drafts.tree.num_nodes[pick])
    law = None if drafts.draft_probs is None else drafts.draft_probs[pick]
    return target.rows[drafts.places[pick]], tree, law


def critical(breakpoints: tuple[Tensor, ...]) -> Tensor:
    """Every combination of ends and breakpoints; up to two nodes, of the breakpoints' float64 neighbours too."""
    ends = torch.tensor([0.0, LAST_COIN], dtype=torch.float64)
    axes = []
    for axis in breakpoints:
        inner = axis[1:-1]
        beside = [torch.nextafter(inner, torch.full_like(inner, side)) for side in (0.0, 1.0)]
        axes.append(torch.cat([ends, inner, *(beside if len(breakpoints) < 4 else ())]).unique())
    return torch.cartesian_prod(*axes).reshape(-1, len(axes))


@pytest.mark.parametrize(("name", "shape", "deterministic"), sorted(CASES), ids=str)
def test_the_sampler_is_the_law(
    name: str, shape: tuple[int, ...], deterministic: bool, dense: Make, edges: Make
) -> None:
    rule = RULES[name]
    for make, choice in ((dense, 5), (edges, 2))[: 1 if deterministic else 2]:
        given = a_draft(*make(3, 3, len(shape)), shape, deterministic, choice)
        law, mapped = rule.law(*given)[0], map_sampler(rule, *given)
        torch.testing.assert_close(mapped.law, law, rtol=0, atol=1e-12)
        happened = outcomes(rule, *given, critical(mapped.breakpoints)).unique()
        # An outcome seen at one bit only has no volume; none may have probability zero but by rounding of the law.
        assert (law.flatten()[happened] > 0).all()


@pytest.mark.parametrize("name", RULES)
def test_single_precision_never_emits_the_impossible(name: str, edges: Make) -> None:
    """The same in fp32, where probabilities round: the emitted token and all accepted ones have target mass."""
    for seed in (1, 2):
        given = a_draft(*edges(3, 3, seed), (-1, 0), False, seed)
        target, tree, law = given
        coins = critical(map_sampler(RULES[name], *given).breakpoints)
        coins = torch.cat([coins, coins - 6e-8, coins + 6e-8]).clamp(0, LAST_COIN)
        rows = outcomes(RULES[name], target.float(), tree, None if law is None else law.float(), coins).unique()
        end, token = rows // 3, rows % 3
        assert (target[0, end, token] > 0).all()
        accepted = torch.stack([target[0, node, tree.tokens[0, node]] for node in range(2)])
        assert all((accepted[: int(last)] > 0).all() for last in end)
