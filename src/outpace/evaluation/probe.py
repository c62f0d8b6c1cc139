"""A trace for replay: what the drafter would propose at every position of the target's own text.

Knows nothing of acceptance: nothing is verified, so that any depth, tree, threshold or rule can be tried on it later.

The file is a trace (``decoding/trace.py``): JSON lines, the same header and the same fields of a record, with these
differences. The header has ``probe`` {depth, candidates, seed} besides. There is one record for every position of a
text, prompt excluded: ``request`` counts texts, ``start`` is the position, ``last`` the token before it, ``token`` the
one that the target said there. ``nodes`` are a chain of at most eight tokens that the drafter proposes for this
position and those behind it, told of the true tokens up to ``last``; the first position, which prefill gives, has none.
``target`` has one row, that of ``token``: the 16 largest raw logits by id, and the log-sum-exp of all. ``draft`` has a
row like it for each node, the law that it was drawn from before temperature and the like; null where the drafter is no
model. A node's ``target_prob`` is of the target's raw logits and stands only where the target read what the draft says
before the node: null behind the first node that is not the text's, and behind the end of the text. Verdict, coins and
times are left out.

Texts are plain ones of the sampling asked for, by a seed, and the coins of the drafts are keyed by the same seed: the
same models, prompts and options give the same file.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from outpace.decoding.generate import generate
from outpace.decoding.loop import Request
from outpace.decoding.trace import TOP, Logits, Tracer
from outpace.drafters.budget import Budget
from outpace.drafters.drafter import Drafter, Features, Proposal
from outpace.errors import NumericsError, UsageError
from outpace.evaluation.workloads import Question
from outpace.models.staging import Progress
from outpace.models.target import Scores, Target, padded
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling
from outpace.verification.tree import DraftTree

DEPTH = 8
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Node:
    """One drafted token; see the module's docstring."""

    parent: int
    token: int
    draft_prob: float
    target_prob: float | None = None


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

    @classmethod
    def from_json(cls, line: str) -> "Record":
        """The inverse of ``json.dumps(asdict(record))``."""
        fields = json.loads(line)
        nodes = [Node(**node) for node in fields.pop("nodes")]
        target = [Logits(**row) for row in fields.pop("target")]
        draft = fields.pop("draft")
        rows = None if draft is None else [Logits(**row) for row in draft]
        return cls(nodes=nodes, target=target, draft=rows, **fields)


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
        progress: told of texts done.

    Returns:
        How many records were written.

    Raises:
        UsageError: the file cannot be written, or an argument is one that ``generate`` refuses.
    """
    try:
        path.open("a").close()  # what is there stays until there is something to write
    except OSError as error:
        raise UsageError(f"the trace cannot be written to {path}: {error.strerror}") from error
    requests = [Request(question.ids, sampling, max_new_tokens, target.eos_ids, seed) for question in asked]
    head = (Tracer(path, target, drafter, requests).header or {}) | {
        "probe": {"depth": DEPTH, "candidates": TOP, "seed": seed}
    }
    written = 0
    for place, question in enumerate(asked):
        if progress is not None:
            progress(place, len(asked), "probing")
        said = _text(target, question, sampling, max_new_tokens, seed)
        records = probe_text(target, drafter, question.ids, said, sampling, seed, place)
        lines = [asdict(record) for record in records]
        with path.open("a" if place else "w", encoding="utf-8") as file:
            for line in lines if place else [head, *lines]:
                file.write(json.dumps(line, allow_nan=False) + "\n")
        written += len(records)
    return written


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
    target: Target, drafter: Drafter, prompt: list[int], said: list[int], sampling: Sampling, seed: int, request: int
) -> list[Record]:
    """Read a text as it was decoded, one token a forward, and let the drafter guess at each position.

    Args:
        target, drafter: the pair.
        prompt, said: the text, at least one token each; ``said`` is what the target said.
        sampling, seed: of the drafts.
        request: goes into every record.
    """
    positions, taps = len(prompt) + len(said) + DEPTH, drafter.taps
    state, guesses = target.open(1, positions), drafter.open(1, positions)
    scores = target.prefill(state, padded([prompt], 0), [len(prompt)], taps)
    read = _features(scores, len(prompt))
    drafter.admit(guesses, [prompt], read)
    drafter.commit(guesses, [said[:1]], None if read is None else [part[:0] for part in read])
    nodes: list[list[Node]] = [[]]
    records = [Record(request, len(prompt), prompt[-1], said[0], nodes[0], Logits.of(scores.logits[0]), None)]
    for place in range(1, len(said)):
        start, last = len(prompt) + place, said[place - 1]
        budget = Budget.chain([max(0, min(DEPTH, target.max_positions - start - 1))])
        proposal = drafter.propose(guesses, budget, [sampling], Keys((seed,), (0,), (start,), (False,)))
        scores = target.score(state, torch.tensor([last]), DraftTree.empty(1), taps)
        target.keep(state, torch.empty((1, 0), dtype=torch.int64), [0])
        drafter.commit(guesses, [[said[place]]], _features(scores, 1))
        row = scores.logits[0, 0]
        nodes.append(_nodes(proposal))
        _fill(nodes, said, place, row)
        records.append(
            Record(
                request,
                start,
                last,
                said[place],
                nodes[place],
                Logits.of(row[None]),
                _draft_rows(proposal, target.vocab_size),
            )
        )
    return records


def _fill(nodes: list[list[Node]], said: list[int], place: int, row: Float[Tensor, " vocab"]) -> None:
    """Tell the nodes drafted for this position, by drafts that came true so far, how probable the target finds them."""
    probs = torch.softmax(row.float(), -1)
    for depth in range(min(DEPTH, place)):
        draft = nodes[place - depth]
        came_true = [node.token for node in draft[:depth]] == said[place - depth : place]
        if depth < len(draft) and came_true:
            draft[depth] = replace(draft[depth], target_prob=float(probs[draft[depth].token]))


def _nodes(proposal: Proposal) -> list[Node]:
    tokens, parents = proposal.tree.to_lists()[0]
    laws = proposal.draft_probs
    return [
        Node(parent, token, 1.0 if laws is None else float(laws[0, parent + 1, token]))
        for token, parent in zip(tokens, parents, strict=True)
    ]


def _draft_rows(proposal: Proposal, vocab_size: int) -> list[Logits] | None:
    shown = proposal.shown(vocab_size)
    return None if shown is None else Logits.of(shown[0, : int(proposal.tree.num_nodes[0])])


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
