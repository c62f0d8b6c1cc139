"""What every turn proposed and what became of it, one record a turn and row: JSON lines, version 1.

Knows nothing of how a turn is taken: it watches turns go by. The first line is a header; every other line is a record.

Header: ``format_version, versions, target {name, fingerprint, vocab_size}, drafter, sampling, machine``. Record:
``request, start`` (absolute position of the turn's first token), ``last`` (the token before it), ``num_draft_tokens``,
``nodes`` (parent, token, draft_prob, target_prob), ``target`` (a row for the root and every node: the 16 largest raw
logits by id, and the log-sum-exp of all), ``draft`` (the same up to the last row that has children; of a tree, rows
without children mean nothing), ``verdict`` (path, next_token, rule, lossless), ``seed``, ``coins`` (as the rule judges
by them), ``seconds``. ``draft_prob`` is of the law drawn from, 1 for a deterministic child; ``target_prob`` of the
target's raw logits. What a turn emitted behind the stop is in its record too.
"""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from outpace.decoding.judging import verdict_coins
from outpace.decoding.loop import Observer, Request
from outpace.decoding.turn import Turn
from outpace.drafters.drafter import Drafter
from outpace.errors import UsageError
from outpace.models.target import Target

FORMAT_VERSION = 1
TOP = 16


@dataclass(frozen=True)
class Logits:
    """The largest raw logits of a row by id, best first, and the log-sum-exp of all of them."""

    ids: list[int]
    logits: list[float]
    logsumexp: float

    @classmethod
    def of(cls, rows: Float[Tensor, "rows vocab"]) -> list["Logits"]:
        """Of whole rows; what is forbidden (-inf) is left out, as JSON has no infinity."""
        rows = rows.float()
        best = rows.topk(min(TOP, rows.shape[-1]), -1)
        counts = best.values.isfinite().sum(-1).tolist()
        columns = zip(best.indices.tolist(), best.values.tolist(), counts, rows.logsumexp(-1).tolist(), strict=True)
        return [cls(ids[:count], values[:count], whole) for ids, values, count, whole in columns]


def tracing(
    path: str | Path | None, target: Target, drafter: Drafter | None, requests: Sequence[Request]
) -> Observer | None:
    """An observer that writes a header and records to a file; None without a path.

    Raises:
        UsageError: the file cannot be written.
    """
    if path is None:
        return None
    try:
        Path(path).open("a").close()  # what is there stays until there is something to write
    except OSError as error:
        raise UsageError(f"the trace cannot be written to {path}: {error.strerror}") from error
    return Tracer(Path(path), target, drafter, requests)


class Tracer:
    """Writes one record for every row of every turn; the file is closed after each, so an interrupted trace is whole.

    The first turn replaces what the file held. A row that ended with an error has no record of that turn.
    """

    def __init__(self, path: Path, target: Target, drafter: Drafter | None, requests: Sequence[Request]) -> None:
        self.path = path
        self.last = {index: request.ids[-1] for index, request in enumerate(requests) if request.ids}
        self.header: dict[str, Any] | None = {
            "format_version": FORMAT_VERSION,
            "versions": {name: metadata.version(name) for name in ("outpace", "torch", "transformers")},
            "target": {
                "name": target.name,
                "fingerprint": target.fingerprint,
                "vocab_size": target.vocab_size,
                "dtype": str(target.dtype).removeprefix("torch."),
            },
            "drafter": None if drafter is None else drafter.name,
            "sampling": asdict(requests[0].sampling) if requests else None,
            "machine": {"processor": platform.processor() or platform.machine(), "threads": torch.get_num_threads()},
        }

    def __call__(self, turn: Turn, indices: list[int]) -> None:
        """Record one turn; ``indices`` are the requests of its rows."""
        trees = turn.proposal.tree.to_lists()
        records = [
            self._record(turn, row, index, *trees[row]) for row, index in enumerate(indices) if turn.errors[row] is None
        ]
        with self.path.open("a" if self.header is None else "w", encoding="utf-8") as file:
            for entry in records if self.header is None else [self.header, *records]:
                file.write(json.dumps(entry, allow_nan=False) + "\n")
        self.header = None

    def _record(self, turn: Turn, row: int, index: int, tokens: list[int], parents: list[int]) -> dict[str, Any]:
        logits = turn.scores.logits[row, : len(tokens) + 1].float()
        probs = torch.softmax(logits, -1)
        nodes = [
            {
                "parent": parent,
                "token": token,
                "draft_prob": self._draft_prob(turn, row, parent, token),
                "target_prob": float(probs[parent + 1, token]),
            }
            for token, parent in zip(tokens, parents, strict=True)
        ]
        draft, last = turn.proposal.shown(logits.shape[-1]), self.last[index]
        self.last[index] = turn.emitted[row][-1]
        return {
            "request": index,
            "start": turn.keys.starts[row],
            "last": last,
            "num_draft_tokens": len(tokens),
            "nodes": nodes,
            "target": _shown(logits),
            "draft": None if draft is None else _shown(draft[row, : max(parents, default=-2) + 2]),
            "verdict": {
                "path": turn.paths[row],
                "next_token": turn.emitted[row][-1],
                "rule": turn.rules[row],
                "lossless": turn.lossless[row],
            },
            "seed": turn.keys.seeds[row],
            "coins": verdict_coins(turn.rules[row], turn.keys.select([row]), len(tokens) + 1)[0].tolist(),
            "seconds": {
                "draft": turn.draft_s,
                "verify": turn.verify_s,
                "other": turn.total_s - turn.draft_s - turn.verify_s,
            },
        }

    def _draft_prob(self, turn: Turn, row: int, parent: int, token: int) -> float:
        probs = turn.proposal.draft_probs
        return 1.0 if probs is None else float(probs[row, parent + 1, token])


def _shown(rows: Float[Tensor, "rows vocab"]) -> list[dict[str, Any]]:
    return [asdict(row) for row in Logits.of(rows)]
