"""29: "accept the draft if the target's own draw is the same" is called biased, or as good as the ratio rule."""

from collections.abc import Mapping

import pytest
import torch

from outpace.verification.rules import RULES
from outpace.verification.verdict import Rule
from toys import first_token_law, must_fail, total_variation

TARGET = torch.tensor([0.50, 0.30, 0.15, 0.05], dtype=torch.float64)
DRAFT = torch.tensor([0.10, 0.20, 0.30, 0.40], dtype=torch.float64)


def case(rules: Mapping[str, Rule]) -> None:
    """Both have the target's law; what is lost by the one is acceptance."""
    for name, acceptance in (("match", TARGET @ DRAFT), ("rejection", torch.minimum(TARGET, DRAFT).sum())):
        law, accepted = first_token_law(rules[name], TARGET, DRAFT, DRAFT)
        assert total_variation(law, TARGET) < 1e-12
        assert accepted == pytest.approx(float(acceptance), abs=1e-12)
        assert rules[name].lossless


def test_case() -> None:
    case(RULES)
    assert float(TARGET @ DRAFT) == pytest.approx(0.175)
    assert float(torch.minimum(TARGET, DRAFT).sum()) == pytest.approx(0.5)


def test_planted_fault() -> None:
    with must_fail():
        case(dict(RULES) | {"match": RULES["rejection"]})
    with must_fail():
        case(dict(RULES) | {"rejection": RULES["match"]})
