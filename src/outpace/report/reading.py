"""What others wrote: traces of turns, and documents of bench, read and checked before anything is drawn.

Knows nothing of how they are shown. What a file holds is taken as data: a number has to be one, a parent has to stand
before its child, and a text is never more than a text.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outpace.decoding.costs import CostTable
from outpace.decoding.trace import FORMAT_VERSION, Logits
from outpace.errors import UsageError
from outpace.verification.probabilities import Sampling

BENCH_VERSION = 1
MOST_TOKENS = 2**31
"""No vocabulary is as large, and the logarithm of it is how far a log-sum-exp can lie above the largest logit."""


@dataclass(frozen=True)
class Record:
    """One turn of one text; the fields are those of ``decoding/trace.py``, nodes taken apart."""

    request: int
    start: int
    last: int
    parents: list[int]
    tokens: list[int]
    draft_probs: list[float]
    target_probs: list[float]
    target: list[Logits]
    draft: list[Logits] | None
    path: list[int]
    next_token: int
    rule: str
    lossless: bool
    coins: list[float]
    seconds: dict[str, float]

    @property
    def depth(self) -> int:
        """Of the longest drafted path."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        return max(depths, default=0)

    @property
    def emitted(self) -> list[int]:
        """The accepted tokens and the target's own."""
        return [*(self.tokens[node] for node in self.path), self.next_token]


@dataclass(frozen=True)
class Trace:
    """A file: what its header says, and its records in order.

    Args:
        name: what the page calls it: the file's name, or a title that its maker put into the header.
        target, fingerprint, vocab_size, dtype: of the model that decided.
        drafter: its name; None for plain decoding.
        sampling: how logits became laws.
        note: a sentence about the trace that its maker put into the header, if any; shown as it stands.
        pieces: what tokens say, if its maker put that into the header too: then no tokenizer is asked.
        records: the turns, those of all texts in the order in which they were taken.
    """

    name: str
    target: str
    fingerprint: str | None
    vocab_size: int
    dtype: str
    drafter: str | None
    sampling: Sampling
    note: str
    pieces: dict[int, str]
    records: list[Record]


def read_trace(path: Path) -> Trace:
    """Read a trace of ``generate``.

    Raises:
        UsageError: the file cannot be read, is a probe or no trace of this version, holds no turn, or a line of it is
            no record; the line is named.
    """
    lines = _text(path, "trace").rstrip().split("\n")
    header = _object(lines[0] if lines else "")
    if header is None or header.get("format_version") != FORMAT_VERSION or "target" not in header:
        raise UsageError(
            f"{path} is no trace of version {FORMAT_VERSION}; allowed: what generate --trace wrote",
            hint="outpace generate PROMPT --trace FILE writes one",
        )
    if "probe" in header:
        raise UsageError(
            f"{path} is a probe, in which nothing was verified; allowed: what generate --trace wrote",
            hint="outpace generate PROMPT --trace FILE writes one",
        )
    records = []
    for number, line in enumerate(lines[1:], 2):
        try:
            records.append(_record(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise UsageError(
                f"{path}, line {number}, is no record of a trace; allowed: what generate --trace wrote"
            ) from error
    if not records:
        raise UsageError(f"{path} holds no turn; allowed: one or more")
    try:
        return _with_header(path.name, header, records)
    except (ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
        raise UsageError(f"{path}, line 1, is no header of a trace; allowed: what generate --trace wrote") from error


def _with_header(name: str, header: Mapping[str, Any], records: list[Record]) -> Trace:
    target, sampling = header["target"], header.get("sampling") or {}
    drafter, note = header.get("drafter"), header.get("note", "")
    checked: dict[str, Any] = {
        key: _whole(value) if key == "top_k" else float(_number(value)) for key, value in sampling.items()
    }
    return Trace(
        name=_string(header.get("title", name)),
        target=_string(target["name"]),
        fingerprint=None if target.get("fingerprint") is None else _string(target["fingerprint"]),
        vocab_size=_whole(target["vocab_size"], 1),
        dtype=_string(target.get("dtype", "")),
        drafter=None if drafter is None else _string(drafter),
        sampling=Sampling(**checked),
        note=_string(note),
        pieces={int(token): _string(piece) for token, piece in header.get("pieces", {}).items()},
        records=records,
    )


def _record(found: Any) -> Record:
    nodes, verdict, seconds = found["nodes"], found["verdict"], found["seconds"]
    parents = [_whole(node["parent"], -1, place - 1) for place, node in enumerate(nodes)]
    path = [_whole(node, 0, len(nodes) - 1) for node in verdict["path"]]
    if [parents[node] for node in path] != [-1, *path][: len(path)]:
        raise ValueError("a path that is none")
    target, draft = found["target"], found["draft"]
    rows = [_logits(row) for row in target]
    coins = [_number(coin) for coin in found["coins"]]
    if len(rows) != len(nodes) + 1 or len(coins) != len(nodes) + 1:
        raise ValueError("a row and a coin for the root and every node")
    drawn = None if draft is None else [_logits(row) for row in draft]
    if drawn is not None and len(drawn) < max(parents, default=-2) + 2:
        raise ValueError("a row for every node that has children")
    return Record(
        request=_whole(found["request"]),
        start=_whole(found["start"]),
        last=_token(found["last"]),
        parents=parents,
        tokens=[_token(node["token"]) for node in nodes],
        draft_probs=[_share(node["draft_prob"]) for node in nodes],
        target_probs=[_share(node["target_prob"]) for node in nodes],
        target=rows,
        draft=drawn,
        path=path,
        next_token=_token(verdict["next_token"]),
        rule=_string(verdict["rule"]),
        lossless=bool(verdict["lossless"]),
        coins=coins,
        seconds={name: max(0.0, _number(seconds[name])) for name in ("draft", "verify", "other")},
    )


def _logits(row: Any) -> Logits:
    ids, logits = [_token(token) for token in row["ids"]], [_number(logit) for logit in row["logits"]]
    if len(ids) != len(logits) or len(set(ids)) != len(ids):
        raise ValueError("a logit for every token")
    whole = _number(row["logsumexp"])
    if logits and not max(logits) - 1 <= whole <= max(logits) + 1 + math.log(MOST_TOKENS):  # 1 is for rounding
        raise ValueError("a sum that is none of these logits")
    return Logits(ids, logits, whole)


# ---- bench -----------------------------------------------------------------------------------------------------------

TEXTS = ("category", "method", "rule", "tree")
FIGURES = ("tau", "acceptance", "plain_turn_share", "tokens_per_second", "baseline_tokens_per_second")
SPEEDUPS = ("speedup", "predicted_speedup")


@dataclass(frozen=True)
class Bench:
    """A document of ``bench --json``: its rows, and where and by what they were measured."""

    name: str
    rows: list[dict[str, Any]]
    verdict: str
    about: dict[str, str]


def read_bench(path: Path) -> Bench:
    """Read what ``bench --json`` printed.

    Raises:
        UsageError: the file cannot be read, is no such document of this version, or has no result.
    """
    document = _object(_text(path, "measurement"))
    allowed = "allowed: what bench --json printed"
    if document is None or document.get("format_version") != BENCH_VERSION or "results" not in document:
        raise UsageError(f"{path} is no measurement of version {BENCH_VERSION}; {allowed}")
    try:
        rows = [_row(row) for row in document["results"]]
        protocol, machine = document.get("protocol") or {}, document.get("machine") or {}
        about = {name: str(protocol[name]) for name in ("target", "drafter", "dtype", "source") if protocol.get(name)}
        about |= {name: str(machine[name]) for name in ("cpu", "cores") if machine.get(name)}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} holds a result that is none; {allowed}") from error
    if not rows:
        raise UsageError(f"{path} holds no result; {allowed}", hint="a probe measures nothing")
    verdict = document.get("verdict")
    return Bench(path.name, rows, verdict if isinstance(verdict, str) else "", about)


def _row(found: Any) -> dict[str, Any]:
    row: dict[str, Any] = {name: _string(found[name]) for name in TEXTS}
    row |= {name: None if found.get(name) is None else _number(found[name]) for name in (*FIGURES, *SPEEDUPS)}
    if row["speedup"] is None:
        raise ValueError("no speed-up")
    interval = found.get("speedup_ci")
    row["speedup_ci"] = None if interval is None else [_number(interval[0]), _number(interval[1])]
    row["acceptance_by_position"] = [_number(value) for value in found.get("acceptance_by_position") or ()]
    row["num_draft_tokens"] = str(found.get("num_draft_tokens", ""))
    row["temperature"], row["batch"] = _number(found["temperature"]), _whole(found["batch"], 1)
    row["prompts"] = _whole(found.get("prompts", 0))
    return row


def read_cost_table(path: Path) -> CostTable:
    """Read a cost table that outpace wrote.

    Raises:
        UsageError: the file cannot be read, or is none.
    """
    document = _object(_text(path, "cost table"))
    try:
        return CostTable.from_json(document or {})
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is no cost table; allowed: a file that outpace wrote") from error


# ---- values ----------------------------------------------------------------------------------------------------------


def _text(path: Path, what: str) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"the {what} {path} cannot be read: {reason}") from error


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _whole(value: object, low: int = 0, high: int | None = None) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        raise ValueError(f"{value!r} is no such number")
    return value


def _token(value: object) -> int:
    return _whole(value, 0, MOST_TOKENS - 1)


def _share(value: object) -> Any:
    if not 0 <= _number(value) <= 1 + 1e-3:  # the rounding of a sum
        raise ValueError(f"{value!r} is no probability")
    return value


def _number(value: object) -> Any:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= sys.float_info.max:
        raise ValueError(f"{value!r} is no number")
    return value


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def apart(names: Sequence[str]) -> list[str]:
    """Names under which things are told apart: one that comes again gets a number."""
    found: list[str] = []
    for name in names:
        count, free = 1, name
        while free in found:
            count += 1
            free = f"{name} ({count})"
        found.append(free)
    return found


def by_request(records: Sequence[Record]) -> dict[int, list[Record]]:
    """The turns of every text, in order."""
    found: dict[int, list[Record]] = {}
    for record in records:
        found.setdefault(record.request, []).append(record)
    return found
