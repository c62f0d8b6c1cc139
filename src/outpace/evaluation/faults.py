"""What can go wrong, one thing at a time: wrappers around a target or a drafter, and functions that do it wrong.

Knows nothing of checks. Each has the form of what it stands in for, and the one fault that it is named for.
"""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from outpace.decoding.processors import Processor, process
from outpace.drafters.budget import Budget
from outpace.drafters.drafter import Drafter, DraftState, Features, Proposal, own_rates
from outpace.models.target import Scores, State, Tap, Target
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling, argmax, draw
from outpace.verification.tree import DraftTree
from outpace.verification.verdict import Coins, DraftRows, Rule, TargetRows, Verdict


class Behind:
    """A target that hands everything on to another; a fault overrides one method."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.name, self.folder, self.fingerprint = target.name, target.folder, target.fingerprint
        self.vocab_size, self.max_positions, self.eos_ids = target.vocab_size, target.max_positions, target.eos_ids
        self.can_tree, self.can_rewind = target.can_tree, target.can_rewind
        self.device, self.dtype = target.device, target.dtype

    def open(self, slots: int, positions: int) -> State:
        """As the target does."""
        return self.target.open(slots, positions + 1)  # a token that should have gone needs a place

    def prefill(
        self, state: State, ids: Int[Tensor, "new time"], lengths: list[int], taps: tuple[Tap, ...] = ()
    ) -> Scores:
        """As the target does."""
        return self.target.prefill(state, ids, lengths, taps)

    def score(self, state: State, last: Int[Tensor, " batch"], tree: DraftTree, taps: tuple[Tap, ...] = ()) -> Scores:
        """As the target does."""
        return self.target.score(state, last, tree, taps)

    def keep(self, state: State, path: Int[Tensor, "batch depth"], num_accepted: list[int]) -> None:
        """As the target does."""
        self.target.keep(state, path, num_accepted)

    def rewind(self, state: State, lengths: list[int]) -> None:
        """As the target does."""
        self.target.rewind(state, lengths)

    def select(self, state: State, rows: list[int]) -> None:
        """As the target does."""
        self.target.select(state, rows)


class _Seen(DraftTree):
    """A tree in which every node sees every other one."""

    def ancestor_mask(self) -> Any:
        return self.real[:, :, None] & self.real[:, None]


class _Further(DraftTree):
    """A tree whose nodes stand one position too far."""

    def positions(self, lengths: Int[Tensor, " batch"]) -> Any:
        return super().positions(lengths) + (torch.arange(1 + self.tokens.shape[1]) > 0)


def _as(kind: type[DraftTree], tree: DraftTree) -> DraftTree:
    return kind(tree.tokens, tree.parents, tree.num_nodes)


class Leaking(Behind):
    """Drafted tokens see each other."""

    def score(self, state: State, last: Int[Tensor, " batch"], tree: DraftTree, taps: tuple[Tap, ...] = ()) -> Scores:
        return self.target.score(state, last, _as(_Seen, tree), taps)


class Shifted(Behind):
    """Drafted tokens stand one position too far."""

    def score(self, state: State, last: Int[Tensor, " batch"], tree: DraftTree, taps: tuple[Tap, ...] = ()) -> Scores:
        return self.target.score(state, last, _as(_Further, tree), taps)


class Swapped(Behind):
    """The logits of the first two rows change places."""

    def score(self, state: State, last: Int[Tensor, " batch"], tree: DraftTree, taps: tuple[Tap, ...] = ()) -> Scores:
        scores = self.target.score(state, last, tree, taps)
        order = torch.arange(len(last))
        order[:2] = order[:2].flip(0)
        return replace(scores, logits=scores.logits[order])


class LeafAsItsParent(Behind):
    """What follows a whole draft is read off the row before."""

    def score(self, state: State, last: Int[Tensor, " batch"], tree: DraftTree, taps: tuple[Tap, ...] = ()) -> Scores:
        scores = self.target.score(state, last, tree, taps)
        nodes = torch.arange(tree.tokens.shape[1])
        leaf = tree.real & ~((tree.parents[:, None] == nodes[:, None]) & tree.real[:, None]).any(2)
        rows = pad((tree.parents + 1).where(leaf, nodes + 1), (1, 0))
        return replace(scores, logits=scores.logits.gather(1, rows[..., None].expand_as(scores.logits)))


class Stale(Behind):
    """The first drafts of a batch that are refused stay in the caches of their rows."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.tree, self.planted = DraftTree.empty(1), False

    def open(self, slots: int, positions: int) -> State:
        self.planted = False
        return super().open(slots, positions)

    def score(self, state: State, last: Int[Tensor, " batch"], tree: DraftTree, taps: tuple[Tap, ...] = ()) -> Scores:
        self.tree = tree
        return self.target.score(state, last, tree, taps)

    def keep(self, state: State, path: Int[Tensor, "batch depth"], num_accepted: list[int]) -> None:
        ends = pad(path + 1, (1, 0)).amax(1) - 1
        refused = self.tree.children(ends)
        if not self.planted and bool(refused.any()):
            first = refused.long().argmax(1).where(refused.any(1), -1)
            path = pad(path, (0, 1), value=-1)
            path[torch.arange(len(path)), torch.tensor(num_accepted)] = first
            num_accepted = [count + stays for count, stays in zip(num_accepted, refused.any(1).tolist(), strict=True)]
            self.planted = True
        self.target.keep(state, path, num_accepted)


class Liar:
    """A drafter that says it drew from another law: a flatter one, or any at all where it draws nothing."""

    def __init__(self, drafter: Drafter, vocab_size: int) -> None:
        self.drafter, self.vocab_size = drafter, vocab_size
        self.name, self.taps, self.branchings = drafter.name, drafter.taps, drafter.branchings
        self.rates = own_rates(drafter)

    def open(self, slots: int, positions: int) -> DraftState:
        return self.drafter.open(slots, positions)

    def admit(self, state: DraftState, prompts: list[list[int]], features: list[Features] | None) -> None:
        self.drafter.admit(state, prompts, features)

    def propose(self, state: DraftState, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        proposal = self.drafter.propose(state, budget, sampling, keys)
        tree = proposal.tree
        if proposal.draft_probs is not None:
            law = proposal.draft_probs.sqrt()
        else:
            law = torch.ones(len(tree.tokens), 1 + tree.tokens.shape[1], self.vocab_size)
            rows, tokens = tree.parents + 1, tree.tokens.clamp(min=0)
            law[torch.arange(len(law))[:, None], rows, tokens] = float(self.vocab_size)
        return Proposal(tree, law / law.sum(-1, keepdim=True).clamp(min=1e-30))

    def commit(self, state: DraftState, emitted: list[list[int]], features: list[Features] | None) -> None:
        self.drafter.commit(state, emitted, features)

    def select(self, state: DraftState, rows: list[int]) -> None:
        self.drafter.select(state, rows)


def turned_round(rule: Rule) -> Rule:
    """The rule with the residual's sign wrong: after a refusal it draws from what the draft has too much of."""

    def judge(target_probs: TargetRows, tree: DraftTree, draft_probs: DraftRows, coins: Coins) -> Verdict:
        verdict = rule.judge(target_probs, tree, draft_probs, coins)
        ends, batch = pad(verdict.path + 1, (1, 0)).amax(1), torch.arange(len(target_probs))
        refused = tree.children(ends - 1)
        if not bool(refused.any()):
            return verdict
        if draft_probs is None:
            first = tree.tokens[batch, refused.long().argmax(1)].clamp(min=0)
            rest = torch.zeros_like(target_probs[:, 0]).scatter_(1, first[:, None], 1.0)
        else:
            rest = (draft_probs[batch, ends] - target_probs[batch, ends]).clamp(min=0)
        wrong = refused.any(1) & (rest.sum(1) > 0)
        token = draw(rest.where(wrong[:, None], 1.0), coins.sum(1) % 1)
        return replace(verdict, next_token=token.where(wrong, verdict.next_token))

    return replace(rule, judge=judge)


def highest(logits: Float[Tensor, "*lead vocab"]) -> tuple[Int[Tensor, "*lead"], Float[Tensor, "*lead"]]:
    """The argmax, the highest id on ties."""
    token, value = argmax(logits.flip(-1))
    return logits.shape[-1] - 1 - token, value


def roots_alone(
    logits: Float[Tensor, "batch rows vocab"],
    tree: DraftTree,
    texts: list[list[int]],
    processors: list[tuple[Processor, ...]],
) -> Float[Tensor, "batch rows vocab"]:
    """Processors are asked about the first token of a turn, and about no drafted one."""
    roots = process(logits[:, :1], DraftTree.empty(len(logits)), texts, processors)
    return torch.cat((roots, logits[:, 1:]), 1)


def at_the_end_of_a_turn(self: Any, tokens: list[int]) -> int:
    """Whether the text is over is asked of a turn's last token alone."""
    self.new += tokens
    if tokens[-1] in self.eos:
        self.finish = "stop"
    elif len(self.new) >= self.limit:
        self.finish = "length"
    return len(tokens)
