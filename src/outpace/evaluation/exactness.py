"""Whether drafting is lossless on a pair: texts, laws, caches and masks are checked, and ten planted faults found.

Knows nothing of how an answer is shown. Every check states how probably a flawless pair fails it; together that
is one in a million at most. Two runs with the same seed ask the same questions.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from outpace.decoding.loop import Request, decode
from outpace.decoding.text import text_of
from outpace.decoding.turn import Turn
from outpace.drafters.budget import CHAIN, Branching
from outpace.drafters.drafter import Drafter
from outpace.errors import UsageError, WeightsError
from outpace.evaluation.controls import FAULTS, Fault, control
from outpace.evaluation.equality import (
    check_greedy,
    check_processors,
    check_seeded,
    check_stops,
    check_ties,
    own_drafts,
    plain_texts,
)
from outpace.evaluation.laws import check_rule
from outpace.evaluation.pair import NEAR_TIE, QUICK, Check, Judge, Pair, Report, Size
from outpace.evaluation.rows import check_rows, check_siblings
from outpace.evaluation.sampled import SAMPLINGS, check_emitted, check_firsts
from outpace.models.staging import Progress
from outpace.models.target import Target
from outpace.verification.probabilities import GREEDY_BELOW, Sampling
from outpace.verification.rules import rule_named

ALARM = 1e-6
"""How probably all checks of a flawless pair raise one false alarm or more, at most."""

SHORTEST = 64
"""A context has to hold a prompt and a few turns."""

PROMPTS = (
    "Write down five birds, one a line, each line of the form: A robin is a bird.",
    "Say this twice, word for word: the grey cat sat on the blue mat, and the grey cat slept on the blue mat.",
    "What is seven times eight, and how do you know?",
    "Fix this code and repeat it: def add(a, b): return a - b",
    "Name a fruit.",
    "Write a short story about a lighthouse keeper and her radio.",
    "Continue the list: one apple, two apples, three apples, four apples,",
    "Why is the sky blue? Explain it in one long paragraph.",
)


def check_pair(
    target: Target,
    drafter: Drafter,
    *,
    rule: str | None = None,
    branching: Branching = CHAIN,
    num_draft_tokens: int = 4,
    temperatures: Sequence[float] = (),
    seed: int = 0,
    quick: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Check that decoding with drafts says what plain decoding says, on this pair as it stands.

    Args:
        target, drafter: the pair; prompts of our own are read through the target's chat template, random ids by a
            target without a tokenizer.
        rule: an acceptance rule by name; None checks what is in force without one, the seeded coupling included.
        branching: how the drafter's drafts branch.
        num_draft_tokens: nodes of a draft, 1 or more; a single one and twice as many are drafted too.
        temperatures: further ones at which sampled tokens are checked, each above 0.
        seed: of everything left to chance.
        quick: fewer texts, which find large faults only.
        progress: told of steps done, as ``(done, total, what)``.

    Returns:
        All checks; ``lossless`` where every one passed, the controls included.

    Raises:
        UsageError: an argument is out of range, the context is too short, or the drafter cannot branch so.
        UnsupportedError: the target cannot rewind, or cannot score a tree that was asked for.
        NumericsError: the target's logits are no distribution.
    """
    check_options(rule, num_draft_tokens, temperatures)
    _check_target(target)
    samplings = (*SAMPLINGS, *(Sampling(one) for one in temperatures if Sampling(one) not in SAMPLINGS))
    size = QUICK if quick else Size()
    room = min(target.max_positions, 4096)
    prompts = _prompts(target, seed, max(1, room // 2))
    size = replace(size, new=max(1, min(size.new, room // 4)), length=max(1, min(size.length, room // 4)))
    alarm = ALARM / (len(samplings) + 5)  # so many checks leave something to chance, at most
    judge = Judge(target)
    pair = Pair(target, drafter, judge, prompts, rule, branching, num_draft_tokens, seed, size, alarm)
    told = progress or (lambda done, total, what: None)
    in_force = _rule_in_force(pair)
    told(0, 0, "plain texts")
    pair = replace(pair, plain=plain_texts(pair))
    steps = _steps(pair, in_force, samplings)
    checks: list[Check] = []
    for number, (what, step) in enumerate(steps):
        told(number + 1, len(steps) + 1, what)
        checks += step()
    told(len(steps) + 1, len(steps) + 1, "done")
    return Report(target.name, drafter.name, in_force, tuple(checks))


def _steps(pair: Pair, in_force: str, samplings: Sequence[Sampling]) -> list[tuple[str, Callable[[], list[Check]]]]:
    """What is done, in this order."""
    seeded: list[tuple[str, Callable[[], list[Check]]]] = [("seeded texts", lambda: [check_seeded(pair)])]
    return [
        ("greedy texts", lambda: check_greedy(pair)),
        ("stops and penalties", lambda: [check_stops(pair), check_processors(pair), check_ties(pair)]),
        *(seeded if pair.rule is None else []),
        ("rules", lambda: [check_rule(in_force)]),
        ("sampled texts", lambda: check_emitted(pair, in_force, samplings, seeded=pair.rule is None)),
        ("first tokens", lambda: [check_firsts(pair, in_force)]),
        ("caches and masks", lambda: [*check_rows(pair), check_siblings(pair)]),
        *((f"planted: {fault.name}", partial(_control, fault, pair)) for fault in FAULTS),
    ]


def _control(fault: Fault, pair: Pair) -> list[Check]:
    return [control(fault, pair)]


def check_options(rule: str | None, num_draft_tokens: int, temperatures: Sequence[float]) -> None:
    """Refuse options that are out of range; needs no model.

    Raises:
        UsageError: names the option, what it is and what is allowed.
    """
    if rule is not None:
        rule_named(rule)
    if rule == "greedy":
        raise UsageError(
            "rule is 'greedy'; allowed: a rule that samples, or none",
            hint="greedy texts are checked whatever the rule is",
        )
    if num_draft_tokens < 1:
        raise UsageError(f"num_draft_tokens is {num_draft_tokens}; allowed: 1 or more")
    for temperature in temperatures:
        if not temperature > GREEDY_BELOW:
            raise UsageError(f"temperature is {temperature}; allowed: above 0", hint="greedy texts are checked anyway")
        Sampling(temperature)


def _check_target(target: Target) -> None:
    if target.max_positions < SHORTEST:
        raise UsageError(f"the context of {target.name!r} holds {target.max_positions}; allowed: {SHORTEST} or more")
    if target.dtype not in NEAR_TIE:
        raise UsageError(f"dtype is {target.dtype}; allowed: {', '.join(map(str, NEAR_TIE))}")


def _prompts(target: Target, seed: int, longest: int) -> tuple[tuple[int, ...], ...]:
    """Our prompts as the target reads them, cut to their ends where too long; else random ids, some of them twice."""
    try:
        if target.folder is not None:
            text = text_of(target.folder)
            return tuple(tuple(text.encode(prompt)[-longest:]) for prompt in PROMPTS)
    except WeightsError:  # no tokenizer there: ids do as well
        pass
    chance = random.Random(seed)
    drawn = [[chance.randrange(target.vocab_size) for _ in range(length)] for length in (3, 7, 2, 5, 9, 4)]
    return tuple(tuple((ids * (1 + place % 2))[-longest:]) for place, ids in enumerate(drawn))


def _rule_in_force(pair: Pair) -> str:
    """The rule that was named, or the one that judges this drafter's sampled drafts without a name."""
    if pair.rule is not None:
        return pair.rule
    rules: set[str] = set()

    def watch(turn: Turn, indices: list[int]) -> None:
        counts = turn.proposal.tree.num_nodes.tolist()
        rules.update(rule for rule, count in zip(turn.rules, counts, strict=True) if count)

    requests = [Request(prompt, Sampling(1.0), 8) for prompt in pair.prompts]
    control = own_drafts(pair, pair.num_draft_tokens)
    with torch.inference_mode():
        for emission in decode(pair.target, pair.drafter, requests, control=control, observer=watch):
            if emission.error is not None:
                raise emission.error
    return next((rule for rule in ("tree-rejection", "block") if rule in rules), "match")
