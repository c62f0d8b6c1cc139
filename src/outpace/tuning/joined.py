"""Lookup and a model as one: its parts, to be probed one by one, and its recording, made of theirs.

Knows nothing of how drafts are judged or of what turns cost.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from outpace.drafters.drafter import Drafter
from outpace.drafters.either import LEAST, MODEL, Either
from outpace.drafters.load import AUTO, JOINED, LOOKUP, SHIPPED
from outpace.drafters.lookup import Lookup
from outpace.errors import UsageError
from outpace.tuning.recording import Place, Recording, Text


def with_joined(drafters: Mapping[str, Drafter]) -> dict[str, Drafter]:
    """The drafters by name, and lookup joined with each of the others where lookup is among them."""
    copies = drafters.get(LOOKUP)
    if not isinstance(copies, Lookup):
        return dict(drafters)
    others = {name: one for name, one in drafters.items() if not isinstance(one, Lookup | Either)}
    return {**drafters, **{JOINED + name: Either(copies, one) for name, one in others.items()}}


def model_name(name: str, drafter: Drafter) -> str:
    """The name of who computes: of two that are joined, the model's."""
    if not isinstance(drafter, Either):
        return name
    return SHIPPED if name == AUTO else name.removeprefix(JOINED)


def parts(drafters: Mapping[str, Drafter]) -> dict[str, Drafter]:
    """All that have to be probed, by name and each once: of joined ones the two."""
    found: dict[str, Drafter] = {}
    for name, drafter in drafters.items():
        if isinstance(drafter, Either):
            found.setdefault(LOOKUP, drafter.copies)
        found.setdefault(model_name(name, drafter), drafter.model if isinstance(drafter, Either) else drafter)
    return found


def joined(copies: Recording, model: Recording) -> Recording:
    """What ``Either`` would have drafted: lookup's copy where its grade is ``LEAST`` or more, else the model's draft.

    Args:
        copies: a probe of lookup.
        model: a probe of the other drafter, over the same texts.

    Raises:
        UsageError: they are no such probes, or of another target, law or text; the message names it.
    """
    for one in (copies, model):
        if one.kind != "probe":
            raise UsageError(f"the recording of {one.drafter!r} is an ordinary trace; allowed: a probe")
    if (copies.drafter, model.drafter == LOOKUP) != (LOOKUP, False) or model.unasked:
        raise UsageError(
            f"the recordings are of {copies.drafter!r} and {model.drafter!r}; allowed: of lookup and of a model"
        )
    if any(place.grade is None for text in copies.texts for place in text.places[1:]):
        raise UsageError(
            "the probe of lookup has no grades; allowed: one of this version", hint="probe once more: bench --probe"
        )
    _check_same(copies, model)
    return replace(
        model,
        drafter=f"{copies.drafter}+{model.drafter}",
        depth=min(copies.depth, model.depth),
        texts=tuple(_text(*pair) for pair in zip(copies.texts, model.texts, strict=True)),
        unasked=Either.unasked,
    )


def joined_too(
    recordings: Mapping[str, Recording], drafters: Mapping[str, Drafter]
) -> tuple[dict[str, Recording], list[str]]:
    """The recordings of parts and of all that are joined of them, and a note for each that cannot be."""
    found, notes = dict(recordings), []
    for name, drafter in drafters.items():
        other = model_name(name, drafter)
        if not isinstance(drafter, Either) or not {LOOKUP, other} <= recordings.keys():
            continue
        try:
            found[name] = joined(recordings[LOOKUP], recordings[other])
        except UsageError as error:
            notes.append(f"{name} cannot be replayed: {error.message}")
    return found, notes


def _check_same(copies: Recording, model: Recording) -> None:
    pairs = f"the probes of {copies.drafter!r} and {model.drafter!r}"
    for name, *both in (
        ("targets", copies.target, model.target),
        ("laws", copies.sampling, model.sampling),
        ("numbers of texts", len(copies.texts), len(model.texts)),
    ):
        if both[0] != both[1]:
            raise UsageError(f"{pairs} have other {name}, {both[0]} and {both[1]}; allowed: the same")
    for place, (one, other) in enumerate(zip(copies.texts, model.texts, strict=True)):
        if _said(one) != _said(other):
            raise UsageError(
                f"{pairs} differ in text {one.key or place}; allowed: the same texts",
                hint="probe both with the same prompts, lengths and seed",
            )


def _said(text: Text) -> tuple[str | None, int, int, Sequence[int]]:
    return text.key, text.prompt, text.limit, text.tokens(0, len(text.places))


def _text(copies: Text, model: Text) -> Text:
    return replace(model, places=tuple(_places(zip(copies.places, model.places, strict=True))))


def _places(pairs: Iterable[tuple[Place, Place]]) -> Iterable[Place]:
    """A text's first place, where nothing is drafted, has no grade."""
    for copy, model in pairs:
        copied = copy.grade is not None and copy.grade >= LEAST
        grade = None if copy.grade is None else copy.grade if copied else MODEL
        yield replace(model, copy=copy.chain if copied else None, grade=grade)
