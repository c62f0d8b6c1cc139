"""What a server's page of counters says of its drafting: vLLM, llama.cpp, SGLang and TensorRT-LLM, one set of figures.

Knows nothing of how a page is fetched. Counters count since the server began and for everyone who asked it: a figure is
the difference of two pages, and is right as far as nobody else asked in between.

* ``accepted_share``: accepted by drafted tokens, what engines call the acceptance rate. Tokens behind a rejection count
  as drafted, so it is smaller than ``acceptance``.
* ``acceptance``, ``acceptance_by_position``: conditional, as in ``decoding/stats.py``; known where a server counts
  accepted tokens by position.
* ``tokens_per_draft``: tokens of a forward that had a draft, the target's own included: the mean accepted length.
* ``tau``: tokens a forward, forwards without a draft included, the first token of every answer apart.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

Samples = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]

_LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Names:
    """What an engine calls its counters; empty for those it has not. A counter's name may end in ``_total``."""

    drafts: str = ""
    drafted: str = ""
    accepted: str = ""
    by_position: str = ""
    forwards: str = ""
    generated: str = ""
    length: str = ""


ENGINES: Mapping[str, Names] = {
    "vLLM": Names(
        drafts="vllm:spec_decode_num_drafts",
        drafted="vllm:spec_decode_num_draft_tokens",
        accepted="vllm:spec_decode_num_accepted_tokens",
        by_position="vllm:spec_decode_num_accepted_tokens_per_pos",
        generated="vllm:generation_tokens",
    ),
    "llama.cpp": Names(
        drafts="llamacpp:spec_decode_num_drafts",
        drafted="llamacpp:spec_decode_num_draft_tokens",
        accepted="llamacpp:spec_decode_num_accepted_tokens",
        by_position="llamacpp:spec_decode_num_accepted_tokens_per_pos",
        generated="llamacpp:tokens_predicted",
    ),
    "SGLang": Names(
        forwards="sglang:spec_verify_calls",
        generated="sglang:generation_tokens",
        length="sglang:spec_accept_length",
    ),
    "TensorRT-LLM": Names(
        drafted="trtllm_spec_decode_num_draft_tokens",
        accepted="trtllm_spec_decode_num_accepted_tokens",
        length="trtllm_spec_decode_acceptance_length",
    ),
}


@dataclass(frozen=True)
class Counters:
    """A page, or the difference of two; None for what the page does not have.

    Args:
        engine: whose page it is.
        drafts, drafted, accepted: forwards that had a draft, drafted tokens, and those accepted.
        by_position: accepted tokens by their place in the draft.
        forwards: verification forwards.
        generated: tokens of all answers.
        length: the server's own mean of tokens a forward, of its latest steps: a gauge, so nobody's difference.
    """

    engine: str
    drafts: float | None = None
    drafted: float | None = None
    accepted: float | None = None
    by_position: tuple[float, ...] = ()
    forwards: float | None = None
    generated: float | None = None
    length: float | None = None

    def since(self, before: "Counters") -> "Counters | None":
        """What was counted between two pages; None where the server began anew in between."""
        positions = [*before.by_position, *[0.0] * len(self.by_position)]
        gained = {
            name: None if (now := getattr(self, name)) is None else now - (getattr(before, name) or 0.0)
            for name in COUNTED
        }
        by_position = tuple(now - then for now, then in zip(self.by_position, positions, strict=False))
        if self.engine != before.engine or any(
            value is not None and value < 0 for value in (*gained.values(), *by_position)
        ):
            return None
        return Counters(self.engine, by_position=by_position, length=self.length, **gained)

    def plus(self, other: "Counters") -> "Counters":
        """Two differences together."""
        sums = {name: _sum(getattr(self, name), getattr(other, name)) for name in COUNTED}
        longest = max(len(self.by_position), len(other.by_position))
        padded = [[*one.by_position, *[0.0] * longest][:longest] for one in (self, other)]
        return Counters(
            self.engine,
            by_position=tuple(map(sum, zip(*padded, strict=True))),
            length=other.length if other.length is not None else self.length,
            **sums,
        )

    @property
    def drafting(self) -> bool:
        """Whether anything was drafted."""
        return bool(self.drafted or self.forwards)

    @property
    def accepted_share(self) -> float | None:
        """See the module's definitions."""
        return self.accepted / self.drafted if self.accepted is not None and self.drafted else None

    @property
    def tokens_per_draft(self) -> float | None:
        """See the module's definitions; the server's own gauge where it has no counters of drafts."""
        if self.accepted is not None and self.drafts:
            return 1 + self.accepted / self.drafts
        return self.length or None

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """See the module's definitions; it ends where no draft came."""
        reached = [self.drafts or 0.0, *self.by_position]
        return tuple(now / then for then, now in zip(reached, self.by_position, strict=False) if then)

    @property
    def acceptance(self) -> float | None:
        """See the module's definitions; drafts are taken to be as long as the positions that are counted."""
        tried = [self.drafts or 0.0, *self.by_position][: len(self.by_position)]
        return sum(self.by_position) / sum(tried) if sum(tried) else None

    def tau(self, tokens: int, answers: int) -> float | None:
        """See the module's definitions.

        Args:
            tokens: of all answers, and ``answers`` how many there were: every accepted token has saved a forward.
        """
        behind = tokens - answers
        if self.forwards:
            return ((self.generated or tokens) - answers) / self.forwards
        if self.accepted is None or not self.drafted or behind <= self.accepted:
            return None
        return behind / (behind - self.accepted)


COUNTED = tuple(field.name for field in fields(Counters) if field.name not in ("engine", "by_position", "length"))


def read(page: str | None) -> Counters | None:
    """The counters of a page; None where there is no page, or it is of no engine that is known here."""
    if page is None:
        return None
    if page.lstrip().startswith('"'):  # llama.cpp has sent the page as a JSON string (ggml-org/llama.cpp 17384)
        try:
            page = str(json.loads(page))
        except ValueError:
            return None
    found = samples(page)
    for engine, names in ENGINES.items():
        values = {
            field.name: _total(found, getattr(names, field.name))
            for field in fields(Names)
            if field.name not in ("by_position", "length")
        }
        length = _named(found, names.length)
        if any(value is not None for value in values.values()) or length:
            return Counters(
                engine,
                by_position=_positions(_named(found, names.by_position)),
                length=sum(value for _, value in length) / len(length) if length else None,
                **values,
            )
    return None


def samples(page: str) -> Samples:
    """Every sample of a page in Prometheus' text format: its labels and its value, by name.

    Lines that are none are passed over.
    """
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in page.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        found.setdefault(match[1], []).append((dict(_LABEL.findall(match[2] or "")), value))
    return found


def _named(found: Samples, name: str) -> Sequence[tuple[Mapping[str, str], float]]:
    return (found.get(f"{name}_total") or found.get(name, ())) if name else ()


def _total(found: Samples, name: str) -> float | None:
    """The sum over all labels: engines of one server, streamed answers and others."""
    values = [value for _, value in _named(found, name)]
    return sum(values) if values else None


def _positions(found: Sequence[tuple[Mapping[str, str], float]]) -> tuple[float, ...]:
    by_place: dict[int, float] = {}
    for labels, value in found:
        if labels.get("position", "").isdecimal():
            place = int(labels["position"])
            by_place[place] = by_place.get(place, 0.0) + value
    return tuple(by_place.get(place, 0.0) for place in range(max(by_place, default=-1) + 1))


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None and second is None else (first or 0.0) + (second or 0.0)
