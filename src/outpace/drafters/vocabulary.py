"""Whether a draft model speaks with the target's tokenizer, and its logits in the target's ids.

Knows nothing of drafting. Models pad their vocabularies to sizes that suit their matrices: one tokenizer may come with
151,643 ids here and 151,936 there, and those beyond the tokenizer mean nothing.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from outpace.errors import UsageError
from outpace.models.target import Target
from outpace.models.weights import vocabulary


def require_one_tokenizer(model: Target, target: Target) -> None:
    """Refuse a draft model to which an id means another token than to the target.

    Compared are the ids that both tokenizers have; one may have more of them than the other. Where a model has no
    ``tokenizer.json`` or ``vocab.json`` beside it, only equal sizes of the two vocabularies are taken for a sign.

    Raises:
        UsageError: an id stands for two tokens, the first such is named; or there is no tokenizer to compare, and the
            sizes differ.
        WeightsError: a tokenizer's file cannot be read.
    """
    if model.folder is not None and model.folder == target.folder:
        return
    words = [None if one.folder is None else vocabulary(one.folder) for one in (model, target)]
    tokens = [{index: word for word, index in found.items()} for found in words if found]
    if len(tokens) < 2:
        if model.vocab_size != target.vocab_size:
            raise UsageError(
                f"the draft model {model.name!r} has a vocabulary of {model.vocab_size}, "
                f"the target {target.name!r} one of {target.vocab_size}; without a tokenizer beside both of them "
                "they must be equal",
                hint="use a smaller model of the same family",
            )
        return
    theirs, ours = tokens
    differing = min((index for index, token in theirs.items() if ours.get(index, token) != token), default=None)
    if differing is not None:
        raise UsageError(
            f"the draft model {model.name!r} has another tokenizer than the target {target.name!r}: "
            f"id {differing} is {theirs[differing]!r} in the draft and {ours[differing]!r} in the target",
            hint="use a smaller model of the same family",
        )


def in_target_ids(logits: Float[Tensor, "*lead draft"], vocab_size: int) -> Float[Tensor, "*lead vocab"]:
    """Logits over the target's vocabulary: ids that the target lacks are cut off, those the draft lacks forbidden.

    Cutting before the softmax is the law without these ids, renormalised: the law that tokens are then drawn from.
    """
    spare = vocab_size - logits.shape[-1]
    return pad(logits, (0, spare), value=-torch.inf) if spare else logits
