"""A trace as the page shows it: every turn with its tree, its laws, its tests and what became of it, in short form.

Knows nothing of HTML. Tokens are numbers of a table of pieces, and figures have four digits. A run is one text of one
trace; its ``turns`` are lists of these:

* ``start``, ``rule``, ``lossless``, ``ms`` (draft, verify, other); ``at``: tokens that the text had before the turn.
* ``nodes``: [parent, piece, probability under the draft's law, and under the target's].
* ``rows``: for the root (0) and every node (1 + i) with children, and for the row at which the path ended: ``law`` is
  [piece, target, draft, left] by token, None where the trace does not tell; ``rest`` the same for all other tokens;
  ``overlap`` the chance that one draw of the drafter is accepted there; ``about`` whether figures are only known about.
* ``tests``: in order, [node, target, draft, weight, chance, coin, accepted, about].
* ``path``, ``end`` (row, piece, ``kind``, coin, mass of the residual, about), ``explained``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from outpace.models.staging import Progress, silent
from outpace.report.laws import Law, law
from outpace.report.pieces import Pieces
from outpace.report.reading import Record, Trace, by_request
from outpace.report.verdicts import EXACT, Draft, Explanation, explain

SHOWN = 5
"""Tokens of a row that are told apart by either model, besides those that matter to the turn."""
DIGITS = 4
UNTOLD = 0.02
"""An overlap is shown where no more than so much mass of the two laws is not told apart."""


class Table:
    """Tokens by number: what the page stores once."""

    def __init__(self, pieces: Pieces) -> None:
        self.pieces, self.places = pieces, dict[int, int]()

    def __call__(self, token: int) -> int:
        """The number of a token's piece."""
        return self.places.setdefault(token, len(self.places))

    def stored(self) -> dict[str, Any]:
        """Ids and what they say, in the order of their numbers."""
        return {"ids": list(self.places), "texts": [self.pieces.piece(token) for token in self.places]}


def short(value: float | None) -> float | None:
    """Four digits, which is what is shown and more."""
    return None if value is None else float(f"{value:.{DIGITS}g}")


def story(trace: Trace, pieces: Pieces, progress: Progress = silent) -> dict[str, Any]:
    """What the page tells of one trace.

    Args:
        trace: as it was read.
        pieces: of its target.
        progress: told of turns done.
    """
    table, runs, done = Table(pieces), [], 0
    for request, records in by_request(trace.records).items():
        turns: list[dict[str, Any]] = []
        emitted: list[int] = []
        for record in records:
            turns.append(_turn(trace, record, table) | {"at": len(emitted)})
            emitted += record.emitted
            done += 1
            progress(done, len(trace.records), "explaining turns")
        before = [table(records[0].last)]
        runs.append({"request": request, "before": before, "said": pieces.said(emitted), "turns": turns})
    sampling = trace.sampling
    return {
        "name": trace.name,
        "note": trace.note,
        "target": trace.target,
        "dtype": trace.dtype,
        "drafter": trace.drafter,
        "sampling": {"temperature": sampling.temperature, "top_k": sampling.top_k}
        | {"top_p": sampling.top_p, "min_p": sampling.min_p},
        "words": pieces.tells_words,
        "pieces": table.stored(),
        "runs": runs,
    }


def laws(trace: Trace, record: Record) -> tuple[list[Law], list[Law] | None]:
    """The laws that judged a turn, and those that its children were drawn from; None where these were one-hot."""
    known: list[dict[int, float]] = [{} for _ in record.target]
    drawn: list[dict[int, float]] = [{} for _ in record.target]
    for node, parent in enumerate(record.parents):
        known[parent + 1][record.tokens[node]] = record.target_probs[node]
        drawn[parent + 1].setdefault(record.tokens[node], record.draft_probs[node])
    target = [law(row, trace.sampling, trace.vocab_size, told) for row, told in zip(record.target, known, strict=True)]
    if record.draft is None or all(prob == 1 for prob in record.draft_probs):
        return target, None
    draft = [
        law(row, trace.sampling, trace.vocab_size).telling(told) for row, told in zip(record.draft, drawn, strict=False)
    ]
    return target, draft


def explained(trace: Trace, record: Record) -> tuple[Draft, Explanation]:
    """A turn with its laws, and how its verdict came about."""
    target, draft = laws(trace, record)
    turn = Draft(
        record.rule,
        record.parents,
        record.tokens,
        record.draft_probs,
        target,
        draft,
        record.path,
        record.next_token,
        record.coins,
    )
    return turn, explain(turn)


def _turn(trace: Trace, record: Record, table: Table) -> dict[str, Any]:
    turn, found = explained(trace, record)
    nodes = [
        [parent, table(token), short(drawn), short(turn.target[parent + 1].prob(token))]
        for parent, token, drawn in zip(record.parents, record.tokens, record.draft_probs, strict=True)
    ]
    rows = sorted({parent + 1 for parent in record.parents} | {turn.end})
    return {
        "start": record.start,
        "rule": record.rule,
        "lossless": record.lossless,
        "ms": [round(1e3 * record.seconds[name], 2) for name in ("draft", "verify", "other")],
        "nodes": nodes,
        "rows": {row: _row(trace, record, turn, found, row, table) for row in rows},
        "tests": [_test(test) for test in found.tests],
        "path": record.path,
        "end": {
            "row": turn.end,
            "piece": table(record.next_token),
            "kind": _kind(turn),
            "coin": short(found.coin),
            "mass": short(found.mass),
            "residual": found.residual,
            "about": found.left.slack > EXACT,
        },
        "explained": found.explained,
    }


def _test(test: Any) -> list[Any]:
    figures = (test.target, test.draft, test.weight, test.chance, test.coin)
    return [test.node, *map(short, figures), int(test.accepted), int(test.about)]


def _kind(turn: Draft) -> str:
    """What the target's own token is: of a turn without a draft, behind a whole path, or in place of a refused one."""
    if not turn.tokens:
        return "plain"
    return "correction" if turn.children(turn.end) else "bonus"


def _row(trace: Trace, record: Record, turn: Draft, found: Explanation, row: int, table: Table) -> dict[str, Any]:
    target, last = turn.target[row], row == turn.end
    children = [record.tokens[node] for node in turn.children(row)]
    draft = turn.draft[row] if turn.draft is not None and row < len(turn.draft) and children else None
    looked = _shown(trace, record, row) if draft is None and children else None
    tokens = dict.fromkeys([*_best(target), *(_best(draft) if draft else []), *children])
    if last:
        tokens |= dict.fromkeys([record.next_token, *_best(found.left)])
    ranked = sorted(tokens, key=lambda token: (-max(target.prob(token), draft.prob(token) if draft else 0), token))
    shown = [draft or looked, found.left if last and found.residual else None]
    law_ = [
        [table(token), _told(target, token), *(None if one is None else _told(one, token) for one in shown)]
        for token in ranked
    ]
    rest = [short(_remaining(one, tokens)) for one in (target, *shown)]
    return {
        "law": law_,
        "rest": rest,
        "fixed": bool(children) and draft is None,
        "overlap": short(target.overlap(draft)) if draft and min(target.rest, draft.rest) <= UNTOLD else None,
        "about": any(one is not None and one.slack > EXACT for one in (target, draft)),
    }


def _shown(trace: Trace, record: Record, row: int) -> Law | None:
    """What a drafter that is a model gave the children of a row, where they were not drawn but chosen."""
    if record.draft is None or row >= len(record.draft) or trace.sampling.greedy:
        return None
    return law(record.draft[row], trace.sampling, trace.vocab_size)


def _best(one: Law) -> Sequence[int]:
    return list(one.probs)[:SHOWN]


def _told(one: Law, token: int) -> float | None:
    """A probability; None where the token is among the others, and 0 where there are none."""
    return short(one.probs[token]) if token in one.probs else None if one.rest > 0 else 0.0


def _remaining(one: Law | None, tokens: Mapping[int, None]) -> float | None:
    return None if one is None else max(0.0, one.mass - sum(one.prob(token) for token in tokens))
