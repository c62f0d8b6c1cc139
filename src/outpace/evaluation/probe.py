"""A trace for replay: what the drafter would propose at every position of the target's own text.

Knows nothing of acceptance: nothing is verified, so that any depth, tree, threshold or rule can be tried on it later.

The file is a trace (``decoding/trace.py``): JSON lines, the same header and the same fields of a record, with these
differences. The header has ``probe`` besides, {depth, deepest, candidates, seed, trees, tree_nodes, rates, texts}: the
longest path that the drafter can draft, null where it has no limit, its own rates by rank, and of each text its id,
category, prompt and limit, the most tokens that it could have had. There is one record for every position of a text,
prompt excluded: ``request`` counts texts, ``start`` is the position, ``last`` the token before it, ``token`` the one
that the target said there.

* ``nodes`` are a chain of at most eight tokens that the drafter proposes for this position and those behind it, told of
  the true tokens up to ``last``, as a request with this seed would get them; the first position, which prefill gives,
  has none.
* ``target`` has one row, that of ``token``: the 16 largest raw logits by id, and the log-sum-exp of all. ``draft`` has
  a row like it for each node, the law that it was drawn from before temperature and the like; null where the drafter
  is no model.
* A node's ``target_prob`` is of the target's raw logits and stands only where the target read what the draft says
  before the node: null behind the first node that is not the text's, and behind the end of the text.
* ``said`` is how the target finds ``token``: {prob, law, rank}, of its raw logits, by the sampling (at temperature 0 as
  ``prob``), and how many tokens it finds likelier.
* ``followed`` is the same of the drafter, with its ``row``, for this token and those behind it, each time told all
  tokens of the text before: what a chain that is always right would be drawn from. It ends with the text, or behind a
  token that the drafter could hardly have meant. Null where the drafter is no model.
* ``grade`` is what the drafter said beforehand that its draft would be worth, null where it does not say.
* ``trees`` are trees from this position by what they are called, ``top-k:8`` if nothing else was asked for: their 64
  heaviest nodes, with the drafter's probability of each at its parent as ``draft_prob``. All narrower, shallower and
  smaller trees can be cut out of a wide one, nearly; a tree recorded by its own name is exact.

Verdict, coins and times are left out. Texts are plain ones of the sampling asked for, by a seed, and the coins of the
drafts are keyed by the same seed: the same models, prompts and options give the same file.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outpace.decoding.generate import generate
from outpace.decoding.loop import Request
from outpace.decoding.trace import TOP, Logits, Tracer
from outpace.drafters.budget import DYNAMIC, Branching, Budget
from outpace.drafters.drafter import Drafter, DraftState, Features, Proposal, deepest, grades_of, own_rates
from outpace.drafters.either import computing
from outpace.errors import NumericsError, UsageError
from outpace.evaluation.workloads import Question
from outpace.models.staging import Progress
from outpace.models.target import Scores, Target, padded
from outpace.verification.coins import Keys, Noise
from outpace.verification.probabilities import Sampling, probability_rows
from outpace.verification.tree import DraftTree

DEPTH = 8
NODES = 64
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Node:
    """One drafted token; see the module's docstring."""

    parent: int
    token: int
    draft_prob: float
    target_prob: float | None = None


@dataclass(frozen=True)
class Said:
    """How a model finds a token of the text; see the module's docstring."""

    prob: float
    law: float
    rank: int

    @classmethod
    def of(cls, row: Float[Tensor, " vocab"], token: int, sampling: Sampling) -> "Said":
        """Of raw logits."""
        law = probability_rows(row, Sampling(1.0) if sampling.greedy else sampling)
        above = row > row[token]
        above[:token] |= row[:token] == row[token]
        return cls(float(row.float().softmax(-1)[token]), float(law[token]), int(above.sum()))


@dataclass(frozen=True)
class Followed(Said):
    """How the drafter finds it, and the row; see the module's docstring."""

    row: Logits


@dataclass(frozen=True)
class Record:
    """One position of one text; see the module's docstring."""

    request: int
    start: int
    last: int
    token: int
    nodes: list[Node]
    target: list[Logits]
    draft: list[Logits] | None
    said: Said | None = None
    followed: list[Followed] | None = None
    trees: dict[str, list[Node]] = field(default_factory=dict)
    grade: int | None = None

    @classmethod
    def from_json(cls, line: str) -> "Record":
        """The inverse of ``json.dumps(asdict(record))``."""
        fields = json.loads(line)
        nodes = [Node(**node) for node in fields.pop("nodes")]
        target = [Logits(**row) for row in fields.pop("target")]
        draft = fields.pop("draft")
        rows = None if draft is None else [Logits(**row) for row in draft]
        said, followed, trees = fields.pop("said", None), fields.pop("followed", None), fields.pop("trees", {})
        behind = None if followed is None else [Followed(**one | {"row": Logits(**one["row"])}) for one in followed]
        return cls(
            nodes=nodes,
            target=target,
            draft=rows,
            said=None if said is None else Said(**said),
            followed=behind,
            trees={shape: [Node(**node) for node in tree] for shape, tree in trees.items()},
            **fields,
        )


@dataclass(frozen=True)
class Probe:
    """What a file holds: its header as it stands, and its records in order."""

    header: dict[str, Any]
    records: list[Record]


def write_probe(
    path: Path,
    target: Target,
    drafter: Drafter,
    asked: Sequence[Question],
    *,
    sampling: Sampling,
    max_new_tokens: int,
    seed: int = 0,
    trees: Sequence[Branching] = (DYNAMIC,),
    progress: Progress | None = None,
) -> int:
    """Say every text plainly, then draft at each of its positions; text by text, so that an interrupted file is whole.

    Args:
        path: where to; what the file held is replaced.
        target, drafter: any pair; the drafter is asked for chains.
        asked: the prompts.
        sampling: the law of the texts and of the drafts.
        max_new_tokens: of each text; 1 or more.
        seed: of texts and drafts; greedy texts need none.
        trees: trees to record, of those that the drafter drafts; ``top-k`` and ``top-p``.
        progress: told of texts done.

    Returns:
        How many records were written.

    Raises:
        UsageError: the drafter is two that are joined, the file cannot be written, or an argument is one that
            ``generate`` refuses.
    """
    _check(path, drafter)
    requests = [Request(question.ids, sampling, max_new_tokens, target.eos_ids, seed) for question in asked]
    texts = [
        {
            "id": question.key,
            "category": question.category,
            "prompt": question.ids,
            "limit": min(max_new_tokens, target.max_positions - len(question.ids)),
        }
        for question in asked
    ]
    shape: dict[str, Any] = {"depth": DEPTH, "candidates": TOP, "seed": seed, "tree_nodes": NODES}
    shape |= {"trees": [str(one) for one in trees if one.kind in drafter.branchings], "rates": own_rates(drafter)}
    shape["deepest"] = deepest(drafter)
    head = (Tracer(path, target, drafter, requests).header or {}) | {"probe": shape | {"texts": texts}}
    written = 0
    for place, question in enumerate(asked):
        if progress is not None:
            progress(place, len(asked), "probing")
        said = _text(target, question, sampling, max_new_tokens, seed)
        records = probe_text(target, drafter, question.ids, said, sampling, seed, place, trees)
        lines = [asdict(record) for record in records]
        with path.open("a" if place else "w", encoding="utf-8") as file:
            for line in lines if place else [head, *lines]:
                file.write(json.dumps(line, allow_nan=False) + "\n")
        written += len(records)
    return written


def _check(path: Path, drafter: Drafter) -> None:
    if computing(drafter) is not drafter:
        raise UsageError(
            f"the drafter is {drafter.name!r}; allowed for a probe: one that is not joined with another",
            hint="probe each of the two",
        )
    try:
        path.open("a").close()  # what is there stays until there is something to write
    except OSError as error:
        raise UsageError(f"the trace cannot be written to {path}: {error.strerror}") from error


def _text(target: Target, question: Question, sampling: Sampling, max_new_tokens: int, seed: int) -> list[int]:
    [result] = generate(
        target,
        None,
        [question.ids],
        **asdict(sampling),
        max_new_tokens=max_new_tokens,
        seed=seed,
    )
    if result.error is not None:
        raise NumericsError(f"prompt {question.key!r}: {result.error}")
    return result.token_ids


def probe_text(
    target: Target,
    drafter: Drafter,
    prompt: list[int],
    said: list[int],
    sampling: Sampling,
    seed: int,
    request: int,
    trees: Sequence[Branching] = (DYNAMIC,),
) -> list[Record]:
    """Read a text as it was decoded, one token a forward, and let the drafter guess at each position.

    Args:
        target, drafter: the pair.
        prompt, said: the text, at least one token each; ``said`` is what the target said.
        sampling, seed: of the drafts.
        request: goes into every record.
        trees: as in ``write_probe``.
    """
    positions, taps = len(prompt) + len(said) + NODES, drafter.taps
    state, guesses = target.open(1, positions), drafter.open(1, positions)
    scores = target.prefill(state, padded([prompt], 0), [len(prompt)], taps)
    read = _features(scores, len(prompt))
    drafter.admit(guesses, [prompt], read)
    drafter.commit(guesses, [said[:1]], None if read is None else [part[:0] for part in read])
    nodes: list[list[Node]] = [[]]
    first = scores.logits[0]
    finds = Said.of(first[0], said[0], sampling)
    records = [Record(request, len(prompt), prompt[-1], said[0], nodes[0], Logits.of(first), None, finds)]
    guesser = _Guesser(drafter, guesses, sampling, read)
    shapes = [one for one in trees if one.kind in drafter.branchings]
    for place in range(1, len(said)):
        start, last = len(prompt) + place, said[place - 1]
        depth = max(0, min(DEPTH, target.max_positions - start - 1))
        keys = Keys((seed,), (0,), (start,), (not sampling.greedy,))
        graded = grades_of(drafter, guesses)
        proposal = guesser.chain(depth, keys)
        shown = proposal.shown(target.vocab_size)
        followed = None if shown is None else guesser.follow(said[place : place + DEPTH], keys, target.vocab_size)
        grown = {str(one): guesser.tree(one, depth, keys, target.vocab_size) for one in shapes}
        scores = target.score(state, torch.tensor([last]), DraftTree.empty(1), taps)
        target.keep(state, torch.empty((1, 0), dtype=torch.int64), [0])
        drafter.commit(guesses, [[said[place]]], _features(scores, 1))
        row = scores.logits[0, 0]
        nodes.append(_nodes(proposal, shown, sampling))
        _fill(nodes, said, place, row)
        draft = None if shown is None else Logits.of(shown[0, : len(nodes[place])])
        finds = Said.of(row, said[place], sampling)
        rows, grade = Logits.of(row[None]), None if graded is None else graded[0]
        told = Record(request, start, last, said[place], nodes[place], rows, draft, finds, followed, grown, grade)
        records.append(told)
    return records


@dataclass(frozen=True)
class _Guesser:
    """A drafter with one text, asked several things at each position; it is told of nothing in between."""

    drafter: Drafter
    state: DraftState
    sampling: Sampling
    features: list[Features] | None

    def chain(self, depth: int, keys: Keys) -> Proposal:
        return self.drafter.propose(self.state, Budget.chain([depth]), [self.sampling], keys)

    def follow(self, tokens: list[int], keys: Keys, vocab_size: int) -> list[Followed]:
        """How the drafter finds each of these tokens, told of all before."""
        self._back()
        given = _Given(keys.seeds, keys.samples, keys.starts, (True,), tuple(tokens))
        proposal = self.drafter.propose(self.state, Budget.chain([len(tokens)]), [Sampling(1.0)], given)
        shown, (drafted, _) = proposal.shown(vocab_size), proposal.tree.to_lists()[0]
        agreed = next((step for step, pair in enumerate(zip(drafted, tokens, strict=False)) if pair[0] != pair[1]), -1)
        reached = drafted if agreed < 0 else drafted[: agreed + 1]
        rows: list[Tensor] = [] if shown is None else list(shown[0, : len(reached)])
        return [
            Followed(**asdict(Said.of(row, token, self.sampling)), row=Logits.of(row[None])[0])
            for row, token in zip(rows, tokens, strict=False)
        ]

    def tree(self, branching: Branching, depth: int, keys: Keys, vocab_size: int) -> list[Node]:
        """The heaviest nodes of a tree."""
        self._back()
        budget = Budget([depth], [NODES if depth else 0], branching)
        proposal = self.drafter.propose(self.state, budget, [self.sampling], keys)
        return _nodes(proposal, proposal.shown(vocab_size), Sampling(1.0) if self.sampling.greedy else self.sampling)

    def _back(self) -> None:
        """Forget the last draft: a turn that emitted nothing."""
        none = None if self.features is None else [part[:0] for part in self.features]
        self.drafter.commit(self.state, [[]], none)


@dataclass(frozen=True)
class _Given(Keys):
    """Keys by whose noise these tokens win every race that they run in: a drafter that races drafts them."""

    tokens: tuple[int, ...] = ()

    def noise(self, depths: Int[Tensor, "batch rows"], ids: Int[Tensor, "batch rows candidates"]) -> Noise:
        wins = ids == torch.tensor(self.tokens, device=ids.device)[depths.to(ids.device)][..., None]
        times = torch.ones(ids.shape, dtype=torch.float64, device=ids.device).masked_fill(wins, 0.0)
        never = torch.full(ids.shape[:2], torch.inf, dtype=torch.float64, device=ids.device)
        return Noise(times, never, torch.zeros_like(never))


def _fill(nodes: list[list[Node]], said: list[int], place: int, row: Float[Tensor, " vocab"]) -> None:
    """Tell the nodes drafted for this position, by drafts that came true so far, how probable the target finds them."""
    probs = torch.softmax(row.float(), -1)
    for depth in range(min(DEPTH, place)):
        draft = nodes[place - depth]
        came_true = [node.token for node in draft[:depth]] == said[place - depth : place]
        if depth < len(draft) and came_true:
            draft[depth] = replace(draft[depth], target_prob=float(probs[draft[depth].token]))


def _nodes(proposal: Proposal, shown: Float[Tensor, "1 rows vocab"] | None, sampling: Sampling) -> list[Node]:
    """Nodes with the probability of each at its parent: of the law that it was drawn from, or that ranked it."""
    tokens, parents = proposal.tree.to_lists()[0]
    laws = proposal.draft_probs
    if laws is None and shown is not None and not sampling.greedy:
        laws = probability_rows(shown, sampling)
    return [
        Node(parent, token, 1.0 if laws is None else float(laws[0, parent + 1, token]))
        for token, parent in zip(tokens, parents, strict=True)
    ]


def _features(scores: Scores, count: int) -> list[Features] | None:
    return None if scores.features is None else [scores.features[0, :count]]


def read_probe(path: Path) -> Probe:
    """Read what ``write_probe`` wrote.

    Raises:
        UsageError: the file cannot be read, is no such trace, or a line of it is broken; the line is named.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the trace {path} cannot be read: {error}") from error
    records = []
    try:
        header = json.loads(lines[0]) if lines else {}
    except ValueError:
        header = {}
    if not isinstance(header, dict) or header.get("format_version") != FORMAT_VERSION or "probe" not in header:
        raise UsageError(
            f"{path} is no probe of version {FORMAT_VERSION}; allowed: a trace that bench --probe wrote",
            hint="a trace of generate has turns, not every position",
        )
    for number, line in enumerate(lines[1:], 2):
        try:
            records.append(Record.from_json(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{path}, line {number}, is no record of a probe; allowed: what bench --probe wrote"
            ) from error
    return Probe(header, records)
