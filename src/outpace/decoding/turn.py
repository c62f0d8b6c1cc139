"""One batched step: draft, verify, commit; the coins are passed in.

Knows nothing of end-of-text tokens, limits or text: it is told how much each row may draft, and says what each row
emitted.
"""

import time
from dataclasses import dataclass, field
from functools import cached_property

import torch

from outpace.decoding.judging import COUPLING, judge, processed
from outpace.decoding.processors import Processor
from outpace.drafters.budget import Budget
from outpace.drafters.drafter import Drafter, DraftState, Features, Proposal
from outpace.errors import NumericsError
from outpace.models.target import Scores, State, Target, padded
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling
from outpace.verification.rules import RULES
from outpace.verification.tree import DraftTree
from outpace.verification.verdict import Verdict


@dataclass
class Batch:
    """The rows in flight: what target and drafter have read of each, and how each is sampled.

    Every list has one entry a row, in the order of the target's state. ``texts`` hold the prompt and all that was
    emitted; the target has yet to read their last token.
    """

    target: Target
    state: State
    drafter: Drafter | None
    draft_state: DraftState | None
    rule: str | None = None
    texts: list[list[int]] = field(default_factory=list)
    processors: list[tuple[Processor, ...]] = field(default_factory=list)
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
        for name in ("texts", "processors", "samplings", "seeds", "samples", "coupled"):
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
        errors: for each row None, or why its logits are no distribution: what such a row emitted means nothing.
        draft_s, verify_s, total_s: seconds of drafting, of the target's forward, and of everything.
    """

    proposal: Proposal
    scores: Scores
    verdict: Verdict
    rules: tuple[str, ...]
    emitted: list[list[int]]
    paths: list[list[int]]
    keys: Keys
    errors: tuple[NumericsError | None, ...]
    draft_s: float
    verify_s: float
    total_s: float

    @cached_property
    def lossless(self) -> tuple[bool, ...]:
        """Whether the rule that judged each row keeps the target's law; the coupling does."""
        return tuple(name == COUPLING or RULES[name].lossless for name in self.rules)


def first_turn(batch: Batch, prompts: list[list[int]]) -> Turn:
    """Read new prompts and emit the first token of each; they become the last rows of the batch.

    The caller has put their processors, samplings, seeds, samples and couplings at the end of the batch's lists.
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
    samplings = batch.samplings[-new:]
    logits, spoilt = processed(scores.logits, proposal.tree, prompts, batch.processors[-new:], keys)
    verdict, rules, errors = judge(logits, proposal, samplings, keys, batch.rule, spoilt)
    emitted = [[token] for token in verdict.next_token.tolist()]
    batch.texts += [prompt + tokens for prompt, tokens in zip(prompts, emitted, strict=True)]
    if batch.drafter is not None and batch.draft_state is not None:
        features = _prompt_features(scores, starts)
        batch.drafter.admit(batch.draft_state, prompts, features)
        none = None if features is None else [part[:0] for part in features]
        resting = len(batch.texts) - new
        batch.drafter.commit(
            batch.draft_state, [[]] * resting + emitted, None if none is None else [none[0]] * resting + none
        )
    end = time.perf_counter()
    return Turn(proposal, scores, verdict, rules, emitted, [[]] * new, keys, errors, 0.0, verified - begin, end - begin)


def take_turn(batch: Batch, budget: Budget) -> Turn:
    """Draft within the budget, verify all drafts in one target forward, commit what stands.

    A row whose logits are no distribution is named in ``errors``; the other rows are not touched by it.
    """
    begin = time.perf_counter()
    keys = batch.keys()
    proposal = None
    if batch.drafter is not None and batch.draft_state is not None and not budget.empty:
        proposal = batch.drafter.propose(batch.draft_state, budget, batch.samplings, keys)
    if proposal is None or proposal.tree.tokens.shape[1] == 0:
        proposal = Proposal(DraftTree.empty(len(batch.texts)))
    drafted = time.perf_counter()
    taps = batch.drafter.taps if batch.drafter is not None else ()
    last = torch.tensor([text[-1] for text in batch.texts])
    scores = batch.target.score(batch.state, last, proposal.tree, taps)
    verified = time.perf_counter()
    logits, spoilt = processed(scores.logits, proposal.tree, batch.texts, batch.processors, keys)
    verdict, rules, errors = judge(logits, proposal, batch.samplings, keys, batch.rule, spoilt)
    counts, nodes = verdict.num_accepted.tolist(), verdict.path.tolist()
    paths = [path[:count] for path, count in zip(nodes, counts, strict=True)]
    batch.target.keep(batch.state, verdict.path, counts)
    tokens = proposal.tree.tokens.tolist()
    emitted = [
        [row[node] for node in path] + [final]
        for row, path, final in zip(tokens, paths, verdict.next_token.tolist(), strict=True)
    ]
    for text, new in zip(batch.texts, emitted, strict=True):
        text += new
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
        errors,
        drafted - begin,
        verified - drafted,
        end - begin,
    )


def _prompt_features(scores: Scores, lengths: tuple[int, ...]) -> list[Features] | None:
    if scores.features is None:
        return None
    return [part[:length] for part, length in zip(scores.features, lengths, strict=True)]


def _path_features(scores: Scores, paths: list[list[int]]) -> list[Features] | None:
    if scores.features is None:
        return None
    return [part[[0, *(node + 1 for node in path)]] for part, path in zip(scores.features, paths, strict=True)]
