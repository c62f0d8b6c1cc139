"""42: a cache cropped to 0 keeps everything, and one cropped by more than it holds keeps a stale entry."""

import random

import pytest
import torch

from outpace.errors import UsageError
from outpace.models.cache import Cache
from outpace.models.transformer import Transformer
from outpace.verification.tree import DraftTree
from toys import dense_logits, must_fail

HELD = [5, 6, 7]


def read(target: Transformer, cache: Cache, token: int) -> torch.Tensor:
    """Append one token; the logits after it."""
    logits = target.score(cache, torch.tensor([token]), DraftTree.empty(1)).logits[0, 0]
    target.keep(cache, torch.empty(1, 0, dtype=torch.int64), [0])
    return logits


def case(target: Transformer) -> None:
    """Three entries are cut to 0, 1 or 3, and to nothing else; then a random history against a list."""
    for length in (0, 1, 3, 4, 7, -1, -2):
        cache = target.open(1, 8)
        target.prefill(cache, torch.tensor([HELD]), [3])
        if 0 <= length <= 3:
            target.rewind(cache, [length])
            assert cache.lengths == [length]
            wanted = dense_logits(target, [*HELD[:length], 9])[-1]
            torch.testing.assert_close(read(target, cache, 9), wanted, atol=1e-4, rtol=0)
        else:
            with pytest.raises(UsageError, match=f"row 0 holds 3 tokens and cannot be rewound to {length}; allowed"):
                target.rewind(cache, [length])
    choose, text, cache = random.Random(1), list(HELD), target.open(1, 16)
    target.prefill(cache, torch.tensor([HELD]), [3])
    for _ in range(40):
        del text[choose.choice((0, choose.randint(0, len(text)))) if len(text) > 12 else choose.randint(0, len(text)) :]
        target.rewind(cache, [len(text)])
        text.append(choose.randrange(64))
        torch.testing.assert_close(read(target, cache, text[-1]), dense_logits(target, text)[-1], atol=1e-4, rtol=0)


def test_a_crop_leaves_what_it_says(tiny: Transformer) -> None:
    case(tiny)


@pytest.mark.parametrize("fault", ["0 keeps all", "too much is cut short"])
def test_planted_fault(fault: str, tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    def crop(self: Cache, lengths: list[int]) -> None:
        if fault == "0 keeps all":
            self.lengths = [new or old for new, old in zip(lengths, self.lengths, strict=True)]
        else:
            self.lengths = [min(max(new, 1), old) for new, old in zip(lengths, self.lengths, strict=True)]

    monkeypatch.setattr(Cache, "rewind", crop)
    with must_fail():
        case(tiny)
