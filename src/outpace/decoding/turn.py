"""One batched step: draft, verify, commit; the coins are passed in.

Knows nothing of end-of-text tokens, limits or text: it is told how many tokens each row may draft, and says what each
row emitted.
"""

import time
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outpace.drafters.drafter import Drafter, DraftState, Features, Proposal
from outpace.errors import NumericsError, UsageError
from outpace.models.target import Scores, State, Target, padded
from outpace.verification.coins import Keys
from outpace.verification.matching import candidates, follow, race
from outpace.verification.probabilities import Sampling, argmax, batch_probability_rows
from outpace.verification.rules import RULES, rule_named
from outpace.verification.tree import DraftTree
from outpace.verification.verdict import Verdict

COUPLING = "coupling"


@dataclass
class Batch:
    """The rows in flight: what target and drafter have read of each, and how each is sampled.

    Every list has one entry a row, in the order of the target's state.
    """

    target: Target
    state: State
    drafter: Drafter | None
    draft_state: DraftState | None
    rule: str | None = None
    last: list[int] = field(default_factory=list)
    samplings: list[Sampling] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    coupled: list[bool] = field(default_factory=list)

    def keys(self) -> Keys:
        """The coins of the turn at hand: it begins behind the last token, which the target has yet to read."""
        starts = tuple(length + 1 for length in self.state.lengths)
        return Keys(tuple(self.seeds), tuple(self.samples), starts, tuple(self.coupled))

    def select(self, rows: list[int]) -> None:
        """Keep only these rows, in this order."""
        self.target.select(self.state, rows)
        if self.drafter is not None and self.draft_state is not None:
            self.drafter.select(self.draft_state, rows)
        for name in ("last", "samplings", "seeds", "samples", "coupled"):
            values = getattr(self, name)
            setattr(self, name, [values[row] for row in rows])


@dataclass(frozen=True)
class Turn:
    """What one step proposed and what became of it.

    Args:
        proposal, scores, verdict: the draft, the target's answer and the decision; prefill has an empty draft.
        rules: the rule that judged each row.
        emitted: the new tokens of each row, the accepted path and then the target's own token.
        paths: the accepted nodes of each row.
        keys: what names the coins that were used.
        draft_s, verify_s, total_s: seconds of drafting, of the target's forward, and of everything.
    """

    proposal: Proposal
    scores: Scores
    verdict: Verdict
    rules: tuple[str, ...]
    emitted: list[list[int]]
    paths: list[list[int]]
    keys: Keys
    draft_s: float
    verify_s: float
    total_s: float


def first_turn(batch: Batch, prompts: list[list[int]]) -> Turn:
    """Read new prompts and emit the first token of each; they become the last rows of the batch.

    The caller has put their samplings, seeds, samples and couplings at the end of the batch's lists.
    """
    begin = time.perf_counter()
    new, target = len(prompts), batch.target
    taps = batch.drafter.taps if batch.drafter is not None else ()
    scores = target.prefill(batch.state, padded(prompts, 0), [len(prompt) for prompt in prompts], taps)
    verified = time.perf_counter()
    whole = batch.keys()
    starts = tuple(len(prompt) for prompt in prompts)
    keys = Keys(whole.seeds[-new:], whole.samples[-new:], starts, whole.coupled[-new:])
    proposal = Proposal(DraftTree.empty(new, scores.logits.device))
    verdict, rules = judge(scores.logits, proposal, batch.samplings[-new:], keys, batch.rule)
    emitted = [[token] for token in verdict.next_token.tolist()]
    batch.last += [tokens[0] for tokens in emitted]
    if batch.drafter is not None and batch.draft_state is not None:
        features = _prompt_features(scores, starts)
        batch.drafter.admit(batch.draft_state, prompts, features)
        none = None if features is None else [part[:0] for part in features]
        resting = len(batch.last) - new
        batch.drafter.commit(
            batch.draft_state, [[]] * resting + emitted, None if none is None else [none[0]] * resting + none
        )
    end = time.perf_counter()
    return Turn(proposal, scores, verdict, rules, emitted, [[]] * new, keys, 0.0, verified - begin, end - begin)


def take_turn(batch: Batch, limits: list[int]) -> Turn:
    """Draft at most ``limits[b]`` tokens for row b, verify all drafts in one target forward, commit what stands.

    Raises:
        NumericsError: the target's logits at a real row are not a distribution; the position is named.
    """
    begin = time.perf_counter()
    keys = batch.keys()
    proposal = None
    if batch.drafter is not None and batch.draft_state is not None and any(limit > 0 for limit in limits):
        proposal = batch.drafter.propose(batch.draft_state, limits, batch.samplings, keys)
    if proposal is None or proposal.tree.tokens.shape[1] == 0:
        proposal = Proposal(DraftTree.empty(len(limits)))
    drafted = time.perf_counter()
    taps = batch.drafter.taps if batch.drafter is not None else ()
    scores = batch.target.score(batch.state, torch.tensor(batch.last), proposal.tree, taps)
    verified = time.perf_counter()
    verdict, rules = judge(scores.logits, proposal, batch.samplings, keys, batch.rule)
    counts, nodes = verdict.num_accepted.tolist(), verdict.path.tolist()
    paths = [path[:count] for path, count in zip(nodes, counts, strict=True)]
    batch.target.keep(batch.state, verdict.path, counts)
    tokens = proposal.tree.tokens.tolist()
    emitted = [
        [row[node] for node in path] + [final]
        for row, path, final in zip(tokens, paths, verdict.next_token.tolist(), strict=True)
    ]
    batch.last = [row[-1] for row in emitted]
    if batch.drafter is not None and batch.draft_state is not None:
        batch.drafter.commit(batch.draft_state, emitted, _path_features(scores, paths))
    end = time.perf_counter()
    return Turn(
        proposal,
        scores,
        verdict,
        rules,
        emitted,
        paths,
        keys,
        drafted - begin,
        verified - drafted,
        end - begin,
    )


def judge(
    logits: Float[Tensor, "batch rows vocab"],
    proposal: Proposal,
    samplings: list[Sampling],
    keys: Keys,
    rule: str | None,
) -> tuple[Verdict, tuple[str, ...]]:
    """Judge every row by the rule in force there, and name it.

    Rows of one rule are judged together. Greedy rows need no probabilities at all.
    """
    if logits.dtype != torch.float64:
        logits = logits.float()  # once, for all that follows: even a maximum costs more in bf16
    tops, values = argmax(logits)
    _require_usable(values, proposal.tree, keys)
    rules = tuple(
        _rule_in_force(sampling, coupled, proposal, rule)
        for sampling, coupled in zip(samplings, keys.coupled, strict=True)
    )
    parts: list[tuple[list[int], Verdict]] = []
    for name in sorted(set(rules)):
        rows = [row for row, other in enumerate(rules) if other == name]
        if len(rows) == len(rules):
            return _judge_alike(name, tops, logits, proposal, samplings, keys), rules
        index = torch.tensor(rows)
        tree = proposal.tree
        part = Proposal(
            DraftTree(tree.tokens[index], tree.parents[index], tree.num_nodes[index]),
            None if proposal.draft_probs is None else proposal.draft_probs[index],
        )
        chosen = [samplings[row] for row in rows]
        parts.append((rows, _judge_alike(name, tops[index], logits[index], part, chosen, keys.select(rows))))
    return _merge(parts, len(rules)), rules


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


def _judge_alike(
    name: str,
    tops: Int[Tensor, "batch rows"],
    logits: Float[Tensor, "batch rows vocab"],
    proposal: Proposal,
    samplings: list[Sampling],
    keys: Keys,
) -> Verdict:
    if name == "greedy":
        return follow(tops, proposal.tree, "greedy", True)
    probs = batch_probability_rows(logits, samplings)
    if name != COUPLING:
        coins = verdict_coins(name, keys, logits.shape[1], logits.device)
        return RULES[name].judge(probs, proposal.tree, proposal.draft_probs, coins)
    ids = candidates(probs)
    depths = torch.nn.functional.pad(proposal.tree.depths(), (1, 0))
    noise = keys.noise(depths, ids)
    return follow(race(probs, ids, noise.times, noise.tail_times, noise.tail_coins), proposal.tree, COUPLING, True)


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


def _require_usable(values: Float[Tensor, "batch rows"], tree: DraftTree, keys: Keys) -> None:
    """The largest logit of a row is finite unless the row holds a NaN or an infinity, or nothing but -inf."""
    wrong = ~values.isfinite()
    if not bool(wrong.any()):
        return
    wrong[:, 1:] &= tree.real
    for row, place in wrong.nonzero().tolist():
        depth = int(tree.depths()[row, place - 1]) if place else 0
        raise NumericsError(
            f"the target's logits for position {keys.starts[row] + depth} of row {row} are no distribution: "
            f"their largest is {float(values[row, place])}",
            hint="try --dtype fp32; if it stays, the weights are damaged",
        )


def _prompt_features(scores: Scores, lengths: tuple[int, ...]) -> list[Features] | None:
    if scores.features is None:
        return None
    return [part[:length] for part, length in zip(scores.features, lengths, strict=True)]


def _path_features(scores: Scores, paths: list[list[int]]) -> list[Features] | None:
    if scores.features is None:
        return None
    return [part[[0, *(node + 1 for node in path)]] for part, path in zip(scores.features, paths, strict=True)]


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
