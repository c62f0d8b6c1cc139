"""An independent smaller language model that shares the target's tokenizer; it drafts a chain or a tree.

Knows nothing of the target but the tokens it emitted. Its own cache is exact at every step: after a turn it holds
what the text really says, whatever was drafted in between.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from outpace.drafters.budget import KINDS, Budget, Kind
from outpace.drafters.drafter import DraftState, Features, Proposal, chains, falling, pick, rates_of
from outpace.drafters.growth import Branches, ancestry, ranked_tree, sampled_tree, shaped_tree, some
from outpace.drafters.vocabulary import in_target_ids, require_one_tokenizer
from outpace.errors import UsageError
from outpace.models.target import State, Tap, Target, padded, take
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling, batch_probability_rows, unusable_rows
from outpace.verification.tree import DraftTree

METHOD = "small"
TREE_ROOM = 256
"""Nodes that the cache has room for beyond the model's context: in flight they stand at their depths, not behind it."""


@dataclass
class SmallState:
    """A batch: ``known`` are the tokens of each text, ``read`` those that the drafter's cache holds.

    ``positions`` is how many tokens the cache has room for in a row; ``foreign`` says which texts hold an id that the
    drafter lacks: these are not read any further.
    """

    cache: State
    positions: int
    known: list[list[int]] = field(default_factory=list)
    read: list[list[int]] = field(default_factory=list)
    foreign: list[bool] = field(default_factory=list)


class Small:
    """Drafts by decoding with a smaller model.

    * A chain is drawn from the model's own warped law, or is its argmax when greedy.
    * ``top-k`` and ``top-p`` trees hold its most probable children, see ``growth.ranked_tree``.
    * A ``sampled`` tree is drawn without replacement, see ``growth.sampled_tree``.
    * A ``static`` tree has its shape by the rates that it names, or by the model's own, see ``growth.shaped_tree``.

    A tree takes one forward a depth, over the nodes that get children there and those above them, and nothing of it is
    kept in the cache.

    Args:
        model: any Target with the same tokenizer as the one to be accelerated; it must be able to rewind. Where it
            cannot score a tree it drafts chains only.
        target: the one to be accelerated. Ids that it lacks are never drafted, and a text that holds an id which the
            model lacks is decoded without drafts, with a notice.
        rates: acceptance by rank as it was measured, none where nobody did.

    Raises:
        UsageError: the tokenizers differ, the sizes of the vocabularies differ and no tokenizer is there to compare,
            or the model cannot rewind.
        WeightsError: a tokenizer's file cannot be read.

    Source: Leviathan et al. 2211.17192; Chen et al. 2302.01318.
    """

    taps: tuple[Tap, ...] = ()

    def __init__(self, model: Target, target: Target, *, rates: Sequence[float] = ()) -> None:
        require_one_tokenizer(model, target)
        if not model.can_rewind:
            raise UsageError(f"the draft model {model.name!r} cannot rewind its cache, so it cannot draft")
        self.model = model
        self.name, self.rates = f"{METHOD}:{model.name}", falling(rates)
        self.branchings: frozenset[Kind] = frozenset(KINDS if model.can_tree else ("chain",))
        self.vocab_size = target.vocab_size
        self.eos_ids = frozenset(target.eos_ids)

    def open(self, slots: int, positions: int) -> SmallState:
        """An empty batch, with room for two tokens in flight behind every text: what a turn mostly reads at once."""
        room = min(positions, self.model.max_positions + TREE_ROOM) + 2
        return SmallState(self.model.open(slots, room), room)

    def admit(self, state: DraftState, prompts: list[list[int]], features: list[Features] | None) -> None:
        """Read new prompts, as far as the model's own context and vocabulary reach."""
        own = _own(state)
        own.foreign += [self._is_foreign(prompt) for prompt in prompts]
        readable = [prompt[: min(self._readable(prompt), self.model.max_positions)] or [0] for prompt in prompts]
        self.model.prefill(own.cache, padded(readable, 0), [len(prompt) for prompt in readable])
        own.known += [list(prompt) for prompt in prompts]
        own.read += readable

    def propose(self, state: DraftState, budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        """Draft within the budget, and no further than an end-of-text token or the model's context."""
        own = _own(state)
        rows = zip(own.known, own.foreign, budget.depths, strict=True)
        rooms = [0 if foreign else self._room(known, limit) for known, foreign, limit in rows]
        if budget.branching.is_chain:
            return self._chain(own, rooms, sampling, keys)
        going = [room > 0 for room in rooms]
        lengths = [len(known if go else read) for known, read, go in zip(own.known, own.read, going, strict=True)]
        most = own.positions - max(lengths)  # the last token is scored again, with every node behind it
        nodes = [min(count, most) if go else 0 for count, go in zip(budget.nodes, going, strict=True)]
        if not any(nodes):
            return Proposal(DraftTree.empty(len(rooms)))

        def look(
            depth: int, grown: Sequence[Branches], asked: Sequence[Sequence[int]]
        ) -> Float[Tensor, "batch width vocab"]:
            if depth == 0:
                return in_target_ids(self._advance(own, [[] for _ in rooms], going)[:, None], self.vocab_size)
            lines = [ancestry(*row) for row in zip(grown, asked, strict=True)]
            places = [[1 + line.index(node) for node in nodes] for line, nodes in zip(lines, asked, strict=True)]
            logits = self._score(own, some(grown, lines))
            return in_target_ids(take(logits, padded(places, 0)), self.vocab_size)

        within = replace(budget, depths=rooms, nodes=nodes)
        if budget.branching.kind == "sampled":
            return sampled_tree(look, within, sampling, keys, self.eos_ids)
        if budget.branching.kind == "static":
            return shaped_tree(look, within, rates_of(budget.branching, self), self.eos_ids)
        return ranked_tree(look, within, sampling, self.eos_ids)

    def commit(self, state: DraftState, emitted: list[list[int]], features: list[Features] | None) -> None:
        """Learn what was emitted; forget what was read of the draft beyond the part that came true."""
        own = _own(state)
        for row, tokens in enumerate(emitted):
            known, read = own.known[row], own.read[row]
            agreed = len(known)
            known += tokens
            own.foreign[row] = own.foreign[row] or self._is_foreign(tokens)
            while agreed < min(len(read), len(known) - 1) and read[agreed] == known[agreed]:
                agreed += 1  # the last token stays unread, even where it is what was read of a refused draft
            del read[agreed:]
        self.model.rewind(own.cache, [len(read) for read in own.read])

    def select(self, state: DraftState, rows: list[int]) -> None:
        """Keep only these rows."""
        own = _own(state)
        self.model.select(own.cache, rows)
        own.known = [own.known[row] for row in rows]
        own.read = [own.read[row] for row in rows]
        own.foreign = [own.foreign[row] for row in rows]

    def _room(self, known: list[int], limit: int) -> int:
        """How many tokens may be drafted: the last of them is never read, so it needs no position."""
        room = self.model.max_positions - len(known) + 1
        if limit > 0 and room <= 0:
            warnings.warn(
                f"the draft model {self.model.name!r} has a context of {self.model.max_positions} tokens; "
                "longer texts are decoded without drafts",
                stacklevel=2,
            )
        return max(0, min(limit, room))

    def _readable(self, tokens: list[int]) -> int:
        """How many tokens stand before the first id that the model lacks."""
        return next((place for place, token in enumerate(tokens) if token >= self.model.vocab_size), len(tokens))

    def _is_foreign(self, tokens: list[int]) -> bool:
        place = self._readable(tokens)
        if place < len(tokens):
            warnings.warn(
                f"the draft model {self.model.name!r} lacks the id {tokens[place]}; a text that holds it is decoded "
                "without drafts from there on",
                stacklevel=2,
            )
        return place < len(tokens)

    def _chain(self, own: SmallState, rooms: list[int], sampling: list[Sampling], keys: Keys) -> Proposal:
        """Draft token by token, every row up to its limit or its end-of-text token."""
        drafts: list[list[int]] = [[] for _ in rooms]
        laws: list[Tensor] = []
        raw: list[Tensor] = []
        decided = all(one.greedy or coupled for one, coupled in zip(sampling, keys.coupled, strict=True))
        going = [room > 0 for room in rooms]
        while any(going):
            logits = in_target_ids(self._advance(own, drafts, going), self.vocab_size)
            unusable = unusable_rows(logits)
            usable = logits.masked_fill(unusable[:, None], 0.0)
            probs = batch_probability_rows(usable.unsqueeze(1), sampling)[:, 0]
            broken, chosen = unusable.tolist(), pick(probs, keys, len(laws)).tolist()
            laws.append(probs)
            raw.append(logits)
            for row, token in enumerate(chosen):
                if going[row] and not broken[row]:
                    drafts[row].append(token)
                full = len(drafts[row]) >= rooms[row] or (bool(drafts[row]) and drafts[row][-1] in self.eos_ids)
                going[row] = going[row] and not broken[row] and not full
        tree = chains(drafts)
        width = tree.tokens.shape[1]
        if not width:
            return Proposal(tree)
        # The last node has no children: its row is never read, and the one before it stands in.
        shown = torch.stack([*raw[:width], raw[width - 1]], 1)
        return Proposal(tree, None if decided else torch.stack([*laws[:width], laws[width - 1]], 1), shown)

    def _score(self, own: SmallState, tree: DraftTree) -> Float[Tensor, "batch rows own_vocab"]:
        """Logits after the last token read, which is scored once more, and after every node; nothing more is kept."""
        self.model.rewind(own.cache, [len(read) - 1 for read in own.read])
        last = torch.tensor([read[-1] for read in own.read], device=tree.tokens.device)
        logits = self.model.score(own.cache, last, tree).logits
        self.model.keep(own.cache, tree.tokens[:, :0], [0] * len(own.read))
        return logits

    def _advance(self, own: SmallState, drafts: list[list[int]], going: list[bool]) -> Float[Tensor, "batch own_vocab"]:
        """Read every going row's unread tokens; logits after the last one.

        After a full acceptance there are two, after turns without a draft more; as many are read at once as the
        longest row has room for. A row that rests, or has nothing left to read, reads its last token once more: that
        changes nothing and needs no position beyond its own.
        """
        texts = [
            (known + draft if go else read)
            for known, draft, read, go in zip(own.known, drafts, own.read, going, strict=True)
        ]
        while True:
            width = max(1, own.positions - max(map(len, own.read)))
            unread = [text[len(read) :][:width] for text, read in zip(texts, own.read, strict=True)]
            fed = [tokens or read[-1:] for tokens, read in zip(unread, own.read, strict=True)]
            if not all(unread):
                starts = [len(read) - (not tokens) for read, tokens in zip(own.read, unread, strict=True)]
                self.model.rewind(own.cache, starts)
            tree = chains([tokens[1:] for tokens in fed])
            logits = self.model.score(own.cache, torch.tensor([tokens[0] for tokens in fed]), tree).logits
            path = torch.arange(tree.tokens.shape[1]).expand(len(fed), -1)
            self.model.keep(own.cache, path, [len(tokens) - 1 for tokens in fed])
            for read, tokens in zip(own.read, unread, strict=True):
                read += tokens
            if all(len(read) >= len(text) for read, text in zip(own.read, texts, strict=True)):
                return logits[torch.arange(len(fed)), torch.tensor([len(tokens) - 1 for tokens in fed])]


def _own(state: DraftState) -> SmallState:
    if not isinstance(state, SmallState):
        raise TypeError(f"a small drafter was given the state of another drafter: {type(state).__name__}")
    return state
