"""Hooks are placed once and see the forwards that they are asked to: not those of other hosts, threads or callers."""

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from hosts import CLOSE, hosted, model_of, random_ids, whole
from outpace.errors import UsageError
from outpace.models import watch
from outpace.models.hosted import host
from outpace.models.watch import Watcher
from outpace.verification.tree import DraftTree
from toys import must_fail

TEXTS = [random_ids(length, length) for length in (5, 9, 12, 7)]
TAPS = {0: (), 1: (1,), 2: ("last_normed", 0), 3: (3, 2)}


class Stack(nn.Module):
    """Two layers that add one, and a head that adds nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Identity(), nn.Identity()])
        self.head = nn.Identity()

    def forward(self, states: Tensor) -> Tensor:
        for layer in self.layers:
            states = layer(states) + 1
        return self.head(states)  # type: ignore[no-any-return]


def hooks(model: nn.Module) -> int:
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())


def test_only_what_was_asked_for_is_noted() -> None:
    """States before the first layer, behind the second and before the head; one token a row for the head."""
    model, states = Stack(), torch.arange(24.0).view(2, 3, 4)
    watcher = Watcher(model.head, model.layers)
    with watcher.watching((0, 2), None) as seen:
        assert torch.equal(model(states), states + 2)
    assert set(seen) == {0, 2, "last_normed"} and torch.equal(seen[0], states) and torch.equal(seen[2], states + 1)
    with watcher.watching((), torch.tensor([2, 0])) as seen:
        short = model(states)
    assert set(seen) == {"last_normed"} and torch.equal(short, states[[0, 1], [2, 0]][:, None] + 2)
    assert torch.equal(model(states), states + 2), "a forward that nobody watches is left alone"


def test_hooks_do_not_grow() -> None:
    model = Stack()
    watcher = Watcher(model.head, model.layers)
    for _ in range(3):
        with watcher.watching((1, 0, "last_normed"), None):
            model(torch.zeros(1, 1))
    assert hooks(model) == 3
    with pytest.raises(UsageError, match="tap is 3; allowed: last_normed, 0, or a layer; the model has 2 layers"):
        watcher.watching((3,), None).__enter__()
    with pytest.raises(UsageError, match="the model has no layers that can be told apart"):
        Watcher(model.head, None).watching((1,), None).__enter__()
    assert hooks(model) == 4


def twice() -> list[Any]:
    """One model with two hosts."""
    model = deepcopy(model_of("gpt2"))
    return [host(model, packed=False, name=name) for name in ("one", "other")]


def case(targets: list[Any]) -> None:
    """Four threads at once with taps of their own: each has its own states and logits."""
    alone: Any = hosted("gpt2")

    def read(target: Any, place: int) -> tuple[Tensor, Tensor | None]:
        state = target.open(1, 24)
        ids = torch.tensor([TEXTS[place]])
        first = target.prefill(state, ids, [ids.shape[1]], TAPS[place])
        second = target.score(state, torch.tensor([7]), DraftTree.chain(torch.tensor([[3, 4]])), TAPS[place])
        features = None if second.features is None else torch.cat((first.features, second.features), 1)
        return torch.cat((first.logits, second.logits), 1), features

    wanted = [read(alone, place) for place in range(4)]
    for place, (logits, _) in enumerate(wanted):
        assert_close(logits[0, 0], whole(model_of("gpt2"), [TEXTS[place]])[0][-1], **CLOSE)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for place, found in enumerate(pool.map(read, targets * 2, range(4))):
                for ours, theirs in zip(found, wanted[place], strict=True):
                    assert (ours is None) == (theirs is None)
                    assert ours is None or ours.shape == theirs.shape
                    assert ours is None or torch.allclose(ours, theirs, **CLOSE)


def test_others_are_left_alone() -> None:
    case(twice())


def test_planted_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook acts for whoever's forward is under way: the head of a model with two hosts is cut twice."""
    targets = twice()
    monkeypatch.setattr(Watcher, "_own", lambda self: watch._UNDER_WAY.get())
    with must_fail():
        try:
            case(targets)
        except (IndexError, RuntimeError) as error:
            raise AssertionError("a forward of another was touched") from error
