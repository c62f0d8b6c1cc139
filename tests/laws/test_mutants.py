"""The oracle can fail: rules with one planted fault are told from the right ones, and public faults give their numbers.

A mutant is a module of ours with one piece of its source text replaced. What survived would be a line that no proof
looks at. Everything is enumerated; no test here can raise a false alarm.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import pytest
import torch

from outpace.verification import branching, chain, matching
from outpace.verification.oracle import (
    Drafting,
    Drafts,
    Table,
    expected_tokens,
    fixed,
    map_sampler,
    output_law,
    ranked,
    sampled,
    total_variation,
)
from outpace.verification.rules import RULES
from outpace.verification.tree import DraftTree
from outpace.verification.verdict import Rule

SEEN = 1e-6
Make = Callable[[int, int, int], tuple[Table, Table]]
LINE = (-1, 0, 1)
BUSH = (-1, -1, 0, 0, 1)
BRANCH = (-1, 0, 0, 0)
SYMBOLS = {"rejection": "REJECTION", "block": "BLOCK", "tree-rejection": "TREE_REJECTION", "traversal": "TRAVERSAL"}


def mutate(module: ModuleType, *pieces: tuple[str, str]) -> dict[str, Any]:
    """The names of a module whose text has pieces replaced, each of which stands in it once."""
    source = inspect.getsource(module)
    for old, new in pieces:
        assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {module.__name__}"
        source = source.replace(old, new)
    names: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(source, f"<mutant of {module.__name__}>", "exec"), names)
    return names


def mutant_rule(name: str, module: ModuleType, *pieces: tuple[str, str]) -> Rule:
    """The rule of that name with a fault; a fault in what tree rules borrow from chains reaches them too."""
    names = mutate(module, *pieces)
    if SYMBOLS[name] not in names:
        lent = names
        names = mutate(branching, ("from outpace.verification.chain import rescue_chance, subtract_draft_", ""))
        names |= {borrowed: lent[borrowed] for borrowed in ("rescue_chance", "subtract_draft_")}
    rule: Rule = names[SYMBOLS[name]]
    return rule


@dataclass(frozen=True)
class Fault:
    """What to replace, in which rule to look, and at which drafts."""

    name: str
    old: str
    new: str
    shape: tuple[int, ...] = LINE
    deterministic: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.old} -> {self.new}"


IN_CHAIN = [
    # The residual.
    Fault("rejection", "scaled.sub_(draft).clamp_(min=0)", "scaled"),
    Fault("rejection", "scaled.sub_(draft).clamp_(min=0)", "scaled.scatter_(1, token[:, None], 0)"),
    Fault("rejection", "scaled.sub_(draft).clamp_(min=0)", "scaled.sub_(draft).abs_()"),
    Fault("block", "scaled.sub_(draft).clamp_(min=0)", "scaled.scatter_(1, token[:, None], 0)"),
    Fault("tree-rejection", "scaled.sub_(draft).clamp_(min=0)", "scaled", BUSH),
    Fault("traversal", "scaled.sub_(draft).clamp_(min=0)", "scaled.scatter_(1, token[:, None], 0)", BUSH),
    Fault("rejection", "scaled.scatter_(1, token[:, None], 0)", "scaled", LINE, True),
    Fault("tree-rejection", "scaled.scatter_(1, token[:, None], 0)", "scaled", BUSH, True),
    # The chance to stop early.
    Fault("block", "mass + (1 - weight)", "mass + 1"),
    Fault("block", "(mass / total).where(total > 0, 1)", "mass"),
    Fault("traversal", "(mass / total).where(total > 0, 1)", "weight", BUSH),
    # Which row judges which token.
    Fault("rejection", "target_probs[:, :-1].gather", "target_probs[:, 1:].gather"),
    Fault("block", "target_probs[:, :-1].gather", "target_probs[:, 1:].gather"),
    Fault("rejection", "draft_probs[:, :-1].gather", "draft_probs[:, 1:].gather"),
    # The ratio.
    Fault("rejection", "(target / draft).clamp(max=1)", "target"),
    Fault("rejection", "(target / draft).clamp(max=1)", "(target / draft / 0.9).clamp(max=1)"),
    Fault("rejection", "(target / draft).clamp(max=1)", "(target > draft).to(target.dtype)"),
    Fault("rejection", "torch.ones_like(target_probs[..., 0])", "0.9 * torch.ones_like(target_probs[..., 0])"),
    Fault("block", "target.log() - draft.log()", "target.log()"),
    # Blocks: the cap at every step, the last position capped too, Z from the rows after the node, h and not w.
    Fault("block", "walk.cummax(1).values.clamp(min=0)", "walk.clamp(min=0)"),
    Fault("block", "walk.cummax(1).values.clamp(min=0)", "walk.cummax(1).values"),
    Fault("block", "chances = weights[:, 1:].where", "chances = walk.exp().clamp(max=1).where"),
    Fault("block", "weights[:, row, None] * target_probs[:, row]", "target_probs[:, row]"),
    Fault("block", "weights[:, row, None] * target_probs[:, row]", "weights[:, row, None] * target_probs[:, row - 1]"),
    Fault("block", "else draft_probs[:, row]\n", "else draft_probs[:, row - 1]\n"),
    Fault("block", "rescue_chance(mass, weights[:, row])", "weights[:, row]"),
    Fault("block", "range(1, tree.tokens.shape[1])", "range(1, tree.tokens.shape[1] - 1)"),
    # Where the path ends.
    Fault("rejection", '"rejection", _judge_tokens, _first_failure', '"rejection", _judge_tokens, _last_success'),
    Fault("block", '"block", _judge_block, _last_success', '"block", _judge_block, _first_failure'),
    # What is drawn there.
    Fault("block", ".mul_(judged.weights[batch, end, None])", ""),
    Fault("rejection", "None if draft_probs is None else draft_probs[batch, end]", "draft_probs[batch, end - 1]"),
    Fault("rejection", "(end == judged.lengths) | ~(rest.sum(1) > 0)", "~(rest.sum(1) > 0)"),
    Fault("rejection", "(end == judged.lengths) | ~(rest.sum(1) > 0)", "end == end"),
    Fault("rejection", "target_probs[batch[plain], end[plain]]", "target_probs[batch[plain], end[plain] - 1]"),
    Fault("block", "target_probs[batch[plain], end[plain]]", "target_probs[batch[plain], 0 * end[plain]]"),
]

IN_BRANCHING = [
    Fault("tree-rejection", "self.weight * target / draft", "self.weight * target", BUSH),
    Fault("traversal", "self.weight * target / draft", "target / draft", BUSH),
    # A failed sibling: the residual is carried on, the draft's law loses the token and is renormalised.
    Fault("tree-rejection", "place.fail(group.token(place, node))\n        else", "pass\n        else", BUSH),
    Fault("tree-rejection", "rest.div_(mass[:, None])", "rest", BUSH),
    Fault("tree-rejection", "rest.div_(mass[:, None])", "rest", BUSH, True),
    Fault("traversal", "target[some].mul_(weight[:, None])", "target[some]", BUSH),
    Fault("traversal", "self.weight[some] = rescue_chance(mass, weight)", "pass", BUSH),
    Fault("tree-rejection", "draft.scatter_(1, token[:, None], 0)", "draft", BRANCH),
    Fault("traversal", "draft.scatter_(1, token[:, None], 0)", "draft", BRANCH),
    Fault("tree-rejection", "unused.div_(total.where(total > 0, 1))", "unused", BUSH),
    Fault("traversal", "unused.div_(total.where(total > 0, 1))", "unused", BUSH),
    # The walks.
    Fault("tree-rejection", "reached[place.who, row] *= 1 - taken", "pass", BUSH),
    Fault("tree-rejection", "reached[place.who, row] * taken", "taken", BUSH),
    Fault("tree-rejection", "(row := parent + 1)", "(row := node)", BUSH),
    Fault("tree-rejection", "if bool((taken > 0).any()):", "if bool((taken > 0.9).any()):", BUSH),
    Fault("traversal", "for node in children[place.row]:", "for node in children[place.row][::-1]:", BRANCH),
    Fault("traversal", "going[place.who] *= 1 - taken", "pass", BUSH),
    Fault("traversal", "place.who[can], weight[can])", "place.who[can], weight[can].sqrt())", BUSH),
    Fault("traversal", "return\n        place.fail(group.token(place, node))", "return", BUSH),
]  # fmt: skip


def largest_distance(rule: Rule, fault: Fault, pairs: list[tuple[Table, Table]]) -> float:
    make = ranked if fault.deterministic else sampled
    laws = ((output_law(rule, target, make(draft, fault.shape), 4), target.joint(4)) for target, draft in pairs)
    return max(math.inf if law.isnan().any() else total_variation(law, reference) for law, reference in laws)


@pytest.mark.parametrize(
    ("module", "fault"),
    [(chain, fault) for fault in IN_CHAIN] + [(branching, fault) for fault in IN_BRANCHING],
    ids=lambda value: str(value) if isinstance(value, Fault) else "",
)
def test_planted_faults_are_seen(module: ModuleType, fault: Fault, dense: Make, edges: Make) -> None:
    pairs = [make(3, 4, seed) for make in (dense, edges) for seed in range(2)]
    assert largest_distance(RULES[fault.name], fault, pairs) < 1e-12
    assert largest_distance(mutant_rule(fault.name, module, (fault.old, fault.new)), fault, pairs) > SEEN


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("steps.masked_fill(repeated | ~tree.real, 0)", "steps"),
        ("    law[at_node] = 0\n", ""),
        ("tree.parents[batch, node] + 1, tree", "node + 1, tree"),
        ("steps[:, None].where(tree.ancestor_mask(), 1).prod(2)", "steps"),
        (".index_put((batch, node), target_probs[at_node])", ".index_put((batch, node), target_probs[at_node].sqrt())"),
    ],
)
def test_faults_of_matching_are_seen(old: str, new: str, dense: Make) -> None:
    target, _ = dense(3, 3, 4)
    drafting = fixed(target, (-1, -1, 0, 1), (0, 0, 1, 2))
    rule = mutate(matching, (old, new))["MATCH"]
    assert total_variation(output_law(RULES["match"], target, drafting, 3), target.joint(3)) < 1e-12
    assert total_variation(output_law(rule, target, drafting, 3), target.joint(3)) > SEEN


@pytest.mark.parametrize(
    ("module", "symbol", "old", "new"),
    [
        (matching, "MATCH", "get((place - 1, token))", "get((place, token))"),
        (matching, "MATCH", "table[row][place]", "table[row][0]"),
        (matching, "MATCH", "final[row] = max(token, 0)", "final[row] = 0"),
        (chain, "REJECTION", "coins[:, :-1] < judged.chances", "coins[:, :1] < judged.chances"),
        (chain, "BLOCK", "draft_probs), coins[:, -1])", "draft_probs), coins[:, 0])"),
        (chain, "BLOCK", "coins[:, :-1] < judged.chances", "coins[:, :-1] > judged.chances"),
        (branching, "TREE_REJECTION", "coins[who, node] < chance", "coins[who, node - 1] < chance"),
        (branching, "TRAVERSAL", "coins[here.who, -1]", "coins[here.who, 0]"),
    ],
)
def test_faults_of_samplers_are_seen(module: ModuleType, symbol: str, old: str, new: str, dense: Make) -> None:
    """The law of the rule stays right here; only what is done with the coins is wrong."""
    rule = mutate(module, (old, new))[symbol]
    shape = (-1, 0) if module is chain else (-1, -1)
    target, draft = dense(4, 2, 6)
    drafts = sampled(draft, shape)(torch.zeros(1, dtype=torch.int64))
    assert drafts.draft_probs is not None
    for trial in range(len(drafts.chances)):
        one = [piece[trial, None] for piece in (drafts.tree.tokens, drafts.tree.parents, drafts.tree.num_nodes)]
        given = target.rows[drafts.places[trial, None]], DraftTree(*one), drafts.draft_probs[trial, None]
        if (map_sampler(rule, *given).law - rule.law(*given)[0]).abs().max() > SEEN:
            return
    pytest.fail("no draft told the mutant from the rule")


# Published faults, with the numbers they lead to.

TARGET = Table(torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64))
DRAFT = Table(torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64))


def claiming(drafting: Drafting, draft_probs: torch.Tensor) -> Drafting:
    """The same drafts, said to be drawn from another law."""

    def lie(starts: torch.Tensor) -> Drafts:
        drafts = drafting(starts)
        rows = len(drafts.places[0])
        return replace(drafts, draft_probs=draft_probs.expand(len(drafts.chances), rows, -1))

    return lie


def first_token(rule: Rule, drafting: Drafting, target: Table = TARGET) -> list[float]:
    """The law of the first emitted token when one token is drafted."""
    vocab = target.vocab
    deep = Table(target.rows.expand(1 + vocab, vocab))
    return output_law(rule, deep, drafting, 2).reshape(vocab, vocab).sum(1).tolist()


def close(*values: float) -> Any:
    return pytest.approx(values, abs=6e-4)


@pytest.mark.parametrize("name", ["rejection", "block", "tree-rejection", "traversal"])
def test_wrong_claims_of_the_draft(name: str) -> None:
    """A draft from the two most probable tokens claimed as the whole law; a fixed token claimed as a soft law."""
    rule = RULES[name]
    deep = Table(DRAFT.rows.expand(5, 4))
    kept = Table(torch.tensor([[0, 0, 0.3 / 0.7, 0.4 / 0.7]], dtype=torch.float64).expand(5, 4))
    assert first_token(rule, sampled(deep, (-1,))) == pytest.approx(TARGET.rows[0].tolist(), abs=1e-12)
    assert first_token(rule, sampled(kept, (-1,))) == pytest.approx(TARGET.rows[0].tolist(), abs=1e-12)
    assert first_token(rule, claiming(sampled(kept, (-1,)), DRAFT.rows)) == close(0.571, 0.143, 0.214, 0.071)
    always = fixed(deep, (-1,), (3,))
    assert first_token(rule, always) == pytest.approx(TARGET.rows[0].tolist(), abs=1e-12)
    assert first_token(rule, claiming(always, DRAFT.rows)) == close(0.70, 0.175, 0, 0.125)


@pytest.mark.parametrize(
    ("new", "law"),
    [("scaled", (0.35, 0.35, 0.225, 0.075)), ("scaled.scatter_(1, token[:, None], 0)", (0.372, 0.363, 0.205, 0.059))],
)
def test_wrong_residuals(new: str, law: tuple[float, ...]) -> None:
    """A plain redraw from the target; only the rejected token zeroed."""
    drafting = sampled(Table(DRAFT.rows.expand(5, 4)), (-1,))
    rule = mutant_rule("rejection", chain, ("scaled.sub_(draft).clamp_(min=0)", new))
    assert first_token(rule, drafting) == close(*law)


def test_second_siblings() -> None:
    """The second child judged against the target again; against the draft's old law; one-hots not renormalised."""
    target = Table(torch.tensor([[0.1, 0.2, 0.4, 0.3]], dtype=torch.float64))
    draft = Table(torch.tensor([[0.4, 0.35, 0.15, 0.1]], dtype=torch.float64).expand(5, 4))
    pair = sampled(draft, (-1, -1))
    right = pytest.approx(target.rows[0].tolist(), abs=1e-12)
    assert first_token(RULES["tree-rejection"], pair, target) == right
    assert first_token(RULES["traversal"], pair, target) == right
    again = mutant_rule(
        "tree-rejection",
        branching,
        ("if self.target is None:\n            return", "if True:\n            return"),
        ("target[some].mul_(weight[:, None])", "self.target_row[self.who]"),
    )
    assert first_token(again, pair, target) == close(0.145, 0.29, 0.33, 0.235)
    kept = ("if self.draft is not None and draft is not None:", "if False:")
    old_law = mutant_rule("tree-rejection", branching, kept)
    assert first_token(old_law, pair, target) == pytest.approx((0.1, 0.2, 0.4042, 0.2958), abs=6e-5)
    small = Table(torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64))
    fixed_pair = fixed(Table(small.rows.expand(4, 3)), (-1, -1), (2, 1))
    assert first_token(RULES["tree-rejection"], fixed_pair, small) == pytest.approx([0.5, 0.3, 0.2], abs=1e-12)
    loose = mutant_rule("tree-rejection", branching, ("rest.div_(mass[:, None])", "rest"))
    assert first_token(loose, fixed_pair, small) == close(0.56, 0.24, 0.20)


def test_matching_loses_acceptance_and_nothing_else() -> None:
    """Accept if the draft equals a fresh draw of the target: right law, acceptance sum p q instead of sum min(p, q)."""
    deep, drafting = Table(TARGET.rows.expand(5, 4)), sampled(Table(DRAFT.rows.expand(5, 4)), (-1,))
    assert first_token(RULES["match"], drafting) == pytest.approx(TARGET.rows[0].tolist(), abs=1e-12)
    assert expected_tokens(RULES["match"], deep, drafting) - 1 == pytest.approx(0.175, abs=1e-12)
    assert expected_tokens(RULES["rejection"], deep, drafting) - 1 == pytest.approx(0.5, abs=1e-12)
