"""A layer that walks on the target's features (EAGLE-1, -2, -3): it drafts chains and trees with a cache of its own.

Knows nothing of verdicts. Its cache holds entries of real features only: what was drafted in between is overwritten,
so that after any acceptance it says what reading the whole text anew would say.
"""

import warnings
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from outpace.drafters.budget import KINDS, Budget, Kind
from outpace.drafters.drafter import DraftState, Features, Proposal, chains, falling, pick, rates_of, spread
from outpace.drafters.first_head import AnyHead, FirstHead
from outpace.drafters.growth import ranked_tree, sampled_tree, shaped_tree
from outpace.drafters.head import Head
from outpace.drafters.levels import Levels
from outpace.drafters.walk import Walker
from outpace.errors import UsageError, WeightsError
from outpace.models.cache import Cache
from outpace.models.ends import read_embeddings, share_head
from outpace.models.target import Tap, Target
from outpace.models.transformer import PREFILL_TOKENS, Transformer
from outpace.verification.coins import Keys, Noise, Purpose
from outpace.verification.probabilities import Sampling, argmax, batch_probability_rows, unusable_rows
from outpace.verification.tree import DraftTree

QUEUE = 64
"""Positions whose features a row keeps unread at most: while nothing is drafted, they are read so many at a time."""


@dataclass
class EagleState:
    """A batch.

    Args:
        cache: entries of the positions that each row has read.
        known: the tokens of each text; the target has read all but the last.
        queues: features of the positions behind those read, up to the last that the target has read.
        outs: the output at the last position that each row has read.
    """

    cache: Cache
    outs: Float[Tensor, "batch hidden"]
    known: list[list[int]] = field(default_factory=list)
    queues: list[list[Features]] = field(default_factory=list)


class Eagle:
    """Drafts by one layer on the target's features: in at the taps, out by rows of the head's own or by the target's.

    At position t the head reads the target's features there and the token behind it, and speaks of the token after
    that. Further tokens are drafted on its own outputs in place of features.

    * A chain is drawn from the head's own warped law, or is its argmax when greedy.
    * ``top-k`` and ``top-p`` trees hold its most probable children, see ``growth.ranked_tree``.
    * A ``sampled`` tree is drawn without replacement, see ``growth.sampled_tree``.
    * A ``static`` tree has its shape by its rates, or by the head's own, see ``growth.shaped_tree``.

    Every depth takes one pass over what is new in it.

    Args:
        head: the weights, copied; of EAGLE-3 with a vocabulary of its own, or of EAGLE-1, which speaks through the
            target's head, whole, in the target's dtype and memory.
        target: the one to be accelerated; the head embeds tokens as it does.
        dtype: of the head's matrices and cache; None takes the target's.
        packed: pack CPU weights; None measures whether that pays.
        name: what statistics call it; None takes the head's method.
        rates: acceptance by rank as it was measured, none where nobody did.

    Raises:
        UsageError: the head was made for another vocabulary, width or depth than the target's, or the target shows no
            features.
        WeightsError: the target shows no embeddings, or no head to speak through, or the head's map of ids does not
            rise within the vocabulary.

    Source: EAGLE-3 (Li et al., arXiv 2503.01840), EAGLE (arXiv 2401.15077); trees: EAGLE-2 (arXiv 2406.16858),
    Sequoia (arXiv 2402.12374).
    """

    taps: tuple[Tap, ...]
    branchings: frozenset[Kind] = frozenset(KINDS)

    def __init__(
        self,
        head: AnyHead,
        target: Target,
        *,
        dtype: torch.dtype | None = None,
        packed: bool | None = None,
        name: str | None = None,
        rates: tuple[float, ...] = (),
    ) -> None:
        name = head.method if name is None else name
        self.name, self.taps, self.rates = name, head.shape.taps, falling(rates)
        _require_fit(head, target, name)
        own = head.embed_tokens
        dtype = target.dtype if dtype is None else dtype
        rows = read_embeddings(target) if own is None else own.weight.detach().to(target.device, dtype, copy=True)
        if rows.shape[1] != head.shape.hidden_size:
            raise UsageError(
                f"the drafter {name!r} embeds tokens as the target {target.name!r} does, {rows.shape[1]} wide; "
                f"allowed: its own hidden_size of {head.shape.hidden_size}"
            )
        shared = share_head(target) if isinstance(head, FirstHead) else None
        self.walker = Walker(head, rows, dtype=dtype, packed=packed, shared=shared)
        self.max_positions, self.vocab_size = head.shape.max_positions, target.vocab_size
        self.eos_ids = frozenset(target.eos_ids)
        self._ids = _rising(head, name).to(target.device) if isinstance(head, Head) and head.d2t is not None else None

    # ---- the Drafter protocol ----------------------------------------------------------------------------------------

    def open(self, slots: int, positions: int) -> EagleState:
        """An empty batch; where a tree needs more room, it gets more."""
        cache = self.walker.open(slots, min(positions, self.max_positions))
        return EagleState(cache, self.walker.no_states())

    def admit(self, state: DraftState, prompts: list[list[int]], features: list[Features] | None) -> None:
        """Note new prompts with their features; the token behind the last position is still to come."""
        own, shown = _own(state), _given(features)
        own.cache.admit(len(prompts))
        own.outs = pad(own.outs, (0, 0, 0, len(prompts)))
        own.known += [list(prompt) for prompt in prompts]
        own.queues += [[part] for part in shown]

    @torch.inference_mode()
    def propose(self, state: DraftState, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        """Draft within the budget, and no further than an end-of-text token or the head's longest text."""
        own = _own(state)
        rooms = [self._room(known, limit) for known, limit in zip(own.known, budget.depths, strict=True)]
        if not any(rooms):
            return Proposal(DraftTree.empty(len(rooms), self.walker.device))
        out = self._caught_up(own, [room > 0 for room in rooms])
        if self._ids is not None:
            keys = _InDraftIds(keys.seeds, keys.samples, keys.starts, keys.coupled, keys, self._ids)
        if budget.branching.is_chain:
            return self._chain(own, out, rooms, sampling, keys)
        nodes = [count if room else 0 for count, room in zip(budget.nodes, rooms, strict=True)]
        within, look = replace(budget, depths=rooms, nodes=nodes), Levels(self.walker, own.cache, out, self._target_ids)
        if budget.branching.kind == "sampled":
            drawn = sampled_tree(look, within, sampling, keys, self._ends())
        elif budget.branching.kind == "static":
            drawn = shaped_tree(look, within, rates_of(budget.branching, self), self._ends())
        else:
            drawn = ranked_tree(look, within, sampling, self._ends())
        own.cache = look.cache
        return self._in_target_ids(drawn)

    def commit(self, state: DraftState, emitted: list[list[int]], features: list[Features] | None) -> None:
        """Learn what was emitted and the features of what the target has read; of rows that rest, queue them."""
        own = _own(state)
        for row, (tokens, part) in enumerate(zip(emitted, _given(features), strict=True)):
            own.known[row] += tokens
            if len(own.known[row]) - 1 > self.max_positions:
                own.queues[row].clear()  # nothing is drafted here any more
            elif len(part):
                own.queues[row].append(part)
        if max(map(_waiting, own.queues), default=0) > QUEUE:
            self._read_ahead(own)

    @torch.inference_mode()
    def select(self, state: DraftState, rows: list[int]) -> None:
        """Keep only these rows."""
        own = _own(state)
        own.cache.select(rows)
        own.outs = own.outs[rows]
        own.known = [own.known[row] for row in rows]
        own.queues = [own.queues[row] for row in rows]

    # ---- the walk ----------------------------------------------------------------------------------------------------

    def _room(self, known: list[int], limit: int) -> int:
        """How many tokens may be drafted: the last of them is never read, so it needs no position."""
        room = self.max_positions - len(known) + 2
        if limit > 0 and room <= 0:
            warnings.warn(
                f"the drafter {self.name!r} was made for texts of {self.max_positions} tokens; longer ones are "
                "decoded without drafts",
                stacklevel=2,
            )
        return max(0, min(limit, room))

    def _read_ahead(self, own: EagleState) -> None:
        """Read what waits but for the last position of each row, whose output will be asked for."""
        parts = [torch.cat(queue) if queue else None for queue in own.queues]
        own.queues = [[] if part is None else [part[-1:].clone()] for part in parts]
        waiting = {row: part[:-1] for row, part in enumerate(parts) if part is not None and len(part) > 1}
        while waiting:
            size = max(1, PREFILL_TOKENS // len(waiting))
            self._read(own, {row: part[:size] for row, part in waiting.items()})
            waiting = {row: part[size:] for row, part in waiting.items() if len(part) > size}

    def _read(
        self, own: EagleState, parts: dict[int, Features]
    ) -> tuple[Float[Tensor, "all hidden"], Float[Tensor, "all heads head_width"]]:
        starts = own.cache.lengths
        own.cache = self.walker.roomy(own.cache, max(starts[row] + len(part) for row, part in parts.items()))
        tokens = [own.known[row][starts[row] + 1 :][: len(part)] for row, part in parts.items()]
        return self.walker.read(own.cache, list(parts), list(parts.values()), tokens)

    def _caught_up(self, own: EagleState, going: list[bool]) -> Float[Tensor, "batch 1 hidden"]:
        """Read all that waits in going rows, in one pass; the output at each row's last position."""
        parts = {row: torch.cat(queue) for row, queue in enumerate(own.queues) if going[row] and queue}
        if parts:
            residual, queries = self._read(own, parts)
            rows = torch.tensor(list(parts), device=residual.device)
            ends = torch.tensor(list(map(len, parts.values())), device=residual.device).cumsum(0) - 1
            spread = ends.new_zeros(len(going)).index_copy(0, rows, ends)  # for a row that rests any of them will do
            out = self.walker.attend(own.cache, residual[spread, None], queries[spread, None])[:, 0]
            own.outs = own.outs.index_copy(0, rows, out[rows])
            for row in parts:
                own.queues[row] = []
        return own.outs[:, None]

    # ---- drafts ------------------------------------------------------------------------------------------------------

    def _chain(
        self,
        own: EagleState,
        out: Float[Tensor, "batch 1 hidden"],
        rooms: list[int],
        sampling: list[Sampling],
        keys: Keys,
    ) -> Proposal:
        """Draft token by token, every row up to its limit or its end-of-text token."""
        own.cache = self.walker.roomy(own.cache, max(own.cache.lengths) + max(rooms))
        starts = torch.tensor(own.cache.lengths, device=out.device)[:, None]
        drafts: list[list[int]] = [[] for _ in rooms]
        laws: list[Tensor] = []
        raw: list[Tensor] = []
        going = [room > 0 for room in rooms]
        while True:
            depth = len(raw)
            raw.append(self.walker.logits(out)[:, 0])
            law, chosen, broken = _choose(raw[-1], sampling, keys, depth)
            laws.append(law)
            tokens = self._target_ids(chosen)
            for row, token in enumerate(tokens.tolist()):
                if going[row] and not broken[row]:
                    drafts[row].append(token)
                going[row] = going[row] and not broken[row] and len(drafts[row]) < rooms[row]
                going[row] = going[row] and token not in self.eos_ids
            if not any(going):
                break
            out = self.walker.step(own.cache, self.walker.feed(out), tokens[:, None], starts + depth, depth)
        tree = chains(drafts)
        width = tree.tokens.shape[1]
        if not width:
            return Proposal(tree)
        # The last node has no children: its row is never read, and the one before it stands in.
        last = width - 1
        shown = torch.stack([*raw[:width], raw[last]], 1)
        if _decided(sampling, keys):
            return Proposal(tree, None, shown, self._ids)
        return Proposal(tree, self._law(torch.stack([*laws[:width], laws[last]], 1)), shown, self._ids)

    def _target_ids(self, tokens: Int[Tensor, "*lead"]) -> Int[Tensor, "*lead"]:
        return tokens if self._ids is None else self._ids[tokens]

    def _ends(self) -> frozenset[int]:
        """The draft ids that end a text."""
        if self._ids is None:
            return self.eos_ids
        ends = torch.tensor(sorted(self.eos_ids), dtype=torch.int64, device=self._ids.device)
        places = torch.searchsorted(self._ids, ends).clamp(max=len(self._ids) - 1)
        return frozenset(places[self._ids[places] == ends].tolist())

    def _law(self, rows: Float[Tensor, "batch rows draft"]) -> Float[Tensor, "batch rows vocab"]:
        """Laws over the target's ids."""
        return rows if self._ids is None else spread(rows, self._ids, self.vocab_size, 0.0)

    def _in_target_ids(self, drawn: Proposal) -> Proposal:
        """What was drafted in the head's ids."""
        tree, laws = drawn.tree, drawn.draft_probs
        tokens = self._target_ids(tree.tokens.clamp(min=0)).where(tree.real, -1)
        return Proposal(
            DraftTree(tokens, tree.parents, tree.num_nodes),
            None if laws is None else self._law(laws),
            drawn.draft_logits,
            self._ids,
        )


@dataclass(frozen=True)
class _InDraftIds(Keys):
    """Keys that are asked by the head's ids and answer by the target's, by which noise is named."""

    keys: Keys
    ids: Int[Tensor, " draft"]

    def coins(self, purpose: Purpose, count: int, device: torch.device | None = None) -> Float[Tensor, "batch coins"]:
        return self.keys.coins(purpose, count, device)

    def noise(self, depths: Int[Tensor, "batch rows"], ids: Int[Tensor, "batch rows candidates"]) -> Noise:
        return self.keys.noise(depths, self.ids[ids])


def _choose(
    logits: Float[Tensor, "batch draft"], sampling: list[Sampling], keys: Keys, depth: int
) -> tuple[Float[Tensor, "batch draft"], Int[Tensor, " batch"], list[bool]]:
    """The law of each row, a token of it, and which rows are no law; where all are greedy, no law is made."""
    if all(one.greedy for one in sampling):
        chosen, values = argmax(logits)
        return logits, chosen, (~values.isfinite()).tolist()
    broken = unusable_rows(logits)
    law = batch_probability_rows(logits.masked_fill(broken[:, None], 0.0)[:, None], sampling)[:, 0]
    return law, pick(law, keys, depth), broken.tolist()


def _decided(sampling: list[Sampling], keys: Keys) -> bool:
    """Whether nobody asks for a law."""
    return all(one.greedy or coupled for one, coupled in zip(sampling, keys.coupled, strict=True))


def _waiting(queue: list[Features]) -> int:
    return sum(map(len, queue))


def _given(features: list[Features] | None) -> list[Tensor]:
    if features is None:
        raise TypeError("an EAGLE drafter was given no features")
    return features


def _own(state: DraftState) -> EagleState:
    if not isinstance(state, EagleState):
        raise TypeError(f"an EAGLE drafter was given the state of another drafter: {type(state).__name__}")
    return state


# ---- whether a head fits ---------------------------------------------------------------------------------------------


def _rising(head: Head, name: str) -> Int[Tensor, " draft"]:
    """The target's id of every draft id."""
    ids = head.target_ids
    if int(ids[0]) < 0 or int(ids[-1]) >= head.shape.vocab_size or not bool((ids.diff() > 0).all()):
        raise WeightsError(
            f"d2t of the drafter {name!r} leads to ids from {int(ids.min())} to {int(ids.max())}; allowed: rising ids "
            f"from 0 to {head.shape.vocab_size - 1}"
        )
    return ids


def _require_fit(head: AnyHead, target: Target, name: str) -> None:
    """Refuse a head for another vocabulary, depth or width; the target is asked what it shows at the taps."""
    shape = head.shape
    deepest = max((tap for tap in shape.taps if isinstance(tap, int)), default=0)
    if shape.vocab_size != target.vocab_size:
        raise UsageError(
            f"the drafter {name!r} is for a vocabulary of {shape.vocab_size}; allowed: {target.vocab_size}, that of "
            f"the target {target.name!r}"
        )
    if isinstance(target, Transformer) and deepest > target.shape.layers:
        raise UsageError(
            f"the drafter {name!r} reads tap {deepest}; allowed: 0 to {target.shape.layers}, the layers of the target "
            f"{target.name!r}"
        )
    first = torch.zeros(1, 1, dtype=torch.int64, device=target.device)
    features = target.prefill(target.open(1, 1), first, [1], shape.taps).features
    width = 0 if features is None else features.shape[-1]
    if width != shape.target_hidden_size:
        raise UsageError(
            f"the drafter {name!r} reads features {shape.target_hidden_size} wide; allowed: {width}, those of the "
            f"target {target.name!r}"
        )
