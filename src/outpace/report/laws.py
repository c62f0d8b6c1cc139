"""The law of a row as far as a trace tells it: its 16 largest logits, and the sum of all others.

Knows nothing of verdicts or of pages. At temperature 1 every figure is the model's own. At another temperature the sum
of the others is only bounded, so that a figure may be off by a share, ``slack``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from outpace.decoding.trace import Logits
from outpace.verification.probabilities import Sampling

NOISE = 1e-5
"""So much of a row may be lost in the fp32 of its sum."""


@dataclass(frozen=True)
class Law:
    """Probabilities of the tokens that are told apart, and the mass of all others together.

    Args:
        probs: by token, the most probable first.
        rest: of all others, in [0, 1].
        slack: how far any figure may be off, as a share of it; 0 where all of them are exact.
    """

    probs: Mapping[int, float]
    rest: float = 0.0
    slack: float = 0.0

    @classmethod
    def one_hot(cls, token: int) -> "Law":
        """All mass on one token: the law of a deterministic child."""
        return cls({token: 1.0})

    @property
    def mass(self) -> float:
        """Of everything; 1 for a law that is normalised."""
        return math.fsum(self.probs.values()) + self.rest

    def scaled(self, factor: float) -> "Law":
        """Every mass times a factor."""
        return Law({token: prob * factor for token, prob in self.probs.items()}, self.rest * factor, self.slack)

    def prob(self, token: int) -> float:
        """Of one token; one that is not told apart counts as 0."""
        return self.probs.get(token, 0.0)

    def minus(self, draft: "Law") -> "Law":
        """The positive part of the difference, not normalised: what a failed draft leaves of the target's law.

        Of tokens that neither side tells apart something between ``rest - draft.rest`` and all of ``rest`` is left: the
        middle is taken, and counts into ``slack``.
        """
        left = {token: max(prob - draft.prob(token), 0.0) for token, prob in self.probs.items()}
        low, high = max(self.rest - draft.rest, 0.0), self.rest
        mass = math.fsum(left.values()) + (low + high) / 2
        unknown = (high - low) / 2 / mass if mass > 0 else 0.0
        return Law(left, (low + high) / 2, max(self.slack, draft.slack, unknown))

    def overlap(self, draft: "Law") -> float:
        """1 - TV, as far as tokens are told apart: the chance that one token drawn from the draft is accepted."""
        return math.fsum(min(prob, draft.prob(token)) for token, prob in self.probs.items())

    def telling(self, known: Mapping[int, float]) -> "Law":
        """The same law, told by some of its tokens' true probabilities: they are added, and set what others are of."""
        both = [(self.probs[token], prob) for token, prob in known.items() if self.probs.get(token, 0) > 0 and prob > 0]
        factor = both[0][1] / both[0][0] if both and self.slack > NOISE else 1.0
        probs = {token: prob * factor for token, prob in self.probs.items()} | dict(known)
        told = math.fsum(probs.values())
        ranked = dict(sorted(probs.items(), key=lambda one: (-one[1], one[0])))
        return Law(ranked, max(0.0, 1 - told) if self.rest > 0 else 0.0, 0.0 if both else self.slack)

    def without(self, token: int) -> "Law":
        """The law of the next sibling, drawn without replacement: without this token, renormalised."""
        left = Law({other: prob for other, prob in self.probs.items() if other != token}, self.rest, self.slack)
        return left.scaled(1 / left.mass) if left.mass > 0 else left


def law(row: Logits, sampling: Sampling, vocab_size: int, known: Mapping[int, float] | None = None) -> Law:
    """The law that a row of logits gives: temperature, then top-k, top-p and min-p, as both models share it.

    Args:
        row: the largest logits, best first, and the log-sum-exp of all.
        sampling: what turned logits into the law.
        vocab_size: of the whole row, the largest ones included.
        known: raw probabilities, at temperature 1, of tokens that may not be among the largest.

    Source: the bounds on a sum of powers are those of power means: for n terms of sum m, the sum of their powers 1/T
    lies between n (m / n)^(1/T) and m times the largest term to the power 1/T - 1.
    """
    if not row.ids:
        return Law({}, 1.0, 1.0)
    if sampling.greedy:
        best = max(row.logits)
        return Law.one_hot(min(token for token, logit in zip(row.ids, row.logits, strict=True) if logit == best))
    logits = dict(zip(row.ids, row.logits, strict=True))
    for token, prob in (known or {}).items():
        logits.setdefault(token, math.log(prob) + row.logsumexp if prob > 0 else -math.inf)
    top = max(logits.values())
    weights = {token: math.exp((logit - top) / sampling.temperature) for token, logit in logits.items()}
    low, high = _others(logits, row, top, vocab_size, sampling.temperature)
    told = math.fsum(weights.values())
    total = math.sqrt((told + low) * (told + high))
    slack = math.sqrt((told + high) / (told + low)) - 1
    whole = {token: weight / total for token, weight in sorted(weights.items(), key=lambda one: (-one[1], one[0]))}
    return _filtered(whole, max(0.0, 1 - told / total), slack, sampling, len(row.ids), vocab_size)


def _others(
    logits: Mapping[int, float], row: Logits, top: float, vocab_size: int, temperature: float
) -> tuple[float, float]:
    """Between what the sum of all other tokens lies, in units of the most probable one's weight."""
    count = vocab_size - len(logits)
    mass = 1 - math.fsum(math.exp(logit - row.logsumexp) for logit in logits.values())
    if count <= 0 or mass <= NOISE:
        return 0.0, 0.0
    mass *= math.exp(row.logsumexp - top)
    power = 1 / temperature
    alike = count * (mass / count) ** power
    steepest = mass * math.exp((min(row.logits) - top) * (power - 1))
    return min(alike, steepest), max(alike, steepest)


def _filtered(
    whole: Mapping[int, float], rest: float, slack: float, sampling: Sampling, best: int, vocab_size: int
) -> Law:
    """The filters, each on what the one before has left; one that cuts among the ``best`` tokens leaves no rest.

    One that cuts behind them leaves the rest between two bounds, which count into ``slack``: each of the others is no
    more probable than the last of the best.
    """
    best = best if rest > 0 else len(whole)
    kept, ranks, others = dict(whole), list(whole)[:best], vocab_size - best
    least, sure = whole[ranks[-1]], math.fsum(whole[token] for token in ranks)
    low = high = rest + math.fsum(whole.values()) - sure if rest > 0 else 0.0  # of all behind the best
    if 0 < sampling.top_k <= best:
        kept = {token: whole[token] for token in ranks[: sampling.top_k]}
        low, high, slack = 0.0, 0.0, 0.0
    elif 0 < sampling.top_k < vocab_size:
        low, high = low * (sampling.top_k - best) / others, min(high, (sampling.top_k - best) * least)
    if sampling.top_p < 1:
        sure = math.fsum(kept[token] for token in ranks if token in kept)
        first = sampling.top_p * (sure + low) / (1 + slack)
        final = sampling.top_p * (sure + high) * (1 + slack)
        head, before = {}, 0.0
        for token in ranks:
            if token in kept and before < first:
                head[token] = kept[token]
                before += kept[token]
        if before >= first:
            kept, low, slack = head, 0.0, 0.0
            after = whole[ranks[len(head)]] if len(head) < best else least
            high = final - before + after if before < final else 0.0
        else:
            low, high = min(low, first - before), min(high, final - before + least)
    bound = sampling.min_p * max(kept.values())
    if any(prob < bound for prob in map(kept.get, ranks) if prob is not None):
        low, high, slack = 0.0, 0.0, 0.0
    low = max(0.0, low - others * bound)
    kept = {token: prob for token, prob in kept.items() if prob >= bound}
    sure = math.fsum(kept[token] for token in ranks if token in kept)
    total = math.sqrt((sure + low) * (sure + high))
    slack = (1 + slack) * math.sqrt((sure + high) / (sure + low)) - 1
    left = max(0.0, 1 - math.fsum(kept.values()) / total) if high > 0 else 0.0
    return Law({token: prob / total for token, prob in kept.items()}, left, slack)
