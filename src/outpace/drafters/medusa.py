"""Parallel heads on the target's last state (Medusa): one pass guesses at all depths, for chains and trees.

Knows nothing of verdicts. All that it remembers of a text is one state, so that after any acceptance it says what it
would say if it were told the whole text anew.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from outpace.drafters.budget import KINDS, Budget, Kind
from outpace.drafters.drafter import DraftState, Features, Proposal, Rates, chains, falling_by_depth, pick, rates_of
from outpace.drafters.growth import Branches, ranked_tree, sampled_tree, static_shape
from outpace.drafters.medusa_heads import MedusaHeads
from outpace.errors import UsageError
from outpace.models.ends import share_head
from outpace.models.matmul import packing_pays
from outpace.models.packing import pack
from outpace.models.target import Tap, Target, take
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling, argmax, batch_probability_rows, unusable_rows
from outpace.verification.shape import StaticShape
from outpace.verification.tree import DraftTree


@dataclass
class MedusaState:
    """A batch: of every row the last state that the target has shown."""

    last: list[Float[Tensor, " hidden"]] = field(default_factory=list)


class Medusa:
    """Drafts by heads that all read the one state from which the target has just said its last token.

    At index t, head i speaks of token t + 2 + i: token t + 1 is the target's own. Depth d of a draft is head d - 1's,
    and no deeper than there are heads: where a budget asks for more, the draft ends there. No head knows what another
    says, so that all nodes of a depth have one law, whatever stands above them.

    * A chain is drawn from each head's own warped law, or is its argmax when greedy.
    * ``top-k`` and ``top-p`` trees hold the most probable children of each depth, see ``growth.ranked_tree``.
    * A ``sampled`` tree is drawn without replacement, see ``growth.sampled_tree``.
    * A ``static`` tree, Medusa's own, has its shape by the rates that it names, or by those of each head; its places
      hold the candidates of each depth by rank.

    All heads that a draft is deep take one pass together. What a target does to its logits behind its head is not done
    to those of the heads.

    Args:
        heads: the weights, copied; those that share the target's head share the target's memory of it.
        target: the one to be accelerated.
        dtype: of the heads' matrices; None takes the target's.
        packed: pack CPU weights; None measures whether that pays.
        name: what statistics call it.
        rates: acceptance by head and rank as it was measured: ``rates[d - 1][r]`` is the share, of the places where a
            draft reached depth d, at which the token of rank r was the right one; none where nobody measured it.

    Raises:
        UsageError: the heads were made for another vocabulary or width than the target's, or the target shows no
            features.
        WeightsError, UnsupportedError: as ``share_head``, where the heads have no rows of their own.

    Source: Medusa (Cai et al., arXiv 2401.10774); trees: EAGLE-2 (arXiv 2406.16858), Sequoia (arXiv 2402.12374).
    """

    taps: tuple[Tap, ...] = ("last_normed",)
    branchings: frozenset[Kind] = frozenset(KINDS)

    def __init__(
        self,
        heads: MedusaHeads,
        target: Target,
        *,
        dtype: torch.dtype | None = None,
        packed: bool | None = None,
        name: str = "medusa",
        rates: Sequence[Sequence[float]] = (),
    ) -> None:
        self.name = name
        self.rates: Rates = falling_by_depth(rates)
        _require_fit(heads, target, name)
        self.shape, self.max_depth, self.device = heads.shape, heads.shape.heads, target.device
        self.eos_ids = frozenset(target.eos_ids)
        self.shared = None if heads.shape.own_head else share_head(target)
        self.heads = _served(heads, target.dtype if dtype is None else dtype, target.device, packed)

    # ---- the Drafter protocol ----------------------------------------------------------------------------------------

    def open(self, slots: int, positions: int) -> MedusaState:
        """An empty batch."""
        return MedusaState()

    def admit(self, state: DraftState, prompts: list[list[int]], features: list[Features] | None) -> None:
        """Note the last state of each new prompt."""
        _own(state).last += [_last(part) for part in _given(features)]

    def propose(self, state: DraftState, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        """Draft within the budget, and no further than an end-of-text token or the last head."""
        own = _own(state)
        limits = zip(budget.depths, budget.nodes, strict=True)
        rooms = [min(depth, nodes, self.max_depth) for depth, nodes in limits]
        if not any(rooms):
            return Proposal(DraftTree.empty(len(rooms), self.device))
        logits = self._logits(own, max(rooms))
        if budget.branching.is_chain:
            return self._chain(logits, rooms, sampling, keys)
        within, look = replace(budget, depths=rooms), partial(_look, logits)
        if budget.branching.kind == "static":
            return self._static(logits, within, rates_of(budget.branching, self))
        if budget.branching.kind == "sampled":
            return sampled_tree(look, within, sampling, keys, self.eos_ids)
        return ranked_tree(look, within, sampling, self.eos_ids)

    def commit(self, state: DraftState, emitted: list[list[int]], features: list[Features] | None) -> None:
        """Note the last state of each row that the target has read on: the one from which it said the last token."""
        own = _own(state)
        for row, part in enumerate(_given(features)):
            if len(part):
                own.last[row] = _last(part)

    def select(self, state: DraftState, rows: list[int]) -> None:
        """Keep only these rows."""
        own = _own(state)
        own.last = [own.last[row] for row in rows]

    # ---- drafts ------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _logits(self, own: MedusaState, depth: int) -> Float[Tensor, "batch depth vocab"]:
        """Draft logits at every depth, in fp32 or better: even a maximum costs more in bf16."""
        logits = self.heads.logits(torch.stack(own.last), self.shared, depth)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _chain(
        self, logits: Float[Tensor, "batch depth vocab"], rooms: list[int], sampling: list[Sampling], keys: Keys
    ) -> Proposal:
        """One token a depth, every row up to its limit, its end-of-text token or a head that says no law."""
        broken = unusable_rows(logits)
        logits = logits.masked_fill(broken[..., None], 0.0)
        laws: Tensor | None = None
        if all(one.greedy for one in sampling):
            chosen, _ = argmax(logits)
        else:
            laws = batch_probability_rows(logits, sampling)
            chosen = torch.stack([pick(law, keys, depth) for depth, law in enumerate(laws.unbind(1))], 1)
        rows = zip(chosen.tolist(), broken.tolist(), rooms, strict=True)
        tree = chains([self._cut(tokens[:room], ill) for tokens, ill, room in rows])
        width = tree.tokens.shape[1]
        if not width:
            return Proposal(tree)
        # The last node has no children: its row is never read, and the one before it stands in.
        shown = [*range(width), width - 1]
        if all(one.greedy or coupled for one, coupled in zip(sampling, keys.coupled, strict=True)):
            laws = None
        return Proposal(tree, None if laws is None else laws[:, shown], logits[:, shown])

    def _cut(self, tokens: list[int], broken: list[bool]) -> list[int]:
        """The tokens up to the first that ends a text, or before the first that comes of no law."""
        draft: list[int] = []
        for token, ill in zip(tokens, broken, strict=False):
            if ill or (draft and draft[-1] in self.eos_ids):
                break
            draft.append(token)
        return draft

    def _static(self, logits: Float[Tensor, "batch depth vocab"], budget: Budget, rates: Rates) -> Proposal:
        """The tree of ``growth.shaped_tree``, filled at once: what stands in a place depends on its depth and rank."""
        shapes = [
            static_shape(rates, nodes if depth else 0, depth)
            for depth, nodes in zip(budget.depths, budget.nodes, strict=True)
        ]
        broken = unusable_rows(logits)
        logits = logits.masked_fill(broken[..., None], 0.0)
        ranks = 1 + max(rank for shape in shapes for rank in shape.ranks)
        best = logits.topk(min(ranks, logits.shape[2]), dim=2)
        there = (best.values > -torch.inf) & ~broken[..., None]
        rows = zip(shapes, best.indices.tolist(), there.tolist(), strict=True)
        tree = DraftTree.from_lists([self._fill(*row) for row in rows], logits.device)
        return Proposal(tree, None, _by_depth(logits, tree))

    def _fill(self, shape: StaticShape, ids: list[list[int]], there: list[list[bool]]) -> tuple[list[int], list[int]]:
        """Tokens and parents of a row; left out are ranks that are not there, and children of what is left out or ends.

        Args:
            ids, there: by depth and rank.
        """
        tokens: list[int] = []
        parents: list[int] = []
        placed = {-1: -1}
        for node, (parent, rank, depth) in enumerate(zip(shape.parents, shape.ranks, shape.depths, strict=True)):
            above = placed.get(parent)
            if (
                above is None
                or (above >= 0 and tokens[above] in self.eos_ids)
                or not any(there[depth - 1][rank : rank + 1])
            ):
                continue
            placed[node] = len(tokens)
            tokens.append(ids[depth - 1][rank])
            parents.append(above)
        return tokens, parents


def _look(
    logits: Float[Tensor, "batch depth vocab"], depth: int, grown: Sequence[Branches], nodes: Sequence[Sequence[int]]
) -> Float[Tensor, "batch width vocab"]:
    """All nodes of a depth have one law."""
    return logits[:, depth : depth + 1].expand(-1, max(map(len, nodes)), -1)


def _by_depth(logits: Float[Tensor, "batch depth vocab"], tree: DraftTree) -> Float[Tensor, "batch rows vocab"]:
    """The logits of the root and of every node; behind the last head nothing is drafted, and its own stand in."""
    return take(logits, pad(tree.depths(), (1, 0)).clamp(max=logits.shape[1] - 1))


def _last(features: Features) -> Float[Tensor, " hidden"]:
    """A copy: one that still lay in all features of a prompt would keep them in memory."""
    return features[-1, 0].clone()


def _served(heads: MedusaHeads, dtype: torch.dtype, device: torch.device, packed: bool | None) -> MedusaHeads:
    """A copy of heads that computes in ``dtype``, perhaps packed."""
    own = copy.deepcopy(heads).eval().requires_grad_(False).to(device, dtype)
    if packing_pays(next(own.parameters())) if packed is None else packed:
        pack(own, packed=True)
    return own


def _given(features: list[Features] | None) -> list[Tensor]:
    if features is None:
        raise TypeError("a Medusa drafter was given no features")
    return features


def _own(state: DraftState) -> MedusaState:
    if not isinstance(state, MedusaState):
        raise TypeError(f"a Medusa drafter was given the state of another drafter: {type(state).__name__}")
    return state


def _require_fit(heads: MedusaHeads, target: Target, name: str) -> None:
    """Refuse heads for another vocabulary or width; the target is asked what it shows of its last state."""
    shape = heads.shape
    if shape.vocab_size != target.vocab_size:
        raise UsageError(
            f"the drafter {name!r} is for a vocabulary of {shape.vocab_size}; allowed: {target.vocab_size}, that of "
            f"the target {target.name!r}"
        )
    first = torch.zeros(1, 1, dtype=torch.int64, device=target.device)
    features = target.prefill(target.open(1, 1), first, [1], Medusa.taps).features
    width = 0 if features is None else features.shape[-1]
    if width != shape.hidden_size:
        raise UsageError(
            f"the drafter {name!r} reads a state {shape.hidden_size} wide; allowed: {width}, that of the target "
            f"{target.name!r}"
        )
