"""Who drafts, as an engine must know it: of which kind, and where its weights are.

Opens no model and fetches nothing: it looks at what is on this machine, and at the table of well-known pairs.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outpace.drafters.layouts import method_of
from outpace.drafters.load import AUTO, CACHED, HEADS, JOINED, LOOKUP, SHIPPED, drafter_made_for
from outpace.drafters.record import Card, is_card, read_record
from outpace.drafters.small import METHOD as SMALL
from outpace.engines.pairs import pairs
from outpace.errors import UsageError, WeightsError
from outpace.models.staging import cache_root
from outpace.models.weights import find_weights, read_config

KINDS = ("lookup", "model", "eagle3", "eagle1", "medusa")
"""``lookup`` has no weights, ``model`` is a smaller language model, the others are heads on the target's states."""
HEAD_KINDS = KINDS[2:]
WORDS = {
    "lookup": "lookup",
    "model": "a smaller model",
    "eagle3": "an EAGLE-3 head",
    "eagle1": "an EAGLE-1 head",
    "medusa": "Medusa heads",
}


@dataclass(frozen=True)
class Guesser:
    """A drafter.

    Args:
        kind: one of ``KINDS``.
        path: what an engine opens: a folder or a Hugging Face id; empty for lookup.
        card: what outpace knows of it; None for a drafter of others.
        reduced: whether it says a part of the target's vocabulary alone; None where that is not known.
    """

    kind: str
    path: str = ""
    card: Card | None = None
    reduced: bool | None = None

    @property
    def words(self) -> str:
        """What it is, in words."""
        return WORDS[self.kind]

    def within(self, depth: int) -> int:
        """The depth, or the longest path that it can draft if that is shorter: a Medusa head says one token."""
        return min(depth, self.card.depth_trained) if self.card is not None and self.kind == "medusa" else depth


def alone(name: str, fingerprint: str) -> str:
    """The name of who drafts without lookup beside it, since engines have no two drafters at once.

    Args:
        name, fingerprint: as for ``guesser``.

    Raises:
        UsageError: lookup is joined with nobody who can be.
        WeightsError, UnsupportedError: as for ``guesser``.
    """
    if name == AUTO:
        return LOOKUP if drafter_made_for(fingerprint, HEADS, SHIPPED) is None else SHIPPED
    other = name.removeprefix(JOINED)
    if name.startswith(JOINED) and (other in ("", AUTO, LOOKUP) or other.startswith(JOINED)):
        raise UsageError(f"lookup is joined with {other!r}; allowed: a head or a smaller model")
    return other


def guesser(name: str, fingerprint: str, kind: str | None = None) -> Guesser:
    """The drafter of a plan.

    Args:
        name: as in ``Choice``, of one that drafts; of two that are joined the model is taken, see ``alone``.
        fingerprint: of the plan's target.
        kind: what a drafter is that is not on this machine; None looks it up among the well-known pairs.

    Raises:
        UsageError: it is neither here nor well-known and ``kind`` does not say what it is, or it is another kind than
            that, or no head comes with outpace for this target, or as for ``alone``.
        WeightsError, UnsupportedError: it is here and cannot be read.
    """
    if kind is not None and kind not in KINDS[1:]:
        raise UsageError(f"kind is {kind!r}; allowed: {', '.join(KINDS[1:])}")
    name = alone(name, fingerprint)
    if name == SHIPPED:
        if (found := drafter_made_for(fingerprint, HEADS, SHIPPED)) is not None:
            return _here(found)
        raise UsageError(
            f"the drafter is {name!r}, and no head comes with outpace for the target of fingerprint "
            f"{fingerprint!r}; allowed: lookup, or the folder or id of a smaller model or of a head"
        )
    if name == LOOKUP:
        return Guesser(LOOKUP)
    if name == SMALL and (found := drafter_made_for(fingerprint, cache_root() / CACHED, SMALL)) is not None:
        return _here(found)
    try:
        folder = find_weights(name, offline=True)
    except WeightsError as error:
        return _elsewhere(name, kind, error)
    known = _here(folder, name)
    if kind not in (None, known.kind):
        raise UsageError(f"the drafter {name!r} is {known.words}, and kind is {kind!r}; allowed: {known.kind!r}")
    return known


def _here(folder: Path, name: str | None = None) -> Guesser:
    """By its files; a hub id stays one, since the machine that serves has another cache."""
    path = str(folder.absolute()) if name is None or Path(name).expanduser().is_dir() else name
    if is_card(folder):
        card = read_record(folder)
        kind = "model" if card.method == SMALL else card.method
        return Guesser(kind, path, card, card.draft_vocab_size < card.target.vocab_size)
    kind = method_of(folder) or "model"
    return Guesser(kind, path, None, _reduced(read_config(folder)) if kind in HEAD_KINDS else False)


def _elsewhere(name: str, kind: str | None, error: WeightsError) -> Guesser:
    known = next((one.kind for one in pairs() if one.drafter == name), None)
    if (kind or known) is None:
        raise UsageError(
            f"the drafter {name!r} is not on this machine to be looked at; allowed: one that is, or a word with it, "
            f"--kind {' or '.join(KINDS[1:])}",
            hint=error.hint,
        ) from error
    found = kind or known or ""
    return Guesser(found, name, None, None if found in HEAD_KINDS else False)


def _reduced(config: dict[str, Any]) -> bool | None:
    whole = config.get("vocab_size", config.get("transformer_layer_config", {}).get("vocab_size"))
    own = config.get("draft_vocab_size")
    return None if whole is None else own is not None and own < whole
