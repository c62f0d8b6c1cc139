"""A plan, or a well-known pair without one, handed to an engine by name.

Knows nothing of how an engine spells its settings.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from outpace.decoding.plan import ALL, Choice, Plan
from outpace.engines import llamacpp, openvino, sglang, transformers, trtllm, vllm
from outpace.engines.emission import Emission
from outpace.engines.pairs import pairs
from outpace.engines.schema import Schema, schema
from outpace.engines.wish import ASSUMED, Wish, wish
from outpace.errors import UnsupportedError, UsageError

ENGINES: Mapping[str, Callable[[Wish, Schema], Emission]] = {
    "vllm": vllm.emit,
    "sglang": sglang.emit,
    "trtllm": trtllm.emit,
    "llamacpp": llamacpp.emit,
    "transformers": transformers.emit,
    "openvino": openvino.emit,
}


def emit(
    plan: Plan,
    engine: str,
    version: str | None = None,
    *,
    category: str = ALL,
    batch: int | None = None,
    temperature: float = 0.0,
    kind: str | None = None,
) -> Emission:
    """An engine's settings for a plan, checked against what that version of the engine takes.

    Args:
        plan: what to do.
        engine: one of ``ENGINES``.
        version: one that is known; the newest by default.
        category, batch, temperature, kind: as for ``wish``.

    Raises:
        UsageError: the engine or its version is not known; or as for ``wish``.
        UnsupportedError: the engine, or this version, does not have such a drafter, and nothing near it.
        WeightsError: as for ``wish``.
    """
    if engine not in ENGINES:
        raise UsageError(f"the engine is {engine!r}; allowed: {', '.join(ENGINES)}")
    found = schema(engine, version)
    asked = wish(plan, category=category, batch=batch, temperature=temperature, kind=kind)
    return ENGINES[engine](asked, found)


def emit_pair(
    target: str, engine: str, version: str | None = None, *, drafter: str | None = None, kind: str | None = None
) -> Emission:
    """An engine's settings for a drafter that is published for a target; nothing of it was measured.

    Args:
        target: a Hugging Face id.
        drafter: the one to take; None takes the first of the table that the engine has.
        engine, version, kind: as for ``emit``.

    Raises:
        UsageError: no pair of this target is known and no drafter was named; or as for ``emit``.
        UnsupportedError, WeightsError: as for ``emit``.
    """
    known = [one for one in pairs() if one.target == target and drafter in (None, one.drafter)]
    if drafter is None and not known:
        raise UsageError(
            f"no drafter is known for {target!r}; allowed: {', '.join(dict.fromkeys(one.target for one in pairs()))}, "
            "or --draft with the drafter of your choice",
            hint="`outpace tune` makes a plan for your target and your prompts",
        )
    refused: UnsupportedError | None = None
    for name, source in [(one.drafter, one.source) for one in known] or [(str(drafter), "your choice")]:
        choice = Choice(drafter=name, num_draft_tokens=ASSUMED)
        try:
            done = emit(Plan(target, "", (choice,)), engine, version, kind=kind)
        except UnsupportedError as error:
            refused = refused or error
            continue
        others = [one.drafter for one in known if one.drafter != name]
        more = (f"also published: {', '.join(others)}; --draft NAME takes it",) if others else ()
        note = f"not measured: {name} for {target} ({source}), and {ASSUMED} drafts a turn are assumed"
        return replace(done, notes=(note, *more, *done.notes))
    assert refused is not None
    raise refused
