"""Medusa's objective against its definition, head by head and place by place, and on a sequence that is known.

Greedy texts and hand-set seeds are fixed, so that nothing here can raise a false alarm.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from medusas import medusa_shape, random_medusa, spoken
from outpace.drafters.medusa_heads import MedusaHeads
from outpace.errors import UsageError
from outpace.models.ends import SharedHead
from outpace.training import distil, parallel
from outpace.training.batch import Batch
from outpace.training.counts import StepCounts, standing
from outpace.training.distil import over_the_vocabulary, over_the_vocabulary_plain
from outpace.training.losses import LOSSES, weighted_loss_plain
from outpace.training.parallel import new_heads, ranks_of, speak, weights_of
from outpace.training.ranges import HARD
from outpace.training.teacher import Teacher
from outpace.training.unroll import Unrolled
from toys import must_fail
from unrolled import VOCAB, Recorded, recorded, toy_shape

MASKS = ([0, 0, 1, 1, 0, 1, 1, 1], [0, 1, 1, 1], [0, 0, 0, 0], [0, 1, 1], [0, 1, 0, 0, 1, 0, 0], [1])
"""Answers in the middle, at the end, nowhere; a place that is only read; a text of one token."""
KINDS = [{"own_head": own, "layers": layers} for own in (False, True) for layers in (1, 2)]
HEADS = 3


def toy_heads(seed: int = 0, **changes: Any) -> MedusaHeads:
    """Blocks that leave enough of a state for the target's rows to say what it says, now and then."""
    shape = medusa_shape(hidden_size=8, vocab_size=VOCAB, **({"heads": HEADS} | changes))
    heads = random_medusa(shape, seed, torch.float64)
    for name, weight in heads.named_parameters():
        weight.data *= 0.3 if "linear" in name else 1
    return heads


def made(seed: int = 0, padding: int = 2) -> Recorded:
    """States of one text are somewhat alike, so that heads that are right are so at several places."""
    data = recorded(toy_shape(), MASKS, seed, padding)
    last = 0.8 * data.batch.last_normed[:, :1] + 0.6 * data.batch.last_normed
    logits = last @ data.rows.T
    argmax = logits.argmax(-1).where(data.batch.argmax >= 0, -7)
    return replace(data, batch=replace(data.batch, last_normed=last, argmax=argmax, logsumexp=logits.logsumexp(-1)))


def told(heads: MedusaHeads, data: Recorded, loss: str = "cross-entropy") -> Unrolled:
    return speak(heads, data.batch, Teacher(data.embeddings, data.rows), shared=data.rows, loss=loss)


# ---- the law ---------------------------------------------------------------------------------------------------------


def literally(heads: MedusaHeads, data: Recorded, loss: str) -> dict[str, Tensor]:
    """Every sum of ``StepCounts`` by head, from the weights by their published names."""
    batch, count = data.batch, heads.shape.heads
    names = ("losses", "places", "matches", "reached", "kept", "accepted")
    sums = {name: [torch.zeros((), dtype=torch.float64) for _ in range(count)] for name in names}
    pairs: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(count)]
    for row, length in enumerate(batch.lengths):
        for place in range(length):
            alive = True
            said = spoken_with_gradient(heads, batch.last_normed[row, place], data.rows)
            for number in range(count):
                token = place + 2 + number
                if token >= length or not bool(batch.loss_mask[row, token]):
                    alive = False
                    continue
                logits = data.rows @ batch.last_normed[row, token - 1]
                law, log = logits.softmax(0), said[number].log_softmax(0)
                right = int(log.argmax()) == int(law.argmax())
                value = -log[batch.ids[row, token]] if loss == HARD else -(law * log).sum()
                pairs[number].append((said[number], logits))
                for name, one in (
                    ("losses", value),
                    ("places", 1),
                    ("matches", right),
                    ("reached", alive),
                    ("kept", alive and right),
                    ("accepted", torch.minimum(law, log.exp()).sum().detach()),
                ):
                    sums[name][number] = sums[name][number] + one
                alive = alive and right
    if loss not in ("cross-entropy", HARD):
        for number, each in enumerate(pairs):
            own, laws = (torch.stack(parts) for parts in zip(*each, strict=True))
            ones = torch.ones(len(own), dtype=torch.float64)
            sums["losses"][number] = weighted_loss_plain(loss, own, laws, laws.logsumexp(-1), ones).total
    return {name: torch.stack(parts) for name, parts in sums.items()}


def spoken_with_gradient(heads: MedusaHeads, state: Tensor, rows: Tensor) -> list[Tensor]:
    """``medusas.spoken`` reads a copy of the weights; here they are the very parameters."""
    weights = dict(heads.named_parameters())
    original = heads.state_dict
    heads.state_dict = lambda: weights  # type: ignore[method-assign,assignment,misc]
    try:
        return spoken(heads, state, rows)
    finally:
        heads.state_dict = original  # type: ignore[method-assign]


def gradients(heads: MedusaHeads, losses: Tensor) -> tuple[Tensor, ...]:
    """Of a sum in which every head weighs otherwise."""
    weighed = (losses * torch.arange(1.0, 1 + len(losses), dtype=losses.dtype)).sum()
    return torch.autograd.grad(weighed, list(heads.parameters()), materialize_grads=True)


def case(loss: str = "cross-entropy", kind: dict[str, Any] | None = None, seed: int = 0) -> None:
    heads, data = toy_heads(seed, **(kind or {})), made(seed)
    found, expected = told(heads, data, loss), literally(heads, data, loss)
    assert found.ranks is None
    torch.testing.assert_close(found.losses, expected["losses"])
    for name, value in expected.items():
        torch.testing.assert_close(getattr(found.counts, name), value.detach())
    assert torch.equal(found.counts.weights, found.counts.places)
    assert torch.equal(found.counts.weights, weights_of(data.batch, HEADS))
    for ours, theirs in zip(gradients(heads, found.losses), gradients(heads, expected["losses"]), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("loss", ["cross-entropy", HARD, "forward-kl", "total-variation"])
def test_it_is_its_definition(loss: str, kind: dict[str, Any]) -> None:
    for seed in range(3):
        case(loss, kind, seed)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss(loss: str) -> None:
    case(loss)


def test_the_figures_are_lively() -> None:
    """What the tests above lean on: heads are right now and then, behind heads that are and that are not."""
    counts = StepCounts.none(HEADS)
    for seed in range(12):
        counts = counts + told(toy_heads(seed), made(seed)).counts
    assert bool((counts.kept[:2] > 0).all()) and bool((counts.matches > counts.kept)[1:].any())
    assert bool((counts.reached < counts.places)[1:].all()) and counts.places.tolist() == [108.0, 72.0, 48.0]


def test_the_objective_is_the_decayed_mean_of_each_head() -> None:
    found = told(toy_heads(), made())
    means = found.losses / found.counts.weights
    torch.testing.assert_close(found.objective(0.8), means[0] + 0.8 * means[1] + 0.64 * means[2])


def test_parts_add_up_to_the_whole() -> None:
    """Of texts that are read together and apart, each by the weights of all."""
    heads, data = toy_heads(own_head=True), made(padding=0)
    teacher, whole = Teacher(data.embeddings, data.rows), weights_of(data.batch, HEADS)
    parts = [one_row(data.batch, row) for row in range(len(MASKS))]
    told_apart = [speak(heads, part, teacher) for part in parts]
    together = told(heads, data)
    apart = sum(one.objective(0.8, whole) for one in told_apart)
    assert isinstance(apart, Tensor)
    torch.testing.assert_close(apart, together.objective(0.8))
    added = sum((one.counts for one in told_apart), StepCounts.none(HEADS))
    for name, value in vars(together.counts).items():
        torch.testing.assert_close(getattr(added, name), value)


def one_row(batch: Batch, row: int) -> Batch:
    grids = {name: grid[row : row + 1] for name, grid in vars(batch).items() if isinstance(grid, Tensor)}
    return replace(batch, **grids, lengths=[batch.lengths[row]])


def test_a_batch_that_teaches_nothing() -> None:
    """Zero with a gradient of zeros, so that every process takes part; nothing that is no number."""
    data = recorded(toy_shape(), ([0, 0, 0], [1, 1]), padding=1)
    for heads in (toy_heads(), toy_heads(own_head=True)):
        found = told(heads, data)
        assert found.objective() == 0 and not found.counts.weights.any()
        found.objective().backward()
        assert all(weight.grad is not None and not weight.grad.any() for weight in heads.parameters())


# ---- planted faults --------------------------------------------------------------------------------------------------

HONEST, SPOKEN = over_the_vocabulary, parallel.spoken_of


def beside(by: int) -> Callable[..., Any]:
    """The law of the place beside: each head is taught what the target says one place on, or back."""

    def fault(loss: str, hidden: Tensor, rows: Tensor, teacher: Any, last: Tensor, sums: Tensor, **more: Any) -> Any:
        return HONEST(loss, hidden, rows, teacher, last.roll(by, 0), sums.roll(by), **more)

    return fault


def one_further(batch: Batch, heads: int, kept: None) -> Tensor:
    """Planted: head i takes token t + 3 + i for its own."""
    return SPOKEN(batch, heads + 1)[1:]


def everywhere(batch: Batch, heads: int, kept: None) -> Tensor:
    """Planted: tokens of prompts count too."""
    return SPOKEN(replace(batch, loss_mask=torch.ones_like(batch.loss_mask)), heads)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("over_the_vocabulary", beside(1)),
        ("over_the_vocabulary", beside(-1)),
        ("spoken_of", one_further),
        ("spoken_of", everywhere),
    ],
)
def test_planted_faults(name: str, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, name, fault)
    with must_fail():
        case()


@pytest.mark.parametrize("loss", ["cross-entropy", HARD])
def test_heads_in_another_order_are_noticed(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: head i is taught what head i + 1 is for."""
    honest = MedusaHeads.states

    def rolled(self: MedusaHeads, *given: Any) -> Tensor:
        return honest(self, *given).roll(1, -2)

    monkeypatch.setattr(MedusaHeads, "states", rolled)
    with must_fail():
        case(loss)


# ---- the cross-entropy of the text's own token, and rows that are not trained ----------------------------------------


@given(count=st.integers(0, 9), at_once=st.integers(1, 10), seed=st.integers(0, 99))
@settings(max_examples=30)
def test_given_tokens_are_what_counts(count: int, at_once: int, seed: int) -> None:
    """Value and gradients of the plain cross-entropy, slice by slice; acceptance is that of the law all the same."""
    generator = torch.Generator().manual_seed(seed)
    hidden, rows, teaching, last = (
        torch.randn(size, 8, generator=generator, dtype=torch.float64) for size in (count, VOCAB, VOCAB, count)
    )
    tokens, teacher = torch.randint(VOCAB, (count,), generator=generator), Teacher(teaching, teaching)
    hidden.requires_grad_()
    rows.requires_grad_()
    given = hidden, rows, teacher, last, (last @ teaching.T).logsumexp(-1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distil, "LOGITS", at_once * VOCAB)
        fast = over_the_vocabulary("cross-entropy", *given, tokens)
    plain = nn.functional.cross_entropy(hidden @ rows.T, tokens, reduction="sum")
    soft = over_the_vocabulary_plain("cross-entropy", *given)
    torch.testing.assert_close(fast.total, plain)
    torch.testing.assert_close(fast.acceptance, soft.acceptance)
    assert torch.equal(fast.choices, soft.choices) and fast.weight == count
    found, expected = (torch.autograd.grad(3 * each, (hidden, rows)) for each in (fast.total, plain))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("loss", ["cross-entropy", HARD])
def test_rows_of_the_target_cost_no_gradient(loss: str) -> None:
    """Kept for the way back is no matrix as large as its rows; with rows of their own their gradient is kept."""
    kept: list[int] = []

    def count(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    data = recorded(toy_shape(), ([0, 0, 1, 1],))
    for own in (False, True):
        heads = toy_heads(own_head=own)
        kept.clear()
        with saved_tensors_hooks(count, lambda tensor: tensor):
            told(heads, data, loss)
        assert (max(kept) >= VOCAB * 8) == own and data.rows.grad is None


# ---- what they begin with --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [False, True])
def test_new_heads_say_what_the_target_says_of_the_token_before(own: bool) -> None:
    rows = torch.randn(VOCAB, 8, generator=torch.Generator().manual_seed(1))
    heads = new_heads(medusa_shape(hidden_size=8, vocab_size=VOCAB, own_head=own, layers=2), rows.bfloat16())
    state = torch.randn(5, 8, generator=torch.Generator().manual_seed(2))
    said = heads.logits(state, SharedHead.of_rows(rows.bfloat16().float()))
    torch.testing.assert_close(said, (state @ rows.bfloat16().float().T)[:, None].expand(-1, 4, -1))
    assert {weight.dtype for weight in heads.parameters()} == {torch.float32}
    assert all(weight.requires_grad for weight in heads.parameters())


@pytest.mark.parametrize(
    ("changes", "rows", "message"),
    [
        ({"hidden_size": 6}, VOCAB, "the recorded states are 8 wide; allowed: 6, as the heads read them"),
        ({}, VOCAB - 1, "the teacher has 12 rows of width 8; allowed: 13 of width 8, the whole head"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, int], rows: int, message: str) -> None:
    data = made()
    heads = MedusaHeads(medusa_shape(**({"hidden_size": 8, "vocab_size": VOCAB} | changes))).double()
    with pytest.raises(UsageError, match=message):
        speak(heads, data.batch, Teacher(data.embeddings, data.rows[:rows]), shared=data.rows)


def test_what_there_is_not_is_named() -> None:
    data = made()
    with pytest.raises(UsageError, match="the loss is 'soft'; allowed: cross-entropy"):
        told(toy_heads(), data, "soft")
    with pytest.raises(TypeError, match="were given no rows of the target's head"):
        speak(toy_heads(), data.batch, Teacher(data.embeddings, data.rows))


# ---- ranks -----------------------------------------------------------------------------------------------------------


def counted(heads: MedusaHeads, data: Recorded, depth: int) -> list[list[list[int]]]:
    """Behind each place, how many tokens are likelier than the text's own."""
    batch, found = data.batch, []
    for row, length in enumerate(batch.lengths):
        found.append([[0] * depth for _ in range(batch.ids.shape[1])])
        for place in range(length):
            said = spoken(heads, batch.last_normed[row, place], data.rows)
            for number in range(depth):
                token = place + 2 + number
                if token < length and bool(batch.loss_mask[row, token]):
                    order = said[number].argsort(descending=True).tolist()
                    found[row][place][number] = 1 + order.index(int(batch.ids[row, token]))
    return found


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("at_once", [1, 4, 1000])
def test_ranks_are_counted(depth: int, own: bool, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "LOGITS", at_once * VOCAB * depth)
    seen: set[int] = set()
    for seed in range(3):
        heads, data = toy_heads(seed, own_head=own), made(seed)
        shared = None if own else SharedHead.of_rows(data.rows)
        found = ranks_of(heads, shared, data.batch, depth)
        assert found == counted(heads, data, depth)
        seen |= {rank for text in found for steps in text for rank in steps}
    assert len(seen) > VOCAB // 2 and {0, 1} <= seen


def test_of_equal_logits_the_lower_id_comes_first() -> None:
    logits = torch.tensor([[[1.0, 3.0, 3.0, 0.0]] * 4, [[torch.nan] * 4] * 4])
    tokens = torch.tensor([[1, 2, 0, 3]] * 2)
    assert standing(logits, tokens).tolist() == [[1, 2, 3, 4], [5, 5, 5, 5]]
