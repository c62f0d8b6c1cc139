"""66: several answers or beams are asked for, and the option or the drafter is dropped without a word."""

from typing import Any

import pytest

from outpace.decoding import generate as public
from outpace.decoding.generate import generate, speculative_decode
from outpace.errors import UsageError
from outpace.models.transformer import Transformer
from outpace.verification.probabilities import Sampling
from toys import Watched, must_fail, seeded_reference


def case(target: Transformer) -> None:
    """Options that are not there are refused by name before any work; samples there are, and they are drafted."""
    unknown: list[dict[str, Any]] = [{"n": 3}, {"num_beams": 4}, {"best_of": 2}, {"num_return_sequences": 3}]
    for options in unknown:
        watched = Watched(target)
        with pytest.raises(UsageError, match=f"unknown option '{next(iter(options))}'; allowed: "):
            generate(watched, None, [1, 2], max_new_tokens=2, **options)
        assert watched.prefills == []
    watched = Watched(target)
    rows = speculative_decode(watched, target, [5, 6], 3, 1.0, max_new_tokens=9, seed=2, num_samples=3).tolist()
    assert rows[0] == seeded_reference(target, (5, 6), 9, Sampling(1.0), 2)
    assert len({tuple(row) for row in rows}) == 3
    assert watched.scored == [[3, 3, 3]] * 2  # a target that drafts for itself under a seed: all is accepted


def test_samples_are_drafted_and_beams_refused(tiny: Transformer) -> None:
    case(tiny)


def test_planted_fault(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = public.check
    known = public.Options.__annotations__
    monkeypatch.setattr(
        public, "check", lambda given, **more: honest({k: v for k, v in given.items() if k in known}, **more)
    )
    with must_fail():
        case(tiny)
