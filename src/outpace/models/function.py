"""Lets any function from ids to logits play Target: no cache, every call reads the whole text again.

Knows nothing of what the function is. Slow and plain: for tables, for laws in float64, and as the reference beside
every cached model.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outpace.errors import UsageError
from outpace.models.target import Scores, State, Tap
from outpace.verification.tree import DraftTree

LogitsOf = Callable[[Int[Tensor, "batch time"]], Float[Tensor, "batch time vocab"]]
UNLIMITED = 2**31 - 1
ROOM = 4096  # positions allocated at first: the context of a function may be unlimited, memory is not


@dataclass
class Texts:
    """The texts read so far: right-padded ids, one length a row, and what was scored last."""

    ids: Int[Tensor, "slots positions"]
    lengths: list[int] = field(default_factory=list)
    scored: tuple[Int[Tensor, " batch"], DraftTree] | None = None

    def require(self, positions: int) -> None:
        """Make room for texts of this length."""
        short = positions - self.ids.shape[1]
        if short > 0:
            self.ids = torch.nn.functional.pad(self.ids, (0, max(short, self.ids.shape[1])))


class FunctionTarget:
    """A Target made of ``logits_of``: next-token logits after every position of ``ids``, causal by promise.

    Args:
        logits_of: the function; entry ``[b, t]`` may depend on ``ids[b, : t + 1]`` only.
        vocab_size: the width of its rows.
        name, eos_ids, max_positions: what the Target protocol shows.
    """

    folder: Path | None = None
    can_tree = True
    can_rewind = True
    fingerprint = "function"
    device = torch.device("cpu")

    def __init__(
        self,
        logits_of: LogitsOf,
        vocab_size: int,
        *,
        name: str = "function",
        eos_ids: tuple[int, ...] = (),
        max_positions: int = UNLIMITED,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.logits_of, self.vocab_size = logits_of, vocab_size
        self.name, self.eos_ids, self.max_positions, self.dtype = name, eos_ids, max_positions, dtype

    def open(self, slots: int, positions: int) -> Texts:
        """An empty batch; texts that outgrow their room get more."""
        return Texts(torch.zeros(slots, min(positions, ROOM), dtype=torch.int64))

    def prefill(
        self, state: State, ids: Int[Tensor, "new time"], lengths: list[int], taps: tuple[Tap, ...] = ()
    ) -> Scores:
        """Note the prompts; logits of each one's last token."""
        texts = _texts(state, taps)
        texts.require(ids.shape[1])
        first = len(texts.lengths)
        texts.ids[first : first + len(ids), : ids.shape[1]] = ids
        texts.lengths += lengths
        ends = torch.tensor(lengths) - 1
        return Scores(self.logits_of(ids)[torch.arange(len(ids)), ends][:, None])

    def score(self, state: State, last: Int[Tensor, " batch"], tree: DraftTree, taps: tuple[Tap, ...] = ()) -> Scores:
        """Write every row's text with the path to each node behind it, and read them all in one call."""
        texts = _texts(state, taps)
        texts.scored = (last, tree)
        batch, nodes = tree.tokens.shape
        starts = torch.tensor(texts.lengths)
        longest, rows = max(texts.lengths), nodes + 1
        written = torch.zeros(batch, rows, longest + rows, dtype=torch.int64)
        written[:, :, :longest] = texts.ids[:batch, None, :longest]
        written.scatter_(2, starts[:, None, None].expand(batch, rows, 1), last[:, None, None].expand(batch, rows, 1))
        depths = tree.depths()
        ends = starts[:, None] + torch.nn.functional.pad(depths, (1, 0))
        tokens = tree.tokens.where(tree.real, last[:, None])
        # Node i stands at its depth in the text of every row below it; elsewhere it is written where nobody reads.
        seen = torch.zeros(batch, rows, nodes, dtype=torch.bool)
        seen[:, 1:] = tree.ancestor_mask()
        places = (starts[:, None] + depths)[:, None].expand(batch, rows, nodes).where(seen, longest + nodes)
        written.scatter_(2, places, tokens[:, None].expand(batch, rows, nodes))
        written = written[:, :, : int(ends.max()) + 1]  # in a ragged batch the rest may lie beyond the context
        if tree.is_chain:  # one text holds them all
            deepest = written[torch.arange(batch), tree.num_nodes]
            logits = self.logits_of(deepest)
            return Scores(logits.gather(1, ends[:, :, None].expand(-1, -1, self.vocab_size)))
        logits = self.logits_of(written.flatten(0, 1))
        flat = logits[torch.arange(batch * rows), ends.flatten()]
        return Scores(flat.view(batch, rows, self.vocab_size))

    def keep(self, state: State, path: Int[Tensor, "batch depth"], num_accepted: list[int]) -> None:
        """Append the last token and the accepted path of the tree just scored."""
        texts = _texts(state, ())
        if texts.scored is None:
            raise UsageError("nothing was scored that could be kept; allowed: keep once after each score")
        last, tree = texts.scored
        texts.require(max(texts.lengths) + 1 + path.shape[1])
        rows, starts = torch.arange(len(last)), torch.tensor(texts.lengths)
        texts.ids[rows, starts] = last
        for step in range(path.shape[1]):
            going = (torch.tensor(num_accepted) > step).nonzero()[:, 0]
            texts.ids[going, starts[going] + 1 + step] = tree.tokens[going, path[going, step]]
        texts.lengths = [length + 1 + count for length, count in zip(texts.lengths, num_accepted, strict=True)]
        texts.scored = None

    def rewind(self, state: State, lengths: list[int]) -> None:
        """Forget every token past ``lengths``."""
        texts = _texts(state, ())
        for row, (new, old) in enumerate(zip(lengths, texts.lengths, strict=True)):
            if not 0 <= new <= old:
                raise UsageError(f"row {row} holds {old} tokens and cannot be rewound to {new}; allowed: 0 to {old}")
        texts.lengths = list(lengths)

    def select(self, state: State, rows: list[int]) -> None:
        """Keep only these rows, in this order."""
        texts = _texts(state, ())
        texts.ids[: len(rows)] = texts.ids[rows]
        texts.lengths = [texts.lengths[row] for row in rows]


def _texts(state: State, taps: tuple[Tap, ...]) -> Texts:
    if not isinstance(state, Texts):
        raise TypeError(f"a FunctionTarget was given the state of another target: {type(state).__name__}")
    if taps:
        raise UsageError(f"a function shows no features and was asked for {taps}; allowed: no taps")
    return state
