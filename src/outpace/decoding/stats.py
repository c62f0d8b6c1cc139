"""What decoding cost and gained, counted turn by turn for one request.

Knows nothing of models or clocks: it is told what happened. The definitions, once and for all:

* ``tau``: tokens emitted after the first one, per verification forward, the bonus token included and everything
  behind the stop excluded. Plain decoding has exactly 1.
* ``acceptance_by_position[i]``: of the turns in which position i was drafted and all positions before it accepted,
  the share in which position i was accepted too. Conditional, so that the product is the unconditional rate.
* ``acceptance``: the same, pooled over positions: the maximum-likelihood alpha of one alpha for all.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Speculation:
    """How drafting went; see the module's definitions.

    Args:
        method: the drafter's name, ``plain`` without one.
        rule: the rule that judged the drafts.
        lossless: whether that rule keeps the target's law.
        turns: verification forwards, of which ``plain_turns`` had no draft for this request.
        drafted: drafted tokens.
        accepted: drafted tokens that were emitted, cut at the stop.
        matched: drafted tokens that the rule accepted, the ones behind the stop included.
        emitted: tokens that stand, without the first one, which the prompt's forward gives.
        tried, passed: by position, in how many turns its fate was decided, and in how many it was accepted.
        tau: tokens per forward; None when no turn ran.
        acceptance, acceptance_by_position: conditional acceptance; None and empty without drafts.
    """

    method: str
    rule: str
    lossless: bool
    turns: int
    plain_turns: int
    drafted: int
    accepted: int
    matched: int
    emitted: int
    tried: tuple[int, ...]
    passed: tuple[int, ...]
    tau: float | None
    acceptance: float | None
    acceptance_by_position: tuple[float, ...]


@dataclass(frozen=True)
class Timing:
    """Seconds of reading the prompt and of everything after; ``tokens_per_second`` counts both."""

    prefill_s: float
    decode_s: float
    tokens_per_second: float


@dataclass
class Tally:
    """Counts that grow turn by turn; ``tried[i]`` and ``passed[i]`` are the sums behind the acceptance by position."""

    turns: int = 0
    plain_turns: int = 0
    drafted: int = 0
    accepted: int = 0
    matched: int = 0
    emitted: int = 0
    tried: list[int] = field(default_factory=list)
    passed: list[int] = field(default_factory=list)
    rules: set[str] = field(default_factory=set)
    lossless: bool = True

    def add(self, *, rule: str, lossless: bool, drafted: int, depth: int, matched: int, emitted: int) -> None:
        """Count one turn.

        Args:
            rule: what judged it, and whether that rule is ``lossless``.
            drafted: nodes of the draft, and ``depth`` the longest of its paths.
            matched: nodes accepted.
            emitted: tokens that stand after the stop rules had their say, at most ``matched + 1``.
        """
        self.turns += 1
        self.plain_turns += drafted == 0
        self.drafted += drafted
        self.matched += matched
        self.accepted += min(matched, emitted)
        self.emitted += emitted
        if drafted:  # without a draft every rule is the target's own draw
            self.rules.add(rule)
        self.lossless &= lossless
        reached = min(matched + 1, depth)  # positions whose fate was decided
        self.tried += [0] * (reached - len(self.tried))
        self.passed += [0] * (reached - len(self.passed))
        for place in range(reached):
            self.tried[place] += 1
            self.passed[place] += place < matched

    def speculation(self, method: str) -> Speculation:
        """The figures of the request so far."""
        tried = sum(self.tried)
        return Speculation(
            method=method,
            rule="+".join(sorted(self.rules)) or "none",
            lossless=self.lossless,
            turns=self.turns,
            plain_turns=self.plain_turns,
            drafted=self.drafted,
            accepted=self.accepted,
            matched=self.matched,
            emitted=self.emitted,
            tried=tuple(self.tried),
            passed=tuple(self.passed),
            tau=self.emitted / self.turns if self.turns else None,
            acceptance=sum(self.passed) / tried if tried else None,
            acceptance_by_position=tuple(p / t for p, t in zip(self.passed, self.tried, strict=True)),
        )


def timing(prefill_s: float, decode_s: float, tokens: int) -> Timing:
    """Rate over prefill and decoding together; 0 when no time passed."""
    total = prefill_s + decode_s
    return Timing(prefill_s, decode_s, tokens / total if total > 0 else 0.0)
