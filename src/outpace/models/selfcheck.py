"""A check at load: what a target says of chains and trees is what its model says of the whole texts.

Knows nothing of how either computes. Two short rows of different lengths are played through, with tokens changed,
paths kept and drafts taken back; every logit is held against the model's own, read without cache and without tree.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from outpace.models.target import State, Target, padded
from outpace.verification.tree import DraftTree

TOLERANCES = {torch.bfloat16: 0.25, torch.float16: 0.25}
"""Root mean square of a row's error, in standard deviations of the row; in other precisions ``EXACT``."""
EXACT = 3e-4

Row = tuple[list[int], list[int]]


class _Differs(Exception):
    """What was found, in words."""


@dataclass(frozen=True)
class Script:
    """The texts of the check: two prompts, the token behind each, two branches of the first row, a tail of the second.

    Branches are ``a c`` and ``b d``, the tail is ``e f``, and ``x`` stands in for others.
    """

    prompts: tuple[list[int], list[int]]
    roots: list[int]
    a: int
    b: int
    c: int
    d: int
    e: int
    f: int
    x: int

    @classmethod
    def drawn(cls, vocab_size: int) -> "Script":
        """Tokens from all over the vocabulary, different ones where it has enough; the same for the same size."""
        coins = torch.Generator().manual_seed(11)
        drawn = [int(token) for token in torch.randperm(vocab_size, generator=coins)[:17]]
        tokens = [drawn[place % len(drawn)] for place in range(17)]
        return cls((tokens[:7], tokens[7:8]), tokens[8:10], *tokens[10:])

    @property
    def runs(self) -> dict[str, list[int]]:
        """Every text that is read whole, by the tokens behind the root; the second row's begin with a colon."""
        first, second = ([*prompt, root] for prompt, root in zip(self.prompts, self.roots, strict=True))
        paths = ("ac", "bd", "ax", "axd", "bdx", ":ef", ":x", ":ex")
        return {
            path: [*(second if path[0] == ":" else first), *(getattr(self, name) for name in path.strip(":"))]
            for path in paths
        }


def own_fault(script: Script, whole: dict[str, Float[Tensor, "time vocab"]]) -> str | None:
    """Why the model itself is no causal one, or None: a token may not move what stands before it."""
    before = len(script.prompts[0]) + 2
    if _apart(whole["ax"][:before], whole["ac"][:before]) <= TOLERANCES.get(whole["ac"].dtype, EXACT):
        return None
    return "a later token changes what it says of earlier ones"


def chain_fault(target: Target, script: Script, whole: dict[str, Float[Tensor, "time vocab"]]) -> str | None:
    """Why the target cannot score, keep and take back chains in ragged rows, or None."""
    return _words(lambda: _play_chains(target, script, whole))


def tree_fault(target: Target, script: Script, whole: dict[str, Float[Tensor, "time vocab"]]) -> str | None:
    """Why the target cannot score trees, or None; it can score chains."""
    return _words(lambda: _play_trees(target, script, whole))


def plain_fault(target: Target, script: Script, whole: dict[str, Float[Tensor, "time vocab"]]) -> str | None:
    """Why the target cannot even decode plainly, or None."""
    return _words(lambda: _play_plainly(target, script, whole))


def _play_chains(target: Target, script: Script, whole: dict[str, Tensor]) -> None:
    state = _opened(target, script, whole)
    own, other = [whole["ac"][-3:], whole[":ef"][-3:]], [whole["ax"][-3:], whole[":ef"][-3:]]
    tail = ([script.e, script.f], [-1, 0])
    read = _score(target, state, script.roots, [([script.a, script.c], [-1, 0]), tail])
    _expect(target, "a chain", read, own)
    changed = _score(target, state, script.roots, [([script.a, script.x], [-1, 0]), tail])
    _expect(target, "what stands before a changed token", [changed[0][:2]], [read[0][:2]])
    _expect(target, "a chain with another token", changed, other)
    target.keep(state, torch.tensor([[0, 1], [-1, -1]]), [2, 0])
    kept = _score(target, state, [script.d, script.x], [([], []), ([], [])])
    _expect(target, "the token behind a kept chain", kept, [whole["axd"][-1:], whole[":x"][-1:]])
    target.rewind(state, [len(prompt) for prompt in script.prompts])
    again = _score(target, state, script.roots, [([script.a, script.c], [-1, 0]), tail])
    _expect(target, "a chain read again after it was taken back", again, own)


def _play_trees(target: Target, script: Script, whole: dict[str, Tensor]) -> None:
    state = _opened(target, script, whole)
    # Three leaves stand before the two branches: whoever sees a sibling sees many.
    leaves = [script.e, script.f, script.x]
    tree = ([*leaves, script.a, script.b, script.c, script.d], [-1, -1, -1, -1, -1, 3, 4])
    read = _score(target, state, script.roots, [tree, ([script.e, script.f], [-1, 0])])
    _expect(target, "the first branch of a tree", [read[0][[0, 4, 6]]], [whole["ac"][-3:]])
    _expect(target, "the second branch of a tree", [read[0][[0, 5, 7]]], [whole["bd"][-3:]])
    _expect(target, "a chain beside a tree", [read[1][:3]], [whole[":ef"][-3:]])
    target.keep(state, torch.tensor([[4, 6], [0, -1]]), [2, 1])
    kept = _score(target, state, [script.x, script.x], [([], []), ([], [])])
    _expect(target, "the token behind a kept branch", kept, [whole["bdx"][-1:], whole[":ex"][-1:]])


def _play_plainly(target: Target, script: Script, whole: dict[str, Tensor]) -> None:
    state = _opened(target, script, whole)
    for step, tokens in enumerate((script.roots, [script.a, script.e], [script.c, script.f])):
        read = _score(target, state, tokens, [([], []), ([], [])])
        places = [len(prompt) + step for prompt in script.prompts]
        _expect(target, "a token", read, [whole["ac"][places[0]][None], whole[":ef"][places[1]][None]])
        target.keep(state, torch.empty(2, 0, dtype=torch.int64), [0, 0])


def _opened(target: Target, script: Script, whole: dict[str, Tensor]) -> State:
    lengths = [len(prompt) for prompt in script.prompts]
    state = target.open(2, max(lengths) + 8)
    read = target.prefill(state, padded([*script.prompts], script.x), lengths).logits
    ends = [whole["ac"][lengths[0] - 1][None], whole[":ef"][lengths[1] - 1][None]]
    _expect(target, "the end of a prompt", [*read], ends)
    return state


def _score(target: Target, state: State, last: list[int], rows: list[Row]) -> list[Tensor]:
    return [*target.score(state, torch.tensor(last), DraftTree.from_lists(rows)).logits]


def _expect(target: Target, what: str, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    for row, expected in zip(ours, theirs, strict=True):
        error = _apart(row, expected)
        if not error <= TOLERANCES.get(target.dtype, EXACT):
            raise _Differs(
                f"{what} is scored {error:.2g} standard deviations from what the model says of the whole text"
            )


def _apart(ours: Float[Tensor, "rows vocab"], theirs: Float[Tensor, "rows vocab"]) -> float:
    """The largest error of a row, in standard deviations of the row."""
    first, second = (logits.double().nan_to_num() for logits in (ours, theirs))
    errors = (first - second).square().mean(-1).sqrt()
    return float((errors / second.std(-1).clamp(min=1e-6)).max())


def _words(play: Callable[[], None]) -> str | None:
    try:
        play()
    except _Differs as found:
        return str(found)
    except Exception as error:  # whatever a model raises at what it cannot do
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return None
