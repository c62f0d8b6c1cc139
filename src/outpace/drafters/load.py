"""Open a drafter by name: lookup, or a smaller model of the same family.

Knows nothing of how drafts are judged.
"""

from outpace.drafters.drafter import Drafter
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.errors import UsageError
from outpace.models.load import load_target
from outpace.models.target import Target


def load_drafter(name: str, target: Target, *, dtype: str = "auto") -> Drafter:
    """Open a drafter for a target.

    Args:
        name: ``lookup``, or the folder or Hugging Face id of a smaller model with the target's tokenizer.
        target: the model to be accelerated.
        dtype: of a model drafter, as in ``load_target``.

    Raises:
        UsageError: the name is empty, ``small`` without a model, or as in ``Small``.
        WeightsError, UnsupportedError: as in ``load_target``.
    """
    if name == "lookup":
        return Lookup(eos_ids=target.eos_ids)
    if name in ("", "small"):
        raise UsageError(
            f"the drafter is {name!r}; allowed: lookup, or the folder or id of a smaller model",
            hint="no small drafter is trained for the default model yet",
        )
    return Small(load_target(name, dtype=dtype, device=str(target.device)), target)
