"""81: a dialogue is longer than the maximum: cut here and not there, or without an answer left, and the loss is NaN."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from outpace.errors import UsageError
from outpace.models.transformer import Transformer
from outpace.training import features
from outpace.training.features import Fitting, fitting, online, record
from outpace.training.masks import Sample
from toys import lively, must_fail

MOST = 16


def text(key: str, *parts: int) -> Sample:
    """Prompts and answers of these lengths, in turn."""
    mask = torch.cat([torch.full((length,), bool(place % 2)) for place, length in enumerate(parts)])
    return Sample(key, torch.arange(sum(parts), dtype=torch.int32), mask)


FITS = [text("fits", 10, 6), text("short", 3, 1)]
LONG = [text("prompt alone", 20, 5), text("answer beyond", 10, 20), text("second answer beyond", 4, 5, 4, 5)]
NOTHING = [text("no answer", 9), text("no answer either", 2)]


def case(target: Transformer, folder: Path) -> None:
    """Ids and masks of every sample that is trained on are whole, and end within the maximum; the others are counted,
    and a set of nothing else is refused before there is a loss."""
    for place, texts in enumerate((LONG + FITS + NOTHING, FITS)):
        with warnings.catch_warnings(record=True) as notices:
            warnings.simplefilter("always")
            made = [
                online(target, texts, taps=(1,), limit=MOST),
                record(target, texts, folder / str(place), taps=(1,), limit=MOST),
            ]
        assert len(notices) == (0 if texts is FITS else 4)
        for each in made:
            assert each.samples == FITS
            assert len(each.fitting.too_long) + len(each.fitting.unanswered) + len(FITS) == len(texts)
            for batch in each.batches(0, 0, 32):
                assert batch.loss_mask.shape == batch.ids.shape and max(batch.lengths) <= MOST
                assert batch.loss_mask.any(1).all() and (batch.argmax >= 0).any(1).all()
    for texts in (LONG, NOTHING, LONG + NOTHING):
        with pytest.raises(UsageError, match=f"none of {len(texts)} samples can be trained on"):
            online(target, texts, taps=(1,), limit=MOST)


def test_case(tmp_path: Path) -> None:
    case(lively(), tmp_path)


def cut(samples: Any, limit: int) -> Fitting:
    """What is too long is cut, ids and mask, and what is then without an answer is trained on."""
    kept = [Sample(one.key, one.ids[:limit], one.loss_mask[:limit]) for one in samples]
    return Fitting(kept, [], [])


def masks_do_not_matter(samples: Any, limit: int) -> Fitting:
    kept = [one for one in samples if len(one) <= limit]
    return Fitting(kept, [one.key for one in samples if len(one) > limit], [])


def dropped_silently(samples: Any, limit: int) -> Fitting:
    return Fitting(fitting(samples, limit).samples, [], [])


@pytest.mark.parametrize("fault", [cut, masks_do_not_matter, dropped_silently])
def test_planted_fault(fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "fitting", fault)
    with must_fail():
        case(lively(), tmp_path)
