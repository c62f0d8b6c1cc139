"""What may be asked of a text, checked before work starts.

Knows nothing of prompts or of how a text is decoded: it turns options into the parts that decoding is made of.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, TypedDict

from outpace.decoding.control import Adaptive, Control, Fixed
from outpace.decoding.costs import Conditions, CostTable, cost_table
from outpace.decoding.judging import check_rule
from outpace.decoding.processors import Processor, processors_of
from outpace.drafters.budget import Branching
from outpace.drafters.drafter import Drafter, deepest, unasked_of
from outpace.errors import UsageError
from outpace.models.staging import Progress, silent
from outpace.models.target import Target
from outpace.verification.probabilities import Sampling

AUTO_DEPTH, AUTO_NODES = 8, 24
"""The most that ``auto`` drafts: its choices, and the costs that are measured for them, end there, or where the
drafter does."""


class Options(TypedDict, total=False):
    """What may be asked of ``generate`` and ``stream``; the command line's flags carry the same names.

    Keys:
        temperature, top_k, top_p, min_p: the law of every token, see ``Sampling``; temperature 0, the default: greedy.
        seed: makes the text reproducible. Without a named rule the shared-noise coupling is in force, and the text in
            fp32 is the plain seeded text whatever the drafter, K or batch.
        max_new_tokens: 256 by default; None goes on to the end of the context.
        num_draft_tokens: drafted tokens a turn, the nodes of a tree; 0 decodes plainly. ``"auto"``, the default,
            chooses for every turn by measured costs and by what was accepted so far, 0 included.
        tree: how drafts branch: ``chain``, the default, ``top-k:K``, ``top-p:P``, ``sampled:K``, ``dynamic``,
            ``static`` or ``static:RATES``, see ``Branching``.
        depth: the longest path of a tree; as deep as its nodes allow, up to 8, by default.
        rule: a named acceptance rule in place of the best one that fits.
        stop: strings that end the text; the text is cut before them.
        eos_ids: ids that end the text; the target's own by default, None for no such id.
        raw: take a string as plain text, not as a user turn.
        repetition_penalty, presence_penalty, frequency_penalty, logit_bias, bad_words, min_new_tokens: change the
            target's logits, see ``processors_of``; a bad word is a string or its ids.
        processors: more of these, of your own: functions of (prefix ids, logits), applied last.
        batch_size: how many prompts are decoded at once; all by default.
        logprobs: list this many alternatives beside the log-probability of each token; off by default.
        trace: write one record a turn to this file (JSON lines); off by default.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None
    max_new_tokens: int | None
    num_draft_tokens: int | Literal["auto"]
    tree: str
    depth: int | None
    rule: str | None
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | None
    bad_words: Sequence[str | Sequence[int]]
    min_new_tokens: int
    processors: Sequence[Processor]
    stop: str | Sequence[str]
    eos_ids: Sequence[int] | None
    raw: bool
    batch_size: int | None
    logprobs: int | None
    trace: str | Path | None


def check(options: Options, *, drafts: bool = True) -> None:
    """Refuse options that are unknown, out of range or at odds with each other; needs neither model nor prompt.

    Args:
        options: what was asked for.
        drafts: whether anybody drafts: without a drafter nothing may be said of the shape of drafts.

    Raises:
        UsageError: names the option, what it is and what is allowed.
    """
    unknown = sorted(set(options) - set(Options.__annotations__))
    if unknown:
        raise UsageError(f"unknown option {unknown[0]!r}; allowed: {', '.join(Options.__annotations__)}")
    for name, least, others in _WHOLE_NUMBERS:
        value = options.get(name)
        if value is None or value in others:
            continue
        words = [f"{least} or more", *(f"{other}" for other in others), *(["None"] if name in _OPTIONAL else [])]
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UsageError(f"{name} is {value!r}; allowed: {', '.join(words)}")
    eos = options.get("eos_ids")
    if eos is not None and not (isinstance(eos, Sequence) and all(isinstance(token, int) for token in eos)):
        raise UsageError(f"eos_ids is {eos!r}; allowed: a list of ids, or None for no such id")
    if not all(stop_strings(options)):
        raise UsageError("a stop string is empty; allowed: one character or more")
    _check_tree(options)
    if not drafts:
        _check_plain(options)
    check_rule(options.get("rule"), [sampling_of(options)])
    least, most = options.get("min_new_tokens", 0), options.get("max_new_tokens")
    if most is not None and least > most:
        raise UsageError(f"min_new_tokens is {least} and max_new_tokens {most}; allowed: no more than that")
    ids = [word for word in options.get("bad_words", ()) if not isinstance(word, str)]
    processing(options, prompt_length=0, eos_ids=(), bad_words=ids)


def processing(
    options: Options,
    *,
    prompt_length: int,
    eos_ids: Sequence[int],
    bad_words: Sequence[Sequence[int]],
    vocab_size: int | None = None,
) -> tuple[Processor, ...]:
    """What changes the target's logits in a request; Args, Raises: as for ``processors_of``."""
    return processors_of(
        prompt_length=prompt_length,
        eos_ids=eos_ids,
        repetition_penalty=options.get("repetition_penalty", 1.0),
        presence_penalty=options.get("presence_penalty", 0.0),
        frequency_penalty=options.get("frequency_penalty", 0.0),
        logit_bias=options.get("logit_bias"),
        bad_words=bad_words,
        min_new_tokens=options.get("min_new_tokens", 0),
        processors=options.get("processors", ()),
        vocab_size=vocab_size,
    )


_WHOLE_NUMBERS: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    ("num_draft_tokens", 0, ("auto",)),
    ("depth", 1, ()),
    ("max_new_tokens", 0, ()),
    ("min_new_tokens", 0, ()),
    ("batch_size", 1, ()),
    ("logprobs", 0, ()),
    ("seed", -(2**63), ()),
)
_OPTIONAL = frozenset({"depth", "max_new_tokens", "batch_size", "logprobs", "seed"})


def _check_tree(options: Options) -> None:
    branching = Branching.parse(options.get("tree", "chain"))
    nodes, depth = options.get("num_draft_tokens", "auto"), options.get("depth")
    if depth is None or not isinstance(nodes, int):
        return
    if branching.is_chain and nodes != depth:
        raise UsageError(f"num_draft_tokens is {nodes} and depth {depth}; allowed: equal numbers for a chain, or one")
    if nodes < depth:
        raise UsageError(f"num_draft_tokens is {nodes} and depth {depth}; allowed: as many nodes as depths, or more")


def _check_plain(options: Options) -> None:
    """How drafts branch and how deep they go means nothing without a drafter; at most so many of them holds anyway."""
    branching, depth = Branching.parse(options.get("tree", "chain")), options.get("depth")
    for name, value in (("tree", None if branching.is_chain else str(branching)), ("depth", depth)):
        if value is not None:
            raise UsageError(
                f"{name} is {value} and there is no drafter; allowed: with a drafter",
                hint="leave it out, or give what load_drafter opens",
            )


def control_of(target: Target, drafter: Drafter | None, options: Options, requests: int) -> Control:
    """What chooses the drafts of every turn."""
    branching = Branching.parse(options.get("tree", "chain"))
    nodes, depth = options.get("num_draft_tokens", "auto"), options.get("depth")
    if drafter is None or nodes == 0:
        return Fixed(branching, 0, 0)
    if nodes == "auto":
        costs = partial(costs_of, target, drafter, options, requests)
        return Adaptive(costs, branching, *_most(options, drafter), unasked_of(drafter))
    return Fixed(branching, nodes if branching.is_chain else min(nodes, depth or AUTO_DEPTH), nodes)


def sampling_of(options: Options) -> Sampling:
    """The law of every token."""
    return Sampling(
        temperature=options.get("temperature", 0.0),
        top_k=options.get("top_k", 0),
        top_p=options.get("top_p", 1.0),
        min_p=options.get("min_p", 0.0),
    )


def _most(options: Options, drafter: Drafter) -> tuple[int, int]:
    """The longest path and the most nodes of ``auto``: nothing is measured or chosen that the drafter cannot draft."""
    asked, own = options.get("depth") or AUTO_DEPTH, deepest(drafter)
    depth = asked if own is None else min(asked, own)
    return depth, depth if Branching.parse(options.get("tree", "chain")).is_chain else max(AUTO_NODES, depth)


def costs_of(
    target: Target, drafter: Drafter, options: Options, requests: int, progress: Progress = silent
) -> CostTable:
    """What ``auto`` goes by for so many prompts: remembered, or measured now, which takes a few seconds."""
    conditions = Conditions(
        batch=min(requests, options.get("batch_size") or requests),
        rows=1 + _most(options, drafter)[1],
        sampling=sampling_of(options),
        seeded=options.get("seed") is not None and options.get("rule") is None,
        branching=Branching.parse(options.get("tree", "chain")),
    )
    return cost_table(target, drafter, conditions, progress=progress)


def stop_strings(options: Options) -> list[str]:
    """The stop strings, given as one or as several."""
    stop = options.get("stop", ())
    return [stop] if isinstance(stop, str) else list(stop)
