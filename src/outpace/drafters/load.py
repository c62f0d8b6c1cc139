"""Open a drafter by name: lookup, a trained head, or a smaller model of the same family.

Knows nothing of how drafts are judged.
"""

import hashlib
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import nn

from outpace.drafters.card import METHOD, read_card
from outpace.drafters.drafter import Drafter
from outpace.drafters.eagle import Eagle
from outpace.drafters.either import Either
from outpace.drafters.first_card import read_first_card
from outpace.drafters.first_head import FirstHead
from outpace.drafters.first_layouts import read_first, require_ends
from outpace.drafters.head import Head
from outpace.drafters.layouts import method_of, read_layout
from outpace.drafters.lookup import Lookup
from outpace.drafters.medusa import Medusa
from outpace.drafters.medusa_card import read_medusa_card
from outpace.drafters.medusa_heads import MedusaHeads
from outpace.drafters.medusa_layout import read_medusa
from outpace.drafters.record import Card, TargetRecord, is_card, read_record
from outpace.drafters.small import METHOD as SMALL
from outpace.drafters.small import Small
from outpace.errors import UnsupportedError, UsageError
from outpace.models.load import DTYPES, load_target
from outpace.models.staging import cache_root
from outpace.models.target import Target
from outpace.models.weights import DEFAULT, compare_fingerprints, find_weights

HEADS = Path(__file__).parents[1] / "heads"
"""Where the heads are that come with the package, a folder each."""
AUTO, SHIPPED, LOOKUP = "auto", "eagle3", "lookup"
"""Names that are no folder: the best at hand, the head that comes with the package alone, and lookup alone."""
JOINED = f"{LOOKUP}+"
"""Before the name of another drafter: lookup where the text repeats itself, that drafter elsewhere."""
CACHED = "drafters"
"""The folder of the cache where small models are that were distilled here, a folder each."""
_DISTIL = "`outpace train distil --recipe recipes/distil-smollm2.toml` makes one; --plan says in how many minutes"


def load_drafter(name: str, target: Target, *, dtype: str = "auto", trust_remote_code: bool = False) -> Drafter:
    """Open a drafter for a target.

    Args:
        name: ``lookup``; ``eagle3`` for the head that comes with the package and was made for this very target;
            ``small`` for a model that was distilled for this very target into the cache; or the folder or Hugging Face
            id of a trained head of any method in ``READERS``, our own or in another published layout, or of a smaller
            model with the target's tokenizer. ``lookup+`` before any other name joins the two, see ``Either``.
            ``auto`` is ``lookup+eagle3`` where there is such a head, else ``lookup``.
        target: the model to be accelerated.
        dtype: of a model drafter, as in ``load_target``; of a head, whose ``auto`` is the target's.
        trust_remote_code: let a model drafter run Python files that came with its weights.

    Warns:
        UserWarning: the head was made for other weights, or cannot say an end of text; or as for ``read_layout`` and
            ``read_medusa``.

    Raises:
        UsageError: the name is empty, ``small`` where none was distilled, ``eagle3`` where no head comes along, or as
            in ``Small``, ``Eagle`` and ``Medusa``; the head was made for a target of another architecture or with
            another tokenizer; the dtype is none of those.
        WeightsError, UnsupportedError: as in ``load_target``, ``shipped_drafter`` and ``require_ends``, and as for who
            reads cards and layouts of the head's method; or a card is of a method that is not among ``READERS``.
    """
    if name == AUTO:
        name = LOOKUP if shipped_drafter(target) is None else JOINED + SHIPPED
    if name == LOOKUP:
        return Lookup(eos_ids=target.eos_ids)
    if name.startswith(JOINED):
        other = load_drafter(name.removeprefix(JOINED), target, dtype=dtype, trust_remote_code=trust_remote_code)
        return Either(Lookup(eos_ids=target.eos_ids), other)
    if name == SHIPPED:
        if (shipped := shipped_drafter(target)) is not None:
            return READERS[SHIPPED](shipped, target, SHIPPED, SHIPPED, dtype)
        raise UsageError(
            f"the drafter is {name!r}, and no head comes with outpace for the target {target.name!r}; allowed: "
            "lookup, or the folder or id of a smaller model or of a head",
            hint="`outpace train eagle3` makes one",
        )
    if name == SMALL and (cached := shipped_drafter(target, cache_root() / CACHED, method=SMALL)) is not None:
        return READERS[SMALL](cached, target, SMALL, SMALL, dtype)
    if name in ("", SMALL):
        raise UsageError(
            f"the drafter is {name!r}; allowed: auto, eagle3, lookup, or the folder or id of a smaller model or of a "
            "head",
            hint=None if name == "" else f"none was distilled here for the target {target.name!r}; {_DISTIL}",
        )
    folder = find_weights(name)
    method = _method(folder)
    if method is None:
        model = load_target(name, dtype=dtype, device=str(target.device), trust_remote_code=trust_remote_code)
        return Small(model, target)
    if method not in READERS:
        raise UnsupportedError(
            f"the drafter {name!r} is of the method {method!r}; allowed: {', '.join(READERS)}",
            hint="no drafter of that method is opened yet",
        )
    return READERS[method](folder, target, name, f"{method}:{name}", dtype)


def shipped_drafter(target: Target, root: Path | None = None, *, method: str = METHOD) -> Path | None:
    """The folder of the drafter that comes with the package and was made for this very target; None if there is none.

    Args:
        root: where drafters are; those of the package by default.
        method: of which method; others may lie beside it.

    Raises:
        WeightsError, UnsupportedError: a card cannot be read.
    """
    return drafter_made_for(target.fingerprint, root or HEADS, method)


def drafter_made_for(fingerprint: str, root: Path, method: str) -> Path | None:
    """The folder under ``root`` of the drafter of this method that was made for the target with this fingerprint.

    Raises:
        WeightsError, UnsupportedError: a card cannot be read.
    """
    for folder in sorted(path.parent for path in root.glob("[!.]*/outpace.json")):
        card = read_record(folder)
        if card.method == method and card.target.fingerprint == fingerprint:
            return folder
    return None


def at_hand(target: Target) -> list[str]:
    """Names of the drafters that a target has here without anybody naming them: its head, lookup, its small model.

    Raises:
        WeightsError, UnsupportedError: as for ``shipped_drafter``.
    """
    heads = [SHIPPED] if shipped_drafter(target) is not None else []
    smaller = [SMALL] if shipped_drafter(target, cache_root() / CACHED, method=SMALL) is not None else []
    return [*heads, LOOKUP, *smaller]


def cached_place(target: str) -> Path:
    """Where a small model is put that ``small`` will find.

    Args:
        target: as it was asked for, a name or a folder.
    """
    folder = Path(target).expanduser()
    name = str(folder.resolve()) if target != DEFAULT and folder.is_dir() else target
    return cache_root() / CACHED / f"{SMALL}-{Path(name).name}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


# ---- whether a head was made for a target ----------------------------------------------------------------------------


def trained_head(name: str, target: Target, *, method: str = METHOD) -> nn.Module:
    """The weights of a head that was made for a target, to be trained on: a ``Head``, ``FirstHead`` or ``MedusaHeads``.

    Args:
        name: as for ``load_drafter``, of a head alone.
        target: the one that it drafts for.
        method: the one that the head must be of, among ``READERS``.

    Warns, Raises: as for ``load_drafter``; UsageError too where the name is of something else than such a head.
    """
    folder = shipped_drafter(target) if name == SHIPPED else find_weights(name)
    found = None if folder is None else _method(folder)
    if folder is None or found is None:
        raise UsageError(f"{name!r} is no trained head; allowed: the folder or id of one, made for {target.name!r}")
    if found != method:
        raise UsageError(f"the head {name!r} is of the method {found!r}; allowed: one of {method!r}")
    return _WEIGHTS[method](folder, target, name)[0]


def _method(folder: Path) -> str | None:
    """The method of a card or of a head in another layout; None for a model."""
    return read_record(folder).method if is_card(folder) else method_of(folder)


# ---- by method -------------------------------------------------------------------------------------------------------

_Rates = tuple[float, ...]


def _third(folder: Path, target: Target, name: str) -> tuple[Head, _Rates]:
    """The weights of EAGLE-3, and the acceptance by rank where a card knows it; here and below."""
    if is_card(folder):
        head, card = read_card(folder)
        return head, _rates(card, target, name)
    layout = read_layout(folder, TargetRecord.of(target).layers)
    require_ends(target, name, embeddings=layout.embeddings)
    return layout.head, ()


def _first(folder: Path, target: Target, name: str) -> tuple[FirstHead, _Rates]:
    if is_card(folder):
        head, card = read_first_card(folder)
        return head, _rates(card, target, name)
    layout = read_first(folder)
    require_ends(target, name, embeddings=layout.embeddings, rows=layout.rows)
    return layout.head, ()


def _parallel(folder: Path, target: Target, name: str) -> tuple[MedusaHeads, tuple[_Rates, ...]]:
    """The rates of each head; where only those of all depths together are known, each is taken to have them."""
    if is_card(folder):
        heads, card = read_medusa_card(folder)
        together = _rates(card, target, name)
        return heads, card.acceptance_by_depth_and_rank or (together,) * heads.shape.heads
    layout = read_medusa(folder, target.vocab_size)
    require_ends(target, name, rows=layout.rows)
    return layout.heads, ()


_WEIGHTS: Mapping[str, Callable[[Path, Target, str], tuple[nn.Module, object]]] = {
    METHOD: _third,
    "eagle1": _first,
    "medusa": _parallel,
}


def _eagle(
    read: Callable[[Path, Target, str], tuple[Head | FirstHead, _Rates]],
    folder: Path,
    target: Target,
    name: str,
    called: str,
    dtype: str,
) -> Eagle:
    """The drafter of a head that walks; ``called`` is its name in statistics."""
    chosen = _dtype(dtype)
    head, rates = read(folder, target, name)
    _tell_missing_ends(head, target, name)
    return Eagle(head, target, dtype=chosen, name=called, rates=rates)


def _medusa(folder: Path, target: Target, name: str, called: str, dtype: str) -> Medusa:
    """The drafter of Medusa heads."""
    chosen = _dtype(dtype)
    heads, rates = _parallel(folder, target, name)
    return Medusa(heads, target, dtype=chosen, name=called, rates=rates)


def _small(folder: Path, target: Target, name: str, called: str, dtype: str) -> Small:
    """A model that was distilled for the target."""
    rates = _rates(read_record(folder, SMALL), target, name)
    drafter = Small(load_target(folder, dtype=dtype, device=str(target.device)), target, rates=rates)
    drafter.name = called
    return drafter


READERS: Mapping[str, Callable[[Path, Target, str, str, str], Drafter]] = {
    METHOD: partial(_eagle, _third),
    "eagle1": partial(_eagle, _first),
    "medusa": _medusa,
    SMALL: _small,
}
"""Who opens heads of a method: folder, target, the name it was asked by, that of statistics, dtype."""


def _dtype(name: str) -> torch.dtype | None:
    if name != "auto" and name not in DTYPES:
        raise UsageError(f"dtype is {name!r}; allowed: auto, {', '.join(DTYPES)}")
    return None if name == "auto" else DTYPES[name]


def _rates(card: Card, target: Target, name: str) -> _Rates:
    """What a card measured, of a target that will do."""
    _require_target(card, target, name)
    return card.acceptance_by_rank or ()


def _require_target(card: Card, target: Target, name: str) -> None:
    """A head speaks of one architecture and one tokenizer; other weights under them cost acceptance alone."""
    made_for = f"the drafter {name!r} was made for {card.target.name!r}"
    if not target.fingerprint:
        warnings.warn(
            f"{made_for}; the target {target.name!r} has no fingerprint to tell whether that is it", stacklevel=5
        )
        return
    found = "same"
    if card.target.fingerprint != target.fingerprint:
        found = compare_fingerprints(card.target.fingerprint, target.fingerprint)
    if found in ("architecture differs", "tokenizer differs"):
        raise UsageError(
            f"{made_for}, whose {found.removesuffix(' differs')} is another than that of the target {target.name!r}; "
            "allowed: one and the same",
            hint="a head drafts for the model that it was trained on",
        )
    if found == "weights differ":
        warnings.warn(
            f"{made_for}, and the target {target.name!r} has other weights: the text stays exact, but fewer drafts may "
            "be accepted",
            stacklevel=5,
        )


def _tell_missing_ends(head: Head | FirstHead, target: Target, name: str) -> None:
    unsaid = sorted(set(target.eos_ids) - set(head.target_ids.tolist()))
    if unsaid:
        warnings.warn(
            f"the drafter {name!r} cannot say {', '.join(map(str, unsaid))}, which end texts of the target "
            f"{target.name!r}: what it drafts there is never accepted",
            stacklevel=4,
        )
