"""Judge the target's answer: which rule is in force in each row, what it decides, and which rows have no distribution.

Knows nothing of models or caches: logits, drafts and the keys of coins come in, verdicts go out.
"""

import math
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outpace.decoding.processors import Processor, process
from outpace.drafters.drafter import Proposal
from outpace.errors import NumericsError, UsageError
from outpace.verification.coins import Keys
from outpace.verification.matching import candidates, race, walk
from outpace.verification.probabilities import Sampling, argmax, batch_probability_rows, draw
from outpace.verification.rules import RULES, rule_named
from outpace.verification.tree import DraftTree
from outpace.verification.verdict import Verdict

COUPLING = "coupling"


def judge(
    logits: Float[Tensor, "batch rows vocab"],
    proposal: Proposal,
    samplings: list[Sampling],
    keys: Keys,
    rule: str | None,
    errors: list[NumericsError | None] | None = None,
) -> tuple[Verdict, tuple[str, ...], tuple[NumericsError | None, ...]]:
    """Judge every row by the rule in force there, name it, and say which rows could not be judged.

    Rows of one rule are judged together.

    Args:
        errors: rows that are known to be unusable; what they emit means nothing.
    """
    rules = tuple(
        _rule_in_force(sampling, coupled, proposal, rule)
        for sampling, coupled in zip(samplings, keys.coupled, strict=True)
    )
    found: list[NumericsError | None] = errors or [None] * len(rules)
    if len(set(rules)) == 1:
        return _judge_alike(rules[0], logits, proposal, samplings, keys, found), rules, tuple(found)
    parts: list[tuple[list[int], Verdict]] = []
    for name in sorted(set(rules)):
        rows = [row for row, other in enumerate(rules) if other == name]
        index = torch.tensor(rows)
        part = Proposal(
            _rows_of(proposal.tree, index), None if proposal.draft_probs is None else proposal.draft_probs[index]
        )
        chosen, own = [samplings[row] for row in rows], [found[row] for row in rows]
        parts.append((rows, _judge_alike(name, logits[index], part, chosen, keys.select(rows), own)))
        for row, error in zip(rows, own, strict=True):
            found[row] = error
    return _merge(parts, len(rules)), rules, tuple(found)


def _rule_in_force(sampling: Sampling, coupled: bool, proposal: Proposal, rule: str | None) -> str:
    """Greedy rows follow the argmax; a named rule wins; a seed couples; else the best rule for this kind of draft."""
    if sampling.greedy:
        return "greedy"
    if rule is not None:
        return rule
    if coupled:
        return COUPLING
    if proposal.draft_probs is None:
        return "match"
    return "block" if proposal.tree.is_chain else "tree-rejection"


CHOOSING = frozenset({"greedy", "match", COUPLING})
"""Rules by which the target chooses a token at each row by itself: rows off the path need no choice."""


def _judge_alike(
    name: str,
    logits: Float[Tensor, "batch rows vocab"],
    proposal: Proposal,
    samplings: list[Sampling],
    keys: Keys,
    errors: list[NumericsError | None],
) -> Verdict:
    """Judge rows by one rule, and note in ``errors`` which have no distribution."""
    if name in CHOOSING:
        return walk(proposal.tree, _Chooser(name, logits, proposal.tree, samplings, keys, errors), name)
    # Once, for all that follows: even a maximum costs more in bf16.
    logits = _examine(logits if logits.dtype == torch.float64 else logits.float(), proposal.tree, keys, errors)
    rule, coins = RULES[name], verdict_coins(name, keys, logits.shape[1], logits.device)
    if rule.judge_reached is None:
        return rule.judge(batch_probability_rows(logits, samplings), proposal.tree, proposal.draft_probs, coins)

    @cache
    def row_at(row: int) -> Float[Tensor, "batch vocab"]:
        return batch_probability_rows(logits[:, row : row + 1], samplings)[:, 0]

    return rule.judge_reached(row_at, proposal.tree, proposal.draft_probs, coins)


EAGER = 8
"""Once a path has left the root, drafts of up to so many nodes have all their rows chosen for at once, if a row costs
little: one step of a walk costs as much as several rows. Ranking a row, or racing on it, costs more than a step."""


class _Chooser:
    """What the target chooses at rows that a path has come to: its argmax, its draw, or the winner of its race."""

    def __init__(
        self,
        name: str,
        logits: Float[Tensor, "batch rows vocab"],
        tree: DraftTree,
        samplings: list[Sampling],
        keys: Keys,
        errors: list[NumericsError | None],
    ) -> None:
        self.name, self.logits, self.tree, self.keys, self.errors = name, logits, tree, keys, errors
        self.samplings = samplings
        self.wrong: dict[tuple[int, int], float] = {}
        self.known: dict[tuple[int, int], int] = {}
        truncated = any(sampling.truncates for sampling in samplings)
        self.plain = name != COUPLING and not truncated and not any(sampling.greedy for sampling in samplings)
        self.eager = name != COUPLING and logits.shape[1] <= EAGER + 1 and not truncated

    def __call__(self, rows: list[int], places: list[int]) -> list[int]:
        """One token a row; -1 where the row is no distribution, which is noted."""
        at = list(zip(rows, places, strict=True))
        if self.eager and not self.known and places[0] > 0:
            below = [(row, place) for row in rows for place in range(1, self.logits.shape[1])]
            self.known = dict(zip(below, self._choose(self.logits[rows, 1:].flatten(0, 1), below), strict=True))
        if self.known:
            tokens = [self.known[one] for one in at]
        else:  # a view costs less than a copy, where it is one row
            some = self.logits[at[0]][None] if len(at) == 1 else self.logits[rows, places]
            tokens = self._choose(some, at)
        for row, place in at if self.wrong else []:
            if (row, place) in self.wrong and self.errors[row] is None:
                self.errors[row] = _no_distribution(self.tree, self.keys, row, place, self.wrong[row, place])
        return tokens

    def _choose(self, logits: Float[Tensor, "some vocab"], at: list[tuple[int, int]]) -> list[int]:
        if logits.dtype != torch.float64:
            logits = logits.float()  # once: even a maximum costs more in bf16
        if self.name == "greedy":
            chosen, shown = argmax(logits)
        else:
            chosen, shown = self._sample(logits, at)
        tokens: list[int] = chosen.tolist()
        if not math.isfinite(shown.sum()):
            for index in (~shown.isfinite()).nonzero()[:, 0].tolist():
                self.wrong[at[index]], tokens[index] = float(self.logits[at[index]].amax()), -1
        return tokens

    def _sample(
        self, logits: Float[Tensor, "some vocab"], at: list[tuple[int, int]]
    ) -> tuple[Int[Tensor, " some"], Float[Tensor, " some"]]:
        """A token of each row, and a number that is finite where the row is a distribution."""
        largest = None if self.plain else logits.amax(-1)
        if largest is not None and not math.isfinite(largest.sum()):
            logits = logits.masked_fill(~largest.isfinite()[:, None], 0.0)
        probs = batch_probability_rows(logits.unsqueeze(1), [self.samplings[row] for row, _ in at])
        tokens = self._draw(probs, at) if self.name == "match" else self._race(probs, at)
        # A softmax without a filter shows in any entry what the largest logit would: one pass over the row less.
        return tokens, probs[:, 0, 0] if largest is None else largest

    def _draw(self, probs: Float[Tensor, "some 1 vocab"], at: list[tuple[int, int]]) -> Int[Tensor, " some"]:
        coins = [self.keys.coin("verdict", row, place) for row, place in at]
        return draw(probs[:, 0], torch.tensor(coins, dtype=torch.float64, device=probs.device))

    def _race(self, probs: Float[Tensor, "some 1 vocab"], at: list[tuple[int, int]]) -> Int[Tensor, " some"]:
        ids = candidates(probs)
        depths = torch.tensor([[_depth(self.tree, row, place)] for row, place in at], device=ids.device)
        noise = self.keys.select([row for row, _ in at]).noise(depths, ids)
        return race(probs, ids, noise.times, noise.tail_times, noise.tail_coins)[:, 0]


def _depth(tree: DraftTree, row: int, place: int) -> int:
    """How far a row of the tree lies behind the root, which is row 0."""
    return int(tree.depths()[row, place - 1]) if place else 0


def verdict_coins(
    name: str, keys: Keys, count: int, device: torch.device | None = None
) -> Float[Tensor, "batch coins"]:
    """The coins that a rule judges by: a row's own stay the same, however wide the drafts of other rows make the batch.

    The last column draws the next token, except in ``match``, where every column draws: it has coin 0, and node i has
    coin 1 + i.
    """
    coins = keys.coins("verdict", count, device)
    return coins if name == "match" else coins.roll(-1, 1)


def _merge(parts: list[tuple[list[int], Verdict]], batch: int) -> Verdict:
    """One verdict of several, each for its own rows."""
    depth = max(part.path.shape[1] for _, part in parts)
    first = parts[0][1]
    path = first.path.new_full((batch, depth), -1)
    accepted, tokens = first.num_accepted.new_zeros(batch), first.next_token.new_zeros(batch)
    for rows, part in parts:
        path[rows, : part.path.shape[1]] = part.path
        accepted[rows], tokens[rows] = part.num_accepted, part.next_token
    names = "+".join(part.rule for _, part in parts)
    return Verdict(path, accepted, tokens, names, all(part.lossless for _, part in parts))


def _no_distribution(tree: DraftTree, keys: Keys, row: int, place: int, largest: float) -> NumericsError:
    return NumericsError(
        f"the target's logits for position {keys.starts[row] + _depth(tree, row, place)} are no distribution: "
        f"their largest is {largest}",
        hint="try --dtype fp32; if it stays, the weights are damaged",
    )


def _examine(
    logits: Float[Tensor, "batch rows vocab"], tree: DraftTree, keys: Keys, errors: list[NumericsError | None]
) -> Float[Tensor, "batch rows vocab"]:
    """Note which rows are no distribution, in any real place, and set them to zero: judging them then harms nobody.

    A largest logit is finite unless the row holds a NaN or an infinity, or nothing but -inf: one maximum tells.
    """
    largest = logits.amax(-1)
    if not math.isfinite(largest.sum()):
        wrong = ~largest.isfinite()
        wrong[:, 1:] &= tree.real.to(wrong.device)
        for row, place in wrong.nonzero().tolist():
            errors[row] = errors[row] or _no_distribution(tree, keys, row, place, float(largest[row, place]))
        logits = logits.masked_fill(~largest.isfinite()[..., None], 0.0)
    return logits


def processed(
    logits: Float[Tensor, "batch rows vocab"],
    tree: DraftTree,
    texts: list[list[int]],
    processors: list[tuple[Processor, ...]],
    keys: Keys,
) -> tuple[Float[Tensor, "batch rows vocab"], list[NumericsError | None]]:
    """The logits behind every row's processors, and for each row None, or why it has none.

    Each row alone, so that one which a processor leaves without a token does not end the others.
    """
    errors: list[NumericsError | None] = [None] * len(texts)
    if not any(processors):
        return logits, errors
    logits = _examine(logits if logits.dtype == torch.float64 else logits.float(), tree, keys, errors)
    rows = []
    for row, own in enumerate(processors):
        alone = logits[row : row + 1]
        if own and errors[row] is None:
            try:
                alone = process(alone, _rows_of(tree, torch.tensor([row])), [texts[row]], [own])
            except NumericsError as error:
                errors[row], alone = error, torch.zeros_like(alone)
        rows.append(alone)
    return torch.cat(rows), errors


def _rows_of(tree: DraftTree, index: Int[Tensor, " some"]) -> DraftTree:
    return DraftTree(tree.tokens[index], tree.parents[index], tree.num_nodes[index])


def check_rule(rule: str | None, samplings: list[Sampling]) -> None:
    """Refuse a rule that is not one, or that contradicts the sampling, before work starts.

    Raises:
        UsageError: the name is unknown, or ``greedy`` is asked for at a positive temperature.
    """
    if rule is None:
        return
    rule_named(rule)
    if rule == "greedy" and not all(sampling.greedy for sampling in samplings):
        raise UsageError(
            "the rule is greedy and the temperature above 0; allowed: greedy at temperature 0 only",
            hint="leave the rule out, or set temperature to 0",
        )
