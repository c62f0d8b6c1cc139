"""What every scored row sees: after drafts were kept and dropped, beside siblings, and at its own depth.

Knows nothing of drafters or rules. Drafts are made up, and which of them is kept is decided here: a target has to stand
any. The logits of a row are compared with those of its own text, read afresh.
"""

import random
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from outpace.evaluation.pair import Check, Pair, read
from outpace.models.target import State, Target, padded
from outpace.verification.tree import DraftTree

FAR = {torch.bfloat16: 0.08, torch.float16: 0.02, torch.float32: 1e-3, torch.float64: 1e-6}
"""By dtype: how far two rows of logits may be apart by rounding, as a share of their spread."""

TREE, CHAIN = (-1, -1, 0, 1, 1, 4), (-1, 0, 1, 2)
"""Parents: two branches that lie interleaved, the second one forked; and a line, where trees cannot be scored."""

ROWS, TURNS = 3, 4


def distance(rows: Float[Tensor, "some vocab"], wanted: Float[Tensor, "some vocab"]) -> Float[Tensor, " some"]:
    """The root mean square of the difference over the vocabulary, a common shift apart, by the spread of the logits.

    What is forbidden (-inf) has to be forbidden in both.
    """
    rows, wanted = rows.double(), wanted.double()
    real = rows.isfinite() & wanted.isfinite()
    counts = real.sum(1, keepdim=True).clamp(min=1)
    gaps = (rows - wanted).where(real, 0.0)
    gaps = (gaps - gaps.sum(1, keepdim=True) / counts).where(real, 0.0)
    level = wanted.where(real, 0.0)
    spread = (level - level.sum(1, keepdim=True) / counts).where(real, 0.0)
    size = (gaps.pow(2).sum(1) / spread.pow(2).sum(1).clamp(min=1e-24)).sqrt()
    return size.masked_fill((rows.isfinite() != wanted.isfinite()).any(1), torch.inf)


@dataclass
class _Walk:
    """A batch in which this file plays the turn: texts, and the state of a target that has read all but their ends."""

    target: Target
    state: State
    texts: list[list[int]]
    words: list[int]
    chance: random.Random
    parents: tuple[int, ...]
    roots: list[float] = field(default_factory=list)
    nodes: list[float] = field(default_factory=list)

    def draft(self) -> DraftTree:
        """The shape in every row, its tokens from the pair's own texts; siblings differ."""
        count = len(self.parents)
        pick = self.chance.sample if len(self.words) >= count else self.chance.choices
        rows = [(pick(self.words, k=count), self.parents) for _ in self.texts]
        return DraftTree.from_lists(rows)

    def score(self, tree: DraftTree) -> Float[Tensor, "batch rows vocab"]:
        return self.target.score(self.state, torch.tensor([text[-1] for text in self.texts]), tree).logits

    def paths(self, tree: DraftTree) -> list[list[list[int]]]:
        """Of every row the tokens behind its text, for the root and every node."""
        behind: list[list[list[int]]] = []
        for tokens, parents in tree.to_lists():
            own: list[list[int]] = [[]]
            for token, parent in zip(tokens, parents, strict=True):
                own.append([*own[parent + 1], token])
            behind.append(own)
        return behind

    def turn(self, number: int) -> None:
        """Score, compare every row with a fresh reading, keep another part of the draft in every row."""
        tree = self.draft()
        logits = self.score(tree)
        paths = self.paths(tree)
        fresh = read(self.target, [[*text, *path] for text, own in zip(self.texts, paths, strict=True) for path in own])
        far = distance(logits.flatten(0, 1), fresh).view(logits.shape[:2])
        self.roots.append(float(far[:, 0].max()))
        self.nodes.append(float(far[:, 1:].max()))
        ends = [(-1, len(self.parents) - 1, 0)[(row + number) % 3] for row in range(len(self.texts))]
        path = tree.path_to(torch.tensor(ends))
        self.target.keep(self.state, path, (path >= 0).sum(1).tolist())
        for text, own, end in zip(self.texts, paths, ends, strict=True):
            text += [*own[end + 1], self.chance.choice(self.words)]


def _begin(pair: Pair) -> _Walk:
    """The pair's first prompts, read."""
    target, chance = pair.target, random.Random(pair.seed)
    parents = TREE if target.can_tree else CHAIN
    words = sorted({token for text in (*pair.prompts, *pair.plain) for token in text})
    words += [token for token in range(min(target.vocab_size, 64)) if token not in words][: max(0, 16 - len(words))]
    behind = (TURNS + 2) * (len(parents) + 1)
    longest = min(target.max_positions, 4096) - behind
    texts = [list(prompt[-longest:]) for prompt in pair.prompts[:ROWS]]
    room = max(map(len, texts)) + behind
    state = target.open(len(texts), room)
    target.prefill(state, padded(texts, 0), [len(text) for text in texts])
    for text in texts:
        text.append(chance.choice(words))
    return _Walk(target, state, texts, words, chance, parents)


@torch.inference_mode()
def check_rows(pair: Pair) -> list[Check]:
    """Each row is what a fresh reading gives: the root's whatever came before, a node's whatever stands beside it."""
    walk = _begin(pair)
    for number in range(TURNS):
        walk.turn(number)
        if number == 1 and len(walk.texts) > 1:  # rows leave, others move into their places
            order = list(range(len(walk.texts)))[::-1][: max(2, len(walk.texts) - 1)]
            pair.target.select(walk.state, order)
            walk.texts = [walk.texts[row] for row in order]
    most, turns = FAR[pair.target.dtype], f"{TURNS} turns of {len(pair.prompts[:ROWS])} rows"
    roots, nodes = max(walk.roots), max(walk.nodes)
    what = "every node reads its own path" if pair.target.can_tree else "every drafted token reads its own prefix"
    return [
        Check("rows behind kept and dropped drafts", "cache", roots <= most, roots, most, 0.0, turns),
        Check(what, "mask", nodes <= most, nodes, most, 0.0, f"{turns}, {len(walk.parents)} nodes each"),
    ]


@torch.inference_mode()
def check_siblings(pair: Pair) -> Check:
    """A changed token moves its own row and those below it, and no other: not siblings, not earlier rows."""
    walk = _begin(pair)
    tree = walk.draft()
    before = walk.score(tree)
    below, far = tree.ancestor_mask()[0], 0.0
    for node in range(len(walk.parents)):
        tokens = tree.tokens.clone()
        tokens[:, node] = tokens[:, (node + 1) % len(walk.parents)]
        moved = walk.score(DraftTree(tokens, tree.parents, tree.num_nodes))
        still = torch.cat((torch.tensor([True]), ~below[:, node]))
        far = max(far, float(distance(moved[:, still].flatten(0, 1), before[:, still].flatten(0, 1)).max()))
    most = FAR[pair.target.dtype] / 8
    name = "siblings and later rows" if pair.target.can_tree else "later rows"
    words = f"{len(walk.parents)} tokens changed one at a time"
    return Check(f"{name} do not show", "mask", far <= most, far, most, 0.0, words)
