"""What every turn proposed and what became of it, one record a turn and row: JSON lines, version 1.

Knows nothing of how a turn is taken: it watches turns go by. The first line is a header; every other line is a record.

Header: ``format_version, versions, target {name, fingerprint, vocab_size}, drafter, sampling, machine``. Record:
``request, start`` (absolute position of the turn's first token), ``last`` (the token before it), ``nodes`` (parent,
token, draft_prob, target_prob), ``target`` and ``draft`` (a row each for the root and every node: the 16 largest raw
logits by id, and the log-sum-exp of all), ``verdict`` (path, next_token, rule, lossless), ``coins`` and ``seconds``.
"""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

import torch
from jaxtyping import Float
from torch import Tensor

from outpace.decoding.loop import Observer, Request
from outpace.decoding.turn import Turn
from outpace.drafters.drafter import Drafter
from outpace.errors import UsageError
from outpace.models.target import Target

FORMAT_VERSION = 1
TOP = 16


def tracing(
    path: str | Path | None, target: Target, drafter: Drafter | None, requests: Sequence[Request]
) -> Observer | None:
    """An observer that writes records to a file, its header already written; None without a path.

    Raises:
        UsageError: the file cannot be written.
    """
    if path is None:
        return None
    try:
        file = Path(path).open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the trace cannot be written to {path}: {error.strerror}") from error
    return Tracer(file, target, drafter, requests)


class Tracer:
    """Writes one record for every row of every turn, flushed turn by turn, so that an interrupted trace is whole."""

    def __init__(self, file: TextIO, target: Target, drafter: Drafter | None, requests: Sequence[Request]) -> None:
        self.file, self.requests = file, requests
        self._write(
            {
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
        )

    def __call__(self, turn: Turn, indices: list[int]) -> None:
        """Record one turn; ``indices`` are the requests of its rows."""
        trees = turn.proposal.tree.to_lists()
        coins = turn.keys.coins("verdict", turn.scores.logits.shape[1]).tolist()
        for row, index in enumerate(indices):
            tokens, parents = trees[row]
            logits = turn.scores.logits[row, : len(tokens) + 1].float()
            logprobs = torch.log_softmax(logits, -1)
            nodes = [
                {
                    "parent": parent,
                    "token": token,
                    "draft_prob": self._draft_prob(turn, row, parent, token),
                    "target_prob": float(logprobs[parent + 1, token].exp()),
                }
                for token, parent in zip(tokens, parents, strict=True)
            ]
            draft = turn.proposal.draft_logits
            self._write(
                {
                    "request": index,
                    "start": turn.keys.starts[row],
                    "num_draft_tokens": len(tokens),
                    "nodes": nodes,
                    "target": _largest(logits),
                    "draft": None if draft is None else _largest(draft[row, : len(tokens) + 1].float()),
                    "verdict": {
                        "path": turn.paths[row],
                        "next_token": turn.emitted[row][-1],
                        "rule": turn.rules[row],
                        "lossless": turn.verdict.lossless,
                    },
                    "seed": turn.keys.seeds[row],
                    "coins": coins[row],
                    "seconds": {
                        "draft": turn.draft_s,
                        "verify": turn.verify_s,
                        "other": turn.total_s - turn.draft_s - turn.verify_s,
                    },
                }
            )
        self.file.flush()

    def _draft_prob(self, turn: Turn, row: int, parent: int, token: int) -> float:
        probs = turn.proposal.draft_probs
        return 1.0 if probs is None else float(probs[row, parent + 1, token])

    def _write(self, record: dict[str, Any]) -> None:
        self.file.write(json.dumps(record) + "\n")


def _largest(logits: Float[Tensor, "rows vocab"]) -> list[dict[str, Any]]:
    """The largest raw logits of every row and the log-sum-exp of all of them."""
    best = logits.topk(min(TOP, logits.shape[-1]), -1)
    total = logits.logsumexp(-1).tolist()
    return [
        {"ids": ids, "logits": values, "logsumexp": whole}
        for ids, values, whole in zip(best.indices.tolist(), best.values.tolist(), total, strict=True)
    ]
