"""55: the drafter ignores a mask that the target has, or a mask does not grow with the draft."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hosts import model_of
from outpace.decoding import generate as public
from outpace.decoding.generate import generate
from outpace.drafters.small import Small
from outpace.errors import UsageError
from outpace.models.function import FunctionTarget
from toys import must_fail

PROMPTS, HIDDEN, NEW = ([5, 6, 7, 8, 9], [11, 40, 2, 33, 60, 7, 7, 1, 19]), 2, 12
Mask = Callable[[Tensor], Tensor]


def hiding(ids: Tensor) -> Tensor:
    """1 1 0 1 1 and so on: nothing sees the third token."""
    mask = torch.ones_like(ids)
    mask[:, HIDDEN : HIDDEN + 1] = 0
    return mask


def of_the_prompt(ids: Tensor) -> Tensor:
    """As long as the longest prompt for ever: what comes behind it is hidden."""
    return hiding(ids) * (torch.arange(ids.shape[1]) <= max(map(len, PROMPTS)))


def masked(mask: Mask | None) -> FunctionTarget:
    """A model of transformers that gets two numbers for every token: a mask, and a type, which takes turns."""
    model = model_of("gpt2")

    @torch.inference_mode()
    def logits_of(ids: Tensor) -> Tensor:
        types = (torch.arange(ids.shape[1]) % 2).expand_as(ids)
        given = {} if mask is None else {"attention_mask": mask(ids)}
        logits: Tensor = model(input_ids=ids, token_type_ids=types, use_cache=False, **given).logits
        return logits

    return FunctionTarget(logits_of, 64)


def plainly(mask: Mask | None) -> list[list[int]]:
    """Every token by the whole of its own text alone."""
    texts = [list(prompt) for prompt in PROMPTS]
    for text in texts:
        for _ in range(NEW):
            text.append(int(masked(mask).logits_of(torch.tensor([text]))[0, -1].argmax()))
    return [text[len(prompt) :] for text, prompt in zip(texts, PROMPTS, strict=True)]


def drafted(mask: Mask | None, drafts: Mask | None, **options: Any) -> tuple[list[list[int]], set[float | None]]:
    """What a ragged batch says, and how well the drafts did."""
    target = masked(mask)
    prompts = [list(prompt) for prompt in PROMPTS]
    results = generate(target, Small(masked(drafts), target), prompts, max_new_tokens=NEW, eos_ids=None, **options)
    return [result.token_ids for result in results], {result.stats.speculation.acceptance for result in results}


def case(mask: Mask = hiding) -> None:
    """Both read the prompt with a hole, through every draft; a mask that hides nothing is none.

    A mask is the model's own business: one that is handed to a call is refused by name.
    """
    wanted = plainly(hiding)
    for shape in ({"num_draft_tokens": 4}, {"num_draft_tokens": 6, "tree": "top-k:2"}):
        said, acceptance = drafted(mask, hiding, **shape)
        assert said == wanted
        if "tree" not in shape:
            assert acceptance == {1.0}
    assert drafted(torch.ones_like, None, num_draft_tokens=4) == (plainly(None), {1.0})
    options: Any = {"attention_mask": hiding(torch.tensor(PROMPTS[:1]))}
    with pytest.raises(UsageError, match="unknown option 'attention_mask'; allowed: "):
        generate(masked(None), None, PROMPTS[0], max_new_tokens=2, **options)


def test_a_mask_holds_for_drafts_too() -> None:
    case()
    assert plainly(hiding) != plainly(None), "the hole is not noticed: take another prompt"


@pytest.mark.parametrize("fault", ["not passed to the drafter", "not grown", "shifted by padding", "dropped"])
def test_planted_fault(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prefill, check, small = FunctionTarget.prefill, public.check, Small.__init__

    def blind(self: Small, model: Any, target: Any) -> None:
        small(self, masked(None), target)

    def on_the_left(self: FunctionTarget, state: Any, ids: Tensor, lengths: list[int], taps: Any = ()) -> Any:
        ids = torch.stack([row.roll(ids.shape[1] - size) for row, size in zip(ids, lengths, strict=True)])
        return prefill(self, state, ids, [ids.shape[1]] * len(ids), taps)

    if fault == "not passed to the drafter":
        monkeypatch.setattr(Small, "__init__", blind)
    elif fault == "shifted by padding":
        monkeypatch.setattr(FunctionTarget, "prefill", on_the_left)
    elif fault == "dropped":
        known = public.Options.__annotations__
        monkeypatch.setattr(
            public, "check", lambda given, **more: check({k: v for k, v in given.items() if k in known}, **more)
        )
    with must_fail():
        case(of_the_prompt if fault == "not grown" else hiding)
