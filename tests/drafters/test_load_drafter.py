"""Drafters are opened by name, and refused by name."""

import pytest

from outpace.drafters.load import load_drafter
from outpace.drafters.lookup import Lookup
from outpace.errors import UsageError, WeightsError
from outpace.models.transformer import Transformer
from toys import spelling


def test_lookup_takes_the_targets_ends() -> None:
    drafter = load_drafter("lookup", spelling([1], prompt=1, vocab=4, eos_ids=(2, 3)))
    assert isinstance(drafter, Lookup) and drafter.eos_ids == {2, 3}


@pytest.mark.parametrize("name", ["", "small"])
def test_a_small_drafter_needs_a_name(name: str, tiny: Transformer) -> None:
    with pytest.raises(UsageError, match=f"the drafter is {name!r}; allowed: lookup, or the folder or id of a smaller"):
        load_drafter(name, tiny)


def test_a_name_that_is_nothing(tiny: Transformer) -> None:
    with pytest.raises(WeightsError, match="nowhere"):
        load_drafter("./nowhere/at-all", tiny)
