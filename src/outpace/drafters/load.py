"""Open a drafter by name: lookup, a trained head, or a smaller model of the same family.

Knows nothing of how drafts are judged.
"""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from outpace.drafters.card import METHOD, read_card
from outpace.drafters.drafter import Drafter
from outpace.drafters.drafter import Rates
from outpace.drafters.eagle import Eagle
from outpace.drafters.first_card import read_first_card
from outpace.drafters.first_head import AnyHead, FirstHead
from outpace.drafters.first_layouts import read_first, require_ends
from outpace.drafters.head import Head
from outpace.drafters.layouts import method_of, read_layout
from outpace.drafters.lookup import Lookup
from outpace.drafters.medusa import Medusa
from outpace.drafters.medusa_card import read_medusa_card
from outpace.drafters.medusa_heads import MedusaHeads
from outpace.drafters.medusa_layout import read_medusa
from outpace.drafters.record import Card, TargetRecord, is_card, read_record
from outpace.drafters.small import Small
from outpace.errors import UnsupportedError, UsageError
from outpace.models.ends import read_embeddings
from outpace.models.load import DTYPES, load_target
from outpace.models.target import Target
from outpace.models.weights import compare_fingerprints, find_weights

HEADS = Path(__file__).parents[1] / "heads"
"""Where the heads are that come with the package, a folder each."""
AUTO, SHIPPED, LOOKUP = "auto", "eagle3", "lookup"
"""Names that are no folder: the head that comes with the package or else lookup, that head alone, and lookup alone."""


def load_drafter(name: str, target: Target, *, dtype: str = "auto", trust_remote_code: bool = False) -> Drafter:
    """Open a drafter for a target.

    Args:
        name: ``auto`` for the head that comes with the package and was made for this very target, where there is one,
            else ``lookup``; ``eagle3`` for that head; ``lookup``; or the folder or Hugging Face id of a trained head,
            our own or in another published layout, or of a smaller model with the target's tokenizer.
        target: the model to be accelerated.
        dtype: of a model drafter, as in ``load_target``; of a head, whose ``auto`` is the target's.
        trust_remote_code: let a model drafter run Python files that came with its weights.

    Warns:
        UserWarning: the head was made for other weights, or cannot say an end of text; or as for ``read_layout``.

    Raises:
        UsageError: the name is empty, ``small`` without a model, ``eagle3`` where no head comes along, or as in
            ``Small`` and ``Eagle``; the head was made for a target of another architecture or with another tokenizer;
            the dtype is none of those.
        WeightsError, UnsupportedError: as in ``load_target``, ``read_card``, ``read_layout`` and ``shipped_drafter``;
            or a card is of a method that is not among ``READERS``.
    """
    if name in (AUTO, SHIPPED):
        if (shipped := shipped_drafter(target)) is not None:
            return _eagle(shipped, target, SHIPPED, SHIPPED, dtype)
        if name == SHIPPED:
            raise UsageError(
                f"the drafter is {name!r}, and no head comes with outpace for the target {target.name!r}; allowed: "
                "lookup, or the folder or id of a smaller model or of a head",
                hint="`outpace train eagle3` makes one",
            )
        name = LOOKUP
    if name == LOOKUP:
        return Lookup(eos_ids=target.eos_ids)
    if name in ("", "small"):
        raise UsageError(
            f"the drafter is {name!r}; allowed: auto, eagle3, lookup, or the folder or id of a smaller model or of a "
            "head",
            hint="no small drafter is trained for the default model yet",
        )
    folder = find_weights(name)
    method = read_record(folder).method if is_card(folder) else METHOD if is_head(folder) else None
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
    for folder in sorted(path.parent for path in (root or HEADS).glob("*/outpace.json")):
        card = read_record(folder)
        if card.method == method and card.target.fingerprint == target.fingerprint:
            return folder
    return None


# ---- whether a head was made for a target ----------------------------------------------------------------------------


def trained_head(name: str, target: Target) -> Head:
    """The weights of a head that was made for a target, to be trained on.

    Args:
        name: as for ``load_drafter``, of a head alone.
        target: the one that it drafts for.

    Warns, Raises: as for ``load_drafter``; UsageError too where the name is of something else than a head.
    """
    folder = shipped_drafter(target) if name == SHIPPED else find_weights(name)
    if folder is None or not (is_card(folder) or is_head(folder)):
        raise UsageError(f"{name!r} is no trained head; allowed: the folder or id of one, made for {target.name!r}")
    return _head(folder, target, name)[0]


def _eagle(folder: Path, target: Target, name: str, method: str, dtype: str) -> Eagle:
    """The drafter of an EAGLE-3 head; ``method`` is what statistics call it."""
    if dtype != "auto" and dtype not in DTYPES:
        raise UsageError(f"dtype is {dtype!r}; allowed: auto, {', '.join(DTYPES)}")
    head, rates = _head(folder, target, name)
    _tell_missing_ends(head, target, name)
    return Eagle(head, target, dtype=None if dtype == "auto" else DTYPES[dtype], name=method, rates=rates)


READERS: Mapping[str, Callable[[Path, Target, str, str, str], Drafter]] = {METHOD: _eagle}
"""Who opens the card of a method: folder, target, the name it was asked by, that of statistics, dtype."""


def _head(folder: Path, target: Target, name: str) -> tuple[Head, tuple[float, ...]]:
    """Its weights, and its acceptance by rank where a card knows it."""
    if is_card(folder):
        head, card = read_card(folder)
        _require_target(card, target, name)
        return head, card.acceptance_by_rank or ()
    layout = read_layout(folder, TargetRecord.of(target).layers)
    if layout.embeddings is not None:
        _require_embeddings(layout.embeddings, target, name)
    return layout.head, ()


def _require_target(card: Card, target: Target, name: str) -> None:
    """A head speaks of one architecture and one tokenizer; other weights under them cost acceptance alone."""
    made_for = f"the drafter {name!r} was made for {card.target.name!r}"
    if not target.fingerprint:
        warnings.warn(
            f"{made_for}; the target {target.name!r} has no fingerprint to tell whether that is it", stacklevel=4
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
            stacklevel=4,
        )


def _require_embeddings(rows: Tensor, target: Target, name: str) -> None:
    """A head as wide as its target embeds tokens as the target does; what its file holds may be rounded otherwise."""
    own = read_embeddings(target).float()
    if own.shape != rows.shape or not torch.allclose(rows.to(own), own, rtol=2**-7, atol=1e-6):
        raise UnsupportedError(
            f"the drafter {name!r} holds an embed_tokens.weight that is not that of the target {target.name!r}; "
            "allowed: the target's embeddings, or none",
            hint="it may have been made for another target",
        )


def _tell_missing_ends(head: Head, target: Target, name: str) -> None:
    unsaid = sorted(set(target.eos_ids) - set(head.target_ids.tolist()))
    if unsaid:
        warnings.warn(
            f"the drafter {name!r} cannot say {', '.join(map(str, unsaid))}, which end texts of the target "
            f"{target.name!r}: what it drafts there is never accepted",
            stacklevel=4,
        )
