"""Ten faults, planted in the pair one at a time: each has to be found by a check that the pair itself has passed.

Knows nothing of how the checks look. A fault is a wrapper around the target or the drafter, or stands in for one
function while the check runs. One that this pair cannot show is planted in a small random pair instead.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

from outpace.decoding import judging, loop
from outpace.drafters.small import Small
from outpace.errors import OutpaceError
from outpace.evaluation import equality, faults
from outpace.evaluation.laws import DraftPlaces
from outpace.evaluation.pair import Check, Judge, Pair
from outpace.evaluation.rows import check_rows, check_siblings
from outpace.evaluation.sampled import check_places, draw_sample
from outpace.models.target import Target
from outpace.models.toy import tiny_transformer
from outpace.verification.probabilities import Sampling
from outpace.verification.rules import RULES

Plant = Callable[[Pair], AbstractContextManager[Pair]]


@dataclass(frozen=True)
class Fault:
    """A fault, how it is planted, the check that has to find it, and what that looks at."""

    name: str
    plant: Plant
    look: Callable[[Pair], Check]
    where: str = "this pair"


def _target(wrapper: Callable[[Target], Target]) -> Plant:
    @contextmanager
    def plant(pair: Pair) -> Iterator[Pair]:
        yield replace(pair, target=wrapper(pair.target))

    return plant


def _instead(owner: Any, name: str, substitute: Any) -> Plant:
    @contextmanager
    def plant(pair: Pair) -> Iterator[Pair]:
        honest = getattr(owner, name)
        setattr(owner, name, substitute)
        try:
            yield pair
        finally:
            setattr(owner, name, honest)

    return plant


@contextmanager
def _lie(pair: Pair) -> Iterator[Pair]:
    yield replace(pair, drafter=faults.Liar(pair.drafter, pair.target.vocab_size))


def _claims(pair: Pair) -> Check:
    """Drafts beside the laws they claim."""
    observer = DraftPlaces(torch.Generator().manual_seed(pair.seed))
    rows, length = pair.size.looks
    draw_sample(pair, [Sampling(1.0)], rows, length, _judging(pair), 0, observer)
    found = observer.check(pair.alarm)
    return Check("drafts follow the law they claim", "law", True, 0.0, 1.0, 0.0, "") if found is None else found


def _tokens(pair: Pair) -> Check:
    """A few sampled tokens."""
    rows, length = pair.size.looks
    sample = draw_sample(pair, [Sampling(1.0)], rows, length, _judging(pair))
    return check_places("sampled tokens", sample.places, int(sample.strange.sum()), pair.alarm)


def _judging(pair: Pair) -> str:
    """A rule that every draft of the pair's can be judged by, and that asks for its law."""
    return "rejection" if pair.branching.is_chain else "tree-rejection"


def _rows(index: int) -> Callable[[Pair], Check]:
    return lambda pair: check_rows(pair)[index]


FAULTS = (
    Fault("wrong q: claimed, not drawn from", _lie, _claims),
    Fault(
        "wrong residual: its sign is turned round",
        _instead(judging, "RULES", MappingProxyType({name: faults.turned_round(rule) for name, rule in RULES.items()})),
        _tokens,
    ),
    Fault("shifted position: drafts stand one too far", _target(faults.Shifted), _rows(1)),
    Fault("stale cache row: a refused draft stays", _target(faults.Stale), _rows(0)),
    Fault("mask leak: drafted tokens see each other", _target(faults.Leaking), check_siblings),
    Fault("tie rule: the highest id wins", _instead(judging, "argmax", faults.highest), equality.check_ties, "a table"),
    Fault(
        "dropped processor: drafts go unprocessed",
        _instead(judging, "process", faults.roots_alone),
        equality.check_processors,
    ),
    Fault("bonus from the wrong row: its parent's", _target(faults.LeafAsItsParent), equality.check_rehearsed),
    Fault(
        "EOS skipped: inside a draft", _instead(loop._Row, "take", faults.at_the_end_of_a_turn), equality.check_stops
    ),
    Fault("batch rows swapped: the first two", _target(faults.Swapped), equality.check_rehearsed),
)
"""What has to be found: ten of ten."""


def random_pair(seed: int) -> Pair:
    """A small lively pair for faults that a pair cannot show."""
    target = tiny_transformer(seed=3)
    drafter = Small(tiny_transformer(seed=4, layers=1), target)
    prompts = tuple(tuple((7 * place + 5 * length + seed) % 64 for place in range(length)) for length in (3, 8, 5, 11))
    pair = Pair(target, drafter, Judge(target), prompts, seed=seed)
    return replace(pair, plain=equality.plain_texts(pair))


def control(fault: Fault, pair: Pair) -> Check:
    """Plant a fault in the pair, or where it does not show, in a random one; passed if it was found."""
    found, where = _found(fault, pair), fault.where
    if found.passed:
        found, where = _found(fault, random_pair(pair.seed)), "a random pair, as this one does not show it"
    words = f"found on {where} by: {found.name}" if not found.passed else f"not found by: {found.name}"
    return Check(fault.name, "control", not found.passed, found.statistic, found.threshold, 0.0, words)


def _found(fault: Fault, pair: Pair) -> Check:
    with fault.plant(pair) as faulty:
        try:
            return fault.look(faulty)
        except OutpaceError as error:
            return Check(f"an error, {error.message}", "control", False, 1.0, 0.0, 0.0, "")
