"""An independent smaller language model that shares the target's tokenizer; it drafts a chain.

Knows nothing of the target but the tokens it emitted. Its own cache is exact at every step: after a turn it holds
what the text really says, whatever was drafted in between.
"""

import warnings
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from outpace.drafters.drafter import DraftState, Features, Proposal, chains, pick
from outpace.errors import UsageError
from outpace.models.target import State, Tap, Target, padded
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling, batch_probability_rows, unusable_rows


@dataclass
class SmallState:
    """A batch: ``known`` are the tokens of each text, ``read`` those that the drafter's cache holds.

    ``positions`` is how many tokens the cache has room for in a row.
    """

    cache: State
    positions: int
    known: list[list[int]] = field(default_factory=list)
    read: list[list[int]] = field(default_factory=list)


class Small:
    """Drafts a chain by decoding with a smaller model: sampled from its own warped law, or its argmax when greedy.

    Args:
        model: any Target with the same vocabulary as the one to be accelerated; it must be able to rewind.
        target: the one to be accelerated.

    Raises:
        UsageError: the vocabularies differ in size, or the model cannot rewind.

    Source: Leviathan et al. 2211.17192; Chen et al. 2302.01318.
    """

    taps: tuple[Tap, ...] = ()

    def __init__(self, model: Target, target: Target) -> None:
        if model.vocab_size != target.vocab_size:
            raise UsageError(
                f"the draft model {model.name!r} has a vocabulary of {model.vocab_size}, "
                f"the target {target.name!r} one of {target.vocab_size}; they must be equal",
                hint="use a smaller model of the same family",
            )
        if not model.can_rewind:
            raise UsageError(f"the draft model {model.name!r} cannot rewind its cache, so it cannot draft")
        self.model = model
        self.name = f"small:{model.name}"
        self.eos_ids = frozenset(target.eos_ids)

    def open(self, slots: int, positions: int) -> SmallState:
        """An empty batch, with room for two tokens in flight behind every text: what a turn mostly reads at once."""
        room = min(positions, self.model.max_positions) + 2
        return SmallState(self.model.open(slots, room), room)

    def admit(self, state: DraftState, prompts: list[list[int]], features: list[Features] | None) -> None:
        """Read new prompts, as far as the model's own context reaches."""
        own = _own(state)
        readable = [prompt[: self.model.max_positions] for prompt in prompts]
        self.model.prefill(own.cache, padded(readable, 0), [len(prompt) for prompt in readable])
        own.known += [list(prompt) for prompt in prompts]
        own.read += [list(prompt) for prompt in readable]

    def propose(self, state: DraftState, limits: list[int], sampling: list[Sampling], keys: Keys) -> Proposal:
        """Draft token by token, every row up to its limit, to its end-of-text token or to the model's context."""
        own = _own(state)
        rooms = [self._room(row, limit) for row, limit in zip(own.known, limits, strict=True)]
        drafts: list[list[int]] = [[] for _ in rooms]
        laws: list[Tensor] = []
        raw: list[Tensor] = []
        decided = all(one.greedy or coupled for one, coupled in zip(sampling, keys.coupled, strict=True))
        going = [room > 0 for room in rooms]
        while any(going):
            logits = self._advance(own, drafts, going)
            broken = unusable_rows(logits).tolist()
            probs = batch_probability_rows(logits.nan_to_num(0.0).unsqueeze(1), sampling)[:, 0]
            chosen = pick(probs, keys, len(laws)).tolist()
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
        logits = torch.stack([*raw[:width], raw[width - 1]], 1)
        return Proposal(tree, None if decided else torch.stack([*laws[:width], laws[width - 1]], 1), logits)

    def commit(self, state: DraftState, emitted: list[list[int]], features: list[Features] | None) -> None:
        """Learn what was emitted; forget what was read of the draft beyond the part that came true."""
        own = _own(state)
        for row, tokens in enumerate(emitted):
            known, read = own.known[row], own.read[row]
            agreed = len(known)
            known += tokens
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

    def _advance(self, own: SmallState, drafts: list[list[int]], going: list[bool]) -> Float[Tensor, "batch vocab"]:
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
