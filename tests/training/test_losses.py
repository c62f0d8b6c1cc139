"""The losses: fast and plain forms agree, both say what their names promise over the whole vocabulary."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from outpace.errors import UsageError
from outpace.training import losses as module
from outpace.training.losses import (
    BETAS,
    ETA,
    LOSSES,
    PLAIN,
    WeightedLoss,
    jensen_shannon,
    require_loss,
    weighted_loss,
    weighted_loss_plain,
)
from outpace.verification.expectation import acceptance

WHOLE = 17
IDS = torch.tensor([0, 2, 3, 7, 8, 11, 16])
JSD = [f"jsd-{beta}" for beta in BETAS]


class Rows:
    """Draft logits over seven ids of seventeen, the target's over all; float64."""

    def __init__(self, *lead: int, seed: int = 0, spread: float = 2.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.draft = spread * torch.randn(*lead, len(IDS), generator=generator, dtype=torch.float64)
        self.all = spread * torch.randn(*lead, WHOLE, generator=generator, dtype=torch.float64)
        self.draft.requires_grad_()
        self.target, self.sums = self.all[..., IDS], self.all.logsumexp(-1)
        self.weights = torch.rand(lead, generator=generator, dtype=torch.float64)

    def fast(self, name: str, weights: Tensor | None = None) -> WeightedLoss:
        return weighted_loss(name, self.draft, self.target, self.sums, self.weights if weights is None else weights)

    def plain(self, name: str, weights: Tensor | None = None) -> WeightedLoss:
        given = self.weights if weights is None else weights
        return weighted_loss_plain(name, self.draft, self.target, self.sums, given)

    def gradient(self, found: WeightedLoss) -> Tensor:
        return torch.autograd.grad(found.total, self.draft, retain_graph=True)[0]

    @property
    def laws(self) -> tuple[Tensor, Tensor]:
        """Target's and draft's over the whole vocabulary."""
        draft = torch.zeros_like(self.all).index_copy(-1, IDS, self.draft.softmax(-1))
        return self.all.softmax(-1), draft


@given(
    name=st.sampled_from(LOSSES),
    lead=st.sampled_from([(1,), (5,), (2, 3), (0,)]),
    rows_at_once=st.integers(1, 6),
    spread=st.sampled_from([0.1, 2.0, 30.0]),
    silent=st.sets(st.integers(0, 5)),
    seed=st.integers(0, 999),
)
@settings(max_examples=100)
def test_the_fast_form_is_the_plain_one(
    name: str, lead: tuple[int, ...], rows_at_once: int, spread: float, silent: set[int], seed: int
) -> None:
    """Values, gradients, acceptance and choices, however many rows are taken at once."""
    rows = Rows(*lead, seed=seed, spread=spread)
    rows.weights.view(-1)[[place for place in silent if place < rows.weights.numel()]] = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ELEMENTS", {"cpu": rows_at_once * len(IDS)})
        fast = rows.fast(name)
    plain = rows.plain(name)
    # rounding of float64 at values up to some hundreds
    torch.testing.assert_close(fast.total, plain.total, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(rows.gradient(fast), rows.gradient(plain), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(fast.acceptance, plain.acceptance)
    assert torch.equal(fast.choices, plain.choices) and torch.equal(fast.weight, plain.weight)


@pytest.mark.parametrize("name", PLAIN)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    """Not the hybrid's: its blend follows the acceptance without being differentiated."""
    rows = Rows(4, seed=1)
    assert torch.autograd.gradcheck(
        lambda draft: weighted_loss(name, draft, rows.target, rows.sums, rows.weights).total, (rows.draft,)
    )


# ---- what the names promise ------------------------------------------------------------------------------------------


def each(rows: Rows, name: str) -> Tensor:
    """One value a row."""
    return PLAIN[name](rows.draft, rows.target, rows.sums).detach()


def mixture_divergence(target: Tensor, draft: Tensor, beta: float) -> Tensor:
    """Of two laws over the whole vocabulary, by definition; what neither says brings nothing."""
    mixed = beta * target + (1 - beta) * draft
    terms = ((share * law * (law / mixed).log()).nan_to_num(0.0) for share, law in ((beta, target), (1 - beta, draft)))
    return sum(term.sum(-1) for term in terms)


def broken_promises(rows: Rows) -> set[str]:
    """The losses whose values are not what their definition over the whole vocabulary gives."""
    target, draft = (law.detach() for law in rows.laws)
    inside = target[..., IDS] / target[..., IDS].sum(-1, keepdim=True)
    said, overlap = draft[..., IDS], acceptance(target, draft)
    expected = {
        "cross-entropy": -(inside * said.log()).sum(-1),
        "forward-kl": (inside * (inside / said).log()).sum(-1),
        "reverse-kl": (said * (said / target[..., IDS]).log()).sum(-1),
        "total-variation": (target - draft).abs().sum(-1) / 2,
        "log-acceptance": -overlap.log(),
        **{f"jsd-{beta}": mixture_divergence(target, draft, beta) for beta in BETAS},
    }
    broken = {name for name, values in expected.items() if not torch.allclose(each(rows, name), values)}
    return broken if torch.allclose(rows.fast("forward-kl").acceptance, overlap) else broken | {"acceptance"}


def test_every_loss_is_its_definition_over_the_whole_vocabulary() -> None:
    assert broken_promises(Rows(20, seed=2)) == set()


def test_a_law_renormalised_on_the_draft_vocabulary_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what the target says outside is forgotten, so that nothing of it counts as rejected."""
    monkeypatch.setattr(module, "_true", lambda logits, sums: logits.log_softmax(-1))
    assert broken_promises(Rows(20, seed=2)) == {"reverse-kl", "total-variation", "log-acceptance", *JSD}


def test_what_is_outside_of_the_draft_vocabulary_is_rejected() -> None:
    rows = Rows(20, seed=3)
    inside = rows.laws[0][..., IDS].sum(-1)
    found = rows.fast("total-variation")
    assert (found.acceptance < inside + 1e-12).all() and (inside < 1).all()
    perfect = weighted_loss("total-variation", rows.target, rows.target, rows.sums, torch.ones(20).double())
    torch.testing.assert_close(perfect.acceptance, inside)


def test_a_perfect_draft_of_the_whole_vocabulary_loses_nothing() -> None:
    logits = Rows(6).all
    for name in LOSSES:
        if name != "cross-entropy":
            found = weighted_loss(name, logits, logits, logits.logsumexp(-1), torch.ones(6).double())
            assert abs(float(found.total)) < 1e-12, name


def test_cross_entropy_and_forward_kl_have_one_gradient() -> None:
    rows = Rows(9)
    torch.testing.assert_close(rows.gradient(rows.fast("cross-entropy")), rows.gradient(rows.fast("forward-kl")))
    assert rows.fast("cross-entropy").total > rows.fast("forward-kl").total > 0


def test_the_hybrid_follows_the_mean_acceptance_of_its_rows() -> None:
    rows = Rows(9)
    mean = float((rows.fast("forward-kl").acceptance * rows.weights).sum() / rows.weights.sum())
    blend = torch.tensor(-ETA * mean).exp().double()
    parts = rows.fast("forward-kl").total, rows.fast("total-variation").total
    torch.testing.assert_close(rows.fast("lk-hybrid").total, blend * parts[0] + (1 - blend) * parts[1])
    gradient = blend * rows.gradient(rows.fast("forward-kl")) + (1 - blend) * rows.gradient(
        rows.fast("total-variation")
    )
    torch.testing.assert_close(rows.gradient(rows.fast("lk-hybrid")), gradient)


def test_a_given_acceptance_is_what_the_hybrid_follows() -> None:
    """So that a sum may be taken in parts: with the acceptance of the whole, they add up to the whole."""
    rows = Rows(9)
    mean = (rows.fast("forward-kl").acceptance * rows.weights).sum() / rows.weights.sum()

    def part(places: slice, acceptance: Tensor | None) -> Tensor:
        given = rows.draft[places], rows.target[places], rows.sums[places], rows.weights[places]
        return weighted_loss("lk-hybrid", *given, acceptance).total

    whole, cuts = rows.fast("lk-hybrid").total, (slice(0, 4), slice(4, 9))
    torch.testing.assert_close(part(cuts[0], mean) + part(cuts[1], mean), whole)
    assert not torch.isclose(part(cuts[0], None) + part(cuts[1], None), whole)


def test_mixtures_lead_from_one_divergence_to_the_other() -> None:
    """Of the whole vocabulary: jsd over beta goes to KL(target, draft), over 1 - beta to KL(draft, target)."""
    rows = Rows(20, seed=5, spread=1.0)
    draft, target = Rows(20, seed=6, spread=1.0).all, rows.all
    forward, reverse, none = PLAIN["forward-kl"], PLAIN["reverse-kl"], target.logsumexp(-1)

    def near(beta: float) -> Tensor:
        return jensen_shannon(draft, target, none, beta)

    torch.testing.assert_close(near(1e-6) / 1e-6, forward(draft, target, none), rtol=1e-3, atol=0)
    torch.testing.assert_close(near(1 - 1e-6) / 1e-6, reverse(draft, target, none), rtol=1e-3, atol=0)
    swapped = jensen_shannon(target, draft, draft.logsumexp(-1), 0.3)
    torch.testing.assert_close(near(0.7), swapped)
    assert (near(0.5) > 0).all() and (near(0.5) < torch.tensor(2.0).log()).all()


@pytest.mark.parametrize("name", LOSSES)
def test_going_down_each_loss_raises_the_acceptance(name: str) -> None:
    rows = Rows(30, seed=4)
    ones = torch.ones(30, dtype=torch.float64)
    before = rows.fast(name, ones).acceptance
    for _ in range(300):
        gradient = rows.gradient(rows.fast(name, ones))
        with torch.no_grad():
            rows.draft -= gradient
    inside = rows.laws[0][..., IDS].sum(-1)
    after = rows.fast(name, ones).acceptance
    assert (inside - after).sum() < 0.5 * (inside - before).sum() and (after > before - 0.01).all()


# ---- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOSSES)
def test_rows_without_weight_bring_nothing_whatever_they_hold(name: str) -> None:
    rows, alone = Rows(6), Rows(6)
    kept = torch.tensor([True, False, True, False, True, False])
    rows.weights[~kept] = 0
    with torch.no_grad():
        rows.draft[1], rows.target[3], rows.sums[5] = torch.nan, -torch.inf, torch.inf
    for attribute in ("target", "sums", "weights"):
        setattr(alone, attribute, getattr(alone, attribute)[kept])
    alone.draft = alone.draft.detach()[kept].requires_grad_()
    found, expected = rows.fast(name), alone.fast(name)
    torch.testing.assert_close(found.total, expected.total)
    gradient = rows.gradient(found)
    assert not gradient[~kept].any()
    torch.testing.assert_close(gradient[kept], alone.gradient(expected))


@pytest.mark.parametrize("name", LOSSES)
def test_a_batch_without_weight_is_zero_and_no_number_is_lost(name: str) -> None:
    rows = Rows(4)
    for found in (rows.fast(name, torch.zeros(4).double()), rows.plain(name, torch.zeros(4).double())):
        assert found.total == found.weight == 0
        assert not rows.gradient(found).any()


def test_a_row_that_is_no_number_is_not_hidden() -> None:
    """The caller skips and counts it; a loss that swallowed it would train on."""
    rows = Rows(4)
    with torch.no_grad():
        rows.draft[2, 1] = torch.nan
    assert all(rows.fast(name).total.isnan() for name in LOSSES)


@pytest.mark.parametrize("name", ["cross-entropy", "forward-kl", "total-variation", "log-acceptance", *JSD])
def test_ids_that_the_target_forbids_cost_no_numbers(name: str) -> None:
    rows = Rows(4)
    rows.target[:, 3] = -torch.inf
    found = rows.fast(name)
    assert found.total.isfinite() and rows.gradient(found).isfinite().all()
    assert (rows.gradient(found)[:, 3] >= 0).all()


def test_an_acceptance_too_small_for_a_number_still_has_a_way_up() -> None:
    """In fp32 the overlap is 0; its logarithm is not, and the gradient asks for the target's id."""
    draft = torch.tensor([[200.0, 0.0, 0.0]], requires_grad=True)
    target = torch.tensor([[0.0, 200.0, 0.0]])
    found = weighted_loss("log-acceptance", draft, target, target.logsumexp(-1), torch.ones(1))
    (gradient,) = torch.autograd.grad(found.total, draft)
    assert float(found.acceptance) == 0 and 190 < float(found.total.detach()) < 210
    torch.testing.assert_close(gradient, torch.tensor([[1.0, -1.0, 0.0]]) / 3)


# ---- precision, memory, names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOSSES)
def test_bf16_logits_are_reckoned_in_fp32(name: str) -> None:
    """Their gradient alone is rounded to bf16: by one part in 256."""
    rows = Rows(50, spread=1.0)
    rough = rows.draft.detach().bfloat16().requires_grad_()
    exact = rough.detach().double().requires_grad_()
    target = rows.target.bfloat16()
    found = weighted_loss(name, rough, target, rows.sums.float(), rows.weights.float())
    rows.draft, rows.target = exact, target.double()
    expected = rows.plain(name)
    assert found.total.dtype == found.acceptance.dtype == torch.float32
    torch.testing.assert_close(found.total.double(), expected.total, rtol=1e-5, atol=0)
    gradient = torch.autograd.grad(found.total, rough)[0]
    torch.testing.assert_close(gradient.double(), rows.gradient(expected), rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_one_number_a_logit_is_kept_for_the_way_back(name: str) -> None:
    rows = Rows(40)
    kept: list[int] = []

    def count(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with saved_tensors_hooks(count, lambda tensor: tensor):
        fast = rows.fast(name)
        ours, kept = sum(kept), []
        rows.plain(name)
    assert ours <= rows.draft.numel() + 40 < sum(kept)
    assert fast.total.requires_grad and not fast.acceptance.requires_grad


def test_no_gradient_is_worked_out_where_none_is_wanted() -> None:
    rows = Rows(4)
    with torch.no_grad():
        assert not rows.fast("lk-hybrid").total.requires_grad
    fixed: Any = weighted_loss("cross-entropy", rows.draft.detach(), rows.target, rows.sums, rows.weights)
    assert not fixed.total.requires_grad and fixed.total == rows.fast("cross-entropy").total


def test_an_unknown_loss_is_refused_by_name() -> None:
    said = (
        "the loss is 'mse'; allowed: cross-entropy, forward-kl, reverse-kl, total-variation, log-acceptance, "
        "jsd-0.1, jsd-0.5, jsd-0.9, lk-hybrid"
    )
    for refusing in (lambda: Rows(1).fast("mse"), lambda: Rows(1).plain("mse"), lambda: require_loss("mse")):
        with pytest.raises(UsageError) as error:
            refusing()
        assert error.value.message == said
