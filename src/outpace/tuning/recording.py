"""Recorded texts and what was drafted at their positions, from a probe or an ordinary trace.

Knows nothing of what is asked of them.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from outpace.drafters.budget import Branching
from outpace.drafters.drafter import Rates
from outpace.errors import UsageError
from outpace.evaluation.probe import DEPTH, FORMAT_VERSION, Followed, Node, Probe, Record, Said, read_probe
from outpace.verification.probabilities import Sampling


@dataclass(frozen=True)
class Place:
    """One position of a text.

    Args:
        token: what the target said there.
        said, followed, trees: as in a probe; None and empty where nothing says.
        chain: the chain that was drafted here, None where nobody drafted.
        certain: the share of the drafter's likeliest token at each node of the chain; None where it is no model.
        accepted: how many of them were taken, where a rule that leaves it to chance decided; None where the text tells.
        row: the target's largest logits and their log-sum-exp; None where nothing says.
        grade: what the drafter said that its draft would be worth; None where it did not say.
        copy: what lookup drafts here in place of the model that it is joined with; None where it does not.
    """

    token: int
    chain: tuple[int, ...] | None
    said: Said | None = None
    followed: tuple[Followed, ...] | None = None
    trees: Mapping[str, Sequence[Node]] = field(default_factory=dict)
    certain: tuple[float, ...] | None = None
    accepted: int | None = None
    row: tuple[tuple[float, ...], float] | None = None
    grade: int | None = None
    copy: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Text:
    """One text, its prompt left out.

    Args:
        key, category: its name and kind; None where the trace names none.
        prompt: how many tokens the prompt has.
        limit: the most tokens that the text could have had.
        places: one a token; prefill gives the first one, so that nothing is drafted there.
    """

    key: str | None
    category: str | None
    prompt: int
    limit: int
    places: tuple[Place, ...]

    def tokens(self, start: int, count: int) -> tuple[int, ...]:
        """So many tokens from a place on; fewer where the text ends."""
        return tuple(place.token for place in self.places[start : start + count])


@dataclass(frozen=True)
class Recording:
    """Texts with what one drafter said at their positions.

    Args:
        kind: ``probe``: at every position; ``trace``: where turns began.
        target, drafter: names.
        sampling: the law of the texts.
        depth: the longest chain that was drafted.
        trees, tree_nodes: the trees that are recorded, and the nodes that each may have.
        rates: the drafter's own rates by rank.
        texts: at least one that drafts could have sped up.
        deepest: the longest path that the drafter can draft; None where it has no limit or the trace does not tell.
        unasked: grades of the places with copies; none but where lookup is joined with a model, see ``joined``.

    Raises:
        UsageError: there is none.
    """

    kind: Literal["probe", "trace"]
    target: str
    drafter: str
    sampling: Sampling
    depth: int
    trees: tuple[Branching, ...]
    tree_nodes: int
    rates: Rates
    texts: tuple[Text, ...]
    deepest: int | None = None
    unasked: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if not any(len(text.places) > 1 for text in self.texts):
            raise UsageError("the trace has no text of two tokens; allowed: one that is longer, or more")

    @classmethod
    def of(cls, probe: Probe) -> "Recording":
        """Of a probe at hand.

        Raises:
            UsageError: it was written before texts were named in its header, or holds none that is long enough.
        """
        header = probe.header
        about = header["probe"]
        if "texts" not in about:
            raise UsageError(
                "the probe does not name its texts; allowed: one of this version", hint="probe once more: bench --probe"
            )
        records: list[list[Record]] = [[] for _ in about["texts"]]
        for record in probe.records:
            records[record.request].append(record)
        texts = [
            Text(str(text["id"]), text["category"], len(text["prompt"]), text["limit"], tuple(map(_place, own)))
            for text, own in zip(about["texts"], records, strict=True)
            if own  # an interrupted probe lacks the last ones
        ]
        return cls(
            kind="probe",
            target=header["target"]["name"],
            drafter=header["drafter"],
            sampling=Sampling(**header["sampling"]),
            depth=DEPTH,
            trees=tuple(Branching.parse(tree) for tree in about["trees"]),
            tree_nodes=about["tree_nodes"],
            rates=_rates(about["rates"]),
            texts=tuple(texts),
            deepest=about.get("deepest"),
        )

    @property
    def categories(self) -> tuple[str, ...]:
        """Names of the texts' kinds, in order of appearance; none where the trace names none."""
        return tuple(dict.fromkeys(text.category for text in self.texts if text.category is not None))

    @property
    def is_model(self) -> bool:
        """Whether the drafter has laws, and its drafts at temperatures above 0 are drawn from them."""
        return any(place.certain is not None for text in self.texts for place in text.places)

    def only(self, categories: Sequence[str]) -> "Recording":
        """The texts of these categories.

        Raises:
            UsageError: there is no text of one of them.
        """
        for name in categories:
            if name not in self.categories:
                raise UsageError(f"category is {name!r}; allowed in this trace: {', '.join(self.categories) or 'none'}")
        return replace(self, texts=tuple(text for text in self.texts if text.category in categories))


def read_recording(path: Path) -> Recording:
    """Read a probe (``bench --probe``), or an ordinary trace (``generate --trace``), which tells less.

    Raises:
        UsageError: it is neither, a line is broken, or it holds no text of two tokens.
    """
    try:
        with path.open(encoding="utf-8") as file:
            header = json.loads(file.readline())
        ordinary = "probe" not in header and header.get("format_version") == FORMAT_VERSION and "drafter" in header
    except (OSError, ValueError, AttributeError, TypeError):
        ordinary = False
    if not ordinary:
        return Recording.of(read_probe(path))
    records = []
    for number, line in enumerate(path.read_text("utf-8").splitlines()[1:], 2):
        try:
            records.append(_Turn.of(json.loads(line)))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UsageError(f"{path}, line {number}, is no record of a turn; allowed: what --trace wrote") from error
    return _of_turns(header, records, path)


def _place(record: Record) -> Place:
    row = record.target[0]
    return Place(
        token=record.token,
        chain=tuple(node.token for node in record.nodes),
        said=record.said,
        followed=None if record.followed is None else tuple(record.followed),
        trees=record.trees,
        certain=None if record.draft is None else tuple(_share(one.logits, one.logsumexp) for one in record.draft),
        row=(tuple(row.logits), row.logsumexp),
        grade=record.grade,
    )


def _share(logits: Sequence[float], logsumexp: float) -> float:
    return math.exp(logits[0] - logsumexp)


def _rates(found: Sequence[Any]) -> Rates:
    if found and isinstance(found[0], Sequence):
        return tuple(tuple(map(float, ranks)) for ranks in found)
    return tuple(map(float, found))


# ---- ordinary traces -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Turn:
    """One record of an ordinary trace."""

    request: int
    start: int
    parents: list[int]
    chain: tuple[int, ...]
    certain: tuple[float, ...] | None
    accepted: int
    emitted: list[int]

    @classmethod
    def of(cls, record: dict[str, Any]) -> "_Turn":
        nodes, verdict = record["nodes"], record["verdict"]
        tokens = [int(node["token"]) for node in nodes]
        draft = record["draft"]
        return cls(
            request=int(record["request"]),
            start=int(record["start"]),
            parents=[int(node["parent"]) for node in nodes],
            chain=tuple(tokens),
            certain=None if draft is None else tuple(_share(one["logits"], one["logsumexp"]) for one in draft),
            accepted=len(verdict["path"]),
            emitted=[tokens[node] for node in verdict["path"]] + [int(verdict["next_token"])],
        )


def _of_turns(header: dict[str, Any], turns: list[_Turn], path: Path) -> Recording:
    if any(turn.parents != list(range(-1, len(turn.parents) - 1)) for turn in turns):
        raise UsageError(
            f"{path} is a trace of trees; allowed: a trace of chains, or a probe", hint="probe: bench --probe"
        )
    drafter = header["drafter"]
    if drafter is None or not any(turn.chain for turn in turns):
        raise UsageError(f"{path} is a trace without drafts; allowed: one with a drafter, or a probe")
    texts: dict[int, list[_Turn]] = {}
    for turn in turns:
        texts.setdefault(turn.request, []).append(turn)
    sampling = Sampling(**header["sampling"])
    return Recording(
        kind="trace",
        target=header["target"]["name"],
        drafter=drafter,
        sampling=sampling,
        depth=max(len(turn.chain) for turn in turns),
        trees=(),
        tree_nodes=0,
        rates=(),
        texts=tuple(_text(own, sampling) for own in texts.values()),
    )


def _text(turns: list[_Turn], sampling: Sampling) -> Text:
    """A text whose first turn is prefill, which has no draft."""
    places = [place for turn in turns for place in _places(turn, sampling)]
    return Text(None, None, turns[0].start, len(places), tuple(places))


def _places(turn: _Turn, sampling: Sampling) -> Iterator[Place]:
    """The first place of a turn has its draft; of the others nobody knows."""
    by_chance = turn.certain is not None and not sampling.greedy
    for step, token in enumerate(turn.emitted):
        chain, certain = (turn.chain, turn.certain) if step == 0 else (None, None)
        yield Place(token, chain, certain=certain, accepted=turn.accepted if by_chance and step == 0 else None)
