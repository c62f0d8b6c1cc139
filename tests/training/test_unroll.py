"""A training-time test gives what drafting behind every prefix gives: values, counts and gradients, in float64."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outpace.drafters.head import Head, HeadShape
from outpace.errors import UsageError
from outpace.training import unroll as module
from outpace.training.batch import Batch
from outpace.training.teacher import Teacher
from outpace.training.unroll import unroll, weights_of
from unrolled import VOCAB, Recorded, gradients, recorded, simulated, toy_head, toy_shape, walked

NEAR = 1e-9
"""Sums of some hundred numbers of order 1 in float64: rounding is a thousand times smaller, any fault far larger."""

MASKS = ([0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 0, 0, 1], [1, 1, 1, 1])
FUSIONS = ({}, {"norm_before_fc": True}, {"fc_norm": True})
COMBINATIONS = [
    {"norm_before_residual": residual, "norm_output": output} | fusion
    for residual, output, fusion in itertools.product((False, True), (False, True), FUSIONS)
]
SHARES = torch.tensor([1.0, 0.8, 0.64, 0.512], dtype=torch.float64)


def told(head: Head, sums: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sums by name, and the gradients of all losses together."""
    found = gradients(head, (sums["losses"] * SHARES[: len(sums["losses"])]).sum())
    return found | {name: each.detach() for name, each in sums.items()}


def fast(head: Head, made: Recorded, steps: int = 4, **options: Any) -> dict[str, Tensor]:
    found = unroll(head, made.batch, made.teacher(head), steps=steps, **options)
    return told(head, vars(found.counts) | {"losses": found.losses})


def slow(head: Head, made: Recorded, steps: int = 4, **options: Any) -> dict[str, Tensor]:
    return told(head, simulated(head, made, steps, **options))


def difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The largest distance between two of them."""
    return max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)


@pytest.mark.parametrize(
    "flags", COMBINATIONS, ids=lambda flags: "+".join(k for k, on in flags.items() if on) or "none"
)
def test_every_combination_of_flags_is_the_literal_simulation(flags: dict[str, bool]) -> None:
    shape = toy_shape(**flags)
    head, made = toy_head(shape, seed=1), recorded(shape, MASKS, padding=2)
    assert difference(fast(head, made), slow(head, made)) < NEAR


@given(
    flags=st.sampled_from(COMBINATIONS),
    heads=st.sampled_from([(1, 1), (2, 2), (4, 2), (3, 1)]),
    sizes=st.tuples(st.sampled_from([2, 4, 6]), st.sampled_from([4, 5, 8]), st.sampled_from([5, 8]), st.integers(1, 4)),
    draft=st.integers(1, VOCAB),
    texts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=7), min_size=1, max_size=3),
    choice=st.tuples(st.integers(1, 4), st.sampled_from(["cross-entropy", "total-variation"]), st.booleans()),
    seed=st.integers(0, 999),
)
@settings(max_examples=40)
def test_any_head_and_any_batch_is_the_literal_simulation(
    flags: dict[str, bool],
    heads: tuple[int, int],
    sizes: tuple[int, int, int, int],
    draft: int,
    texts: list[list[int]],
    choice: tuple[int, str, bool],
    seed: int,
) -> None:
    width, hidden, target, taps = sizes
    shape = toy_shape(
        heads=heads[0],
        kv_heads=heads[1],
        head_width=width,
        hidden_size=hidden,
        target_hidden_size=target,
        taps=tuple(range(taps)),
        draft_vocab_size=draft,
        **flags,
    )
    steps, loss, mask_outside = choice
    head, made = toy_head(shape, seed), recorded(shape, texts, seed, padding=seed % 3)
    options = {"steps": steps, "loss": loss, "mask_outside": mask_outside}
    assert difference(fast(head, made, **options), slow(head, made, **options)) < NEAR


# ---- planted faults --------------------------------------------------------------------------------------------------


def attending(change: Any) -> Any:
    """Attention that is given something else."""
    honest = module.attend
    return lambda queries, keys, values, later, spans: honest(queries, *change(keys, values, later), spans)


def detached(pairs: Any) -> list[tuple[Tensor, Tensor]]:
    return [(key.detach(), value.detach()) for key, value in pairs]


def fused_again(head: Head, out: Tensor) -> Tensor:
    return head.fuse(torch.stack([out] * len(head.shape.taps), -2))


FAULTS: dict[str, tuple[Any, str, Any]] = {
    "the mask one place early": (module, "_ahead", lambda grid, by, honest=module._ahead: honest(grid, by - 1)),
    "the mask one place late": (module, "_ahead", lambda grid, by, honest=module._ahead: honest(grid, by + 1)),
    "the position stands still": (
        module._Places,
        "positions",
        lambda places, step: (places.asked if step else places.read) % places.time,
    ),
    "the tokens stand still": (
        module._Places,
        "tokens",
        lambda places, step: (places.asked if step else places.read) + 1,
    ),
    "fused once more": (Head, "feed", fused_again),
    "the output is fed on normed": (Head, "feed", lambda head, out: head.norm(out)),
    "states are detached": (Head, "feed", lambda head, out: out.detach()),
    "keys of later steps are detached": (
        module,
        "attend",
        attending(lambda keys, values, later: (keys, values, detached(later))),
    ),
    "keys of step 0 are detached": (
        module,
        "attend",
        attending(lambda keys, values, later: (keys.detach(), values.detach(), later)),
    ),
    "only the last step's key is seen": (
        module,
        "attend",
        attending(lambda keys, values, later: (keys, values, later[-1:])),
    ),
    "steps before this one are not seen": (
        module,
        "attend",
        attending(lambda keys, values, later: (keys, values, [])),
    ),
    "the law of the place before": (
        Teacher,
        "logits",
        lambda teacher, last: last.roll(1, 0).to(teacher.rows.dtype) @ teacher.rows.T,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = toy_shape()
    head, made = toy_head(shape, seed=1), recorded(shape, MASKS)
    honest = slow(head, made)
    assert difference(fast(head, made), honest) < NEAR
    monkeypatch.setattr(*FAULTS[fault])
    assert difference(fast(head, made), honest) > 1e-2


# ---- which places ----------------------------------------------------------------------------------------------------


def pairs(batch: Batch, steps: int) -> list[list[tuple[int, int]]]:
    """By step: the place whose features are read, and that of the token spoken of."""
    places = module._Places.of(batch, steps)
    return [
        [(int(at), int(at) + 2 + step) for at in places.asked[some]] for step, (some, _) in enumerate(places.spoken)
    ]


def test_the_mask_is_that_of_the_token_spoken_of() -> None:
    """Four tokens of prompt, four of answer, two of padding: typed by hand."""
    made = recorded(toy_shape(), [[0, 0, 0, 0, 1, 1, 1, 1]], padding=2)
    assert pairs(made.batch, 4) == [
        [(2, 4), (3, 5), (4, 6), (5, 7)],
        [(1, 4), (2, 5), (3, 6), (4, 7)],
        [(0, 4), (1, 5), (2, 6), (3, 7)],
        [(0, 5), (1, 6), (2, 7)],
    ]


def test_a_step_reads_its_own_token_at_its_own_position() -> None:
    places = module._Places.of(recorded(toy_shape(), [[0, 0, 0, 1, 1, 1]]).batch, 3)
    assert places.read.tolist() == places.asked.tolist() == [0, 1, 2, 3]
    assert [places.positions(step).tolist() for step in range(3)] == [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]
    assert [places.tokens(step).tolist() for step in range(3)] == [[1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 5]]


def one_by_one(made: Recorded) -> list[Batch]:
    """Each text of a batch in a batch of its own, unpadded."""
    batch = made.batch
    alone = []
    for row, length in enumerate(batch.lengths):
        cut = [
            grid[row : row + 1, :length]
            for grid in (batch.ids, batch.loss_mask, batch.features, batch.last_normed, batch.argmax, batch.logsumexp)
        ]
        alone.append(Batch(*cut, [length]))
    return alone


def test_a_text_is_worth_the_same_alone_in_a_batch_and_padded() -> None:
    shape = toy_shape()
    head = toy_head(shape)
    made, wide = recorded(shape, MASKS), recorded(shape, MASKS[:1], padding=50)
    teacher = made.teacher(head)
    whole, parts = unroll(head, made.batch, teacher), [unroll(head, part, teacher) for part in one_by_one(made)]
    torch.testing.assert_close(sum(part.losses for part in parts), whole.losses)
    together = parts[0].counts + parts[1].counts + parts[2].counts
    for name, sums in vars(whole.counts).items():
        torch.testing.assert_close(vars(together)[name], sums)
    (narrow,) = one_by_one(wide)
    padded, bare = (unroll(head, batch, wide.teacher(head)).losses for batch in (wide.batch, narrow))
    assert torch.equal(padded, bare)
    ours, theirs = gradients(head, padded.sum()), gradients(head, bare.sum())
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_parts_divided_by_the_weights_of_the_whole_add_up_to_it() -> None:
    """Accumulating over parts of unequal weight equals one step over all of them; dividing each by its own does not."""
    shape = toy_shape()
    head, made = toy_head(shape), recorded(shape, MASKS)
    teacher, parts = made.teacher(head), one_by_one(made)
    whole = unroll(head, made.batch, teacher)
    weights = weights_of(made.batch, head.target_ids)
    assert torch.equal(weights, whole.counts.weights)
    assert torch.equal(weights, sum(weights_of(part, head.target_ids) for part in parts))
    objectives = [unroll(head, part, teacher) for part in parts]
    summed = gradients(head, sum(part.objective(weights=weights) for part in objectives))
    for name, gradient in gradients(head, whole.objective()).items():
        torch.testing.assert_close(summed[name], gradient)
    assert not torch.allclose(sum(part.objective() for part in objectives) / 3, whole.objective())
    losses = whole.losses.detach() / weights
    expected = losses[0] + 0.5 * losses[1] + 0.25 * losses[2] + 0.125 * losses[3]
    torch.testing.assert_close(whole.objective(0.5).detach(), expected)


def test_a_text_without_answers_changes_nothing() -> None:
    """Not a bit of it, although its features are no numbers; nor what stands behind the ends."""
    shape = toy_shape()
    head = toy_head(shape)
    with_idle = recorded(shape, [*MASKS, [0] * 7, [1, 1]], padding=1)
    with_idle.batch.features[3:] = torch.nan
    with_idle.batch.last_normed[3:] = torch.nan
    kept = with_idle.batch
    grids = (kept.ids, kept.loss_mask, kept.features, kept.last_normed, kept.argmax, kept.logsumexp)
    without = Batch(*(grid[:3] for grid in grids), kept.lengths[:3])
    teacher = with_idle.teacher(head)
    found, expected = (unroll(head, batch, teacher) for batch in (kept, without))
    assert torch.equal(found.losses, expected.losses)
    ours, theirs = gradients(head, found.losses.sum()), gradients(head, expected.losses.sum())
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert float(expected.losses.sum().detach()) > 1


@pytest.mark.parametrize("masks", [[[0] * 6, [0] * 3], [[1, 1]], [[1]]])
def test_a_batch_without_any_answer_is_nothing_and_no_error(masks: list[list[int]]) -> None:
    shape = toy_shape()
    head, made = toy_head(shape), recorded(shape, masks)
    found = unroll(head, made.batch, made.teacher(head), steps=3)
    found.objective().backward()
    assert found.losses.tolist() == found.counts.weights.tolist() == [0, 0, 0]
    assert all(weight.grad is not None and not weight.grad.any() for weight in head.parameters())
    assert found.counts.tau is None and found.counts.loss == (None, None, None)
    assert torch.equal(weights_of(made.batch, head.target_ids, steps=3), found.counts.weights)


def test_places_that_the_head_cannot_speak_of_weigh_nothing_but_are_counted_as_wrong() -> None:
    shape = toy_shape(draft_vocab_size=3)
    head, made = toy_head(shape), recorded(shape, [[0, 1, 1, 1, 1, 1, 1, 1]] * 3)
    teacher = made.teacher(head)
    masked, plain = (unroll(head, made.batch, teacher, mask_outside=on).counts for on in (True, False))
    assert torch.equal(masked.places, plain.places) and torch.equal(plain.weights, plain.places)
    assert 0 < masked.weights[0] < masked.places[0] and torch.equal(masked.matches, plain.matches)
    assert torch.equal(weights_of(made.batch, head.target_ids, mask_outside=False), plain.weights)
    assert (masked.matches <= masked.weights).all()


# ---- lower precision, memory, refusals -------------------------------------------------------------------------------


def test_matrices_in_bf16_follow_the_exact_ones() -> None:
    """Norms, attention and losses stay in fp32: bf16 rounds to one part in 256, here some thirty times in a row."""
    shape = toy_shape(hidden_size=32, target_hidden_size=32, heads=4, kv_heads=2, head_width=8)
    made = recorded(shape, MASKS)
    exact, rough = toy_head(shape), toy_head(shape)
    for layer in rough.modules():
        layer.to(torch.bfloat16 if isinstance(layer, torch.nn.Linear) else torch.float32)
    found, expected = unroll(rough, made.batch, made.teacher(rough)), unroll(exact, made.batch, made.teacher(exact))
    assert found.losses.dtype == torch.float32
    torch.testing.assert_close(found.losses.double(), expected.losses, rtol=0.05, atol=0)
    ours, theirs = gradients(rough, found.objective()), gradients(exact, expected.objective())
    for name, gradient in theirs.items():
        assert torch.cosine_similarity(ours[name].double().flatten(), gradient.flatten(), 0) > 0.98, name


def test_under_autocast_only_the_heads_matrices_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention and the target's law stay in fp32, going back too."""
    shape = toy_shape(hidden_size=32, target_hidden_size=32, heads=4, kv_heads=2, head_width=8)
    made = recorded(shape, MASKS)
    head, rough = toy_head(shape).float(), toy_head(shape)
    for layer in rough.modules():
        layer.to(torch.bfloat16 if isinstance(layer, torch.nn.Linear) else torch.float32)
    teacher = Teacher(made.teacher(head).embeddings.float(), made.teacher(head).rows)

    def shares() -> tuple[Tensor, dict[str, Tensor]]:
        with torch.autocast("cpu", torch.bfloat16):
            found = unroll(head, made.batch, teacher)
            return found.losses.detach(), gradients(head, found.objective())

    expected = unroll(rough, made.batch, teacher)
    losses, found = shares()
    torch.testing.assert_close(losses, expected.losses.detach(), rtol=1e-3, atol=0)
    for name, gradient in gradients(rough, expected.objective()).items():
        assert torch.cosine_similarity(found[name].flatten(), gradient.float().flatten(), 0) > 0.995, name
    kept: list[Tensor] = []
    honest = module.attend
    monkeypatch.setattr(module, "attend", lambda *given: kept.append(honest(*given)) or kept[-1])
    shares()
    assert len(kept) == 4 and {out.dtype for out in kept} == {torch.float32}


def test_no_gradient_is_worked_out_where_none_is_wanted() -> None:
    shape = toy_shape()
    head, made = toy_head(shape), recorded(shape, MASKS)
    with torch.no_grad():
        quiet = unroll(head, made.batch, made.teacher(head))
    assert not quiet.losses.requires_grad
    assert torch.equal(quiet.losses, unroll(head, made.batch, made.teacher(head)).losses.detach())


def test_the_target_is_not_trained() -> None:
    shape = toy_shape()
    head, made = toy_head(shape), recorded(shape, MASKS)
    made.rows.requires_grad_()
    unroll(head, made.batch, made.teacher(head)).objective().backward()
    assert made.rows.grad is None


def test_a_head_of_another_width_trains_its_own_embeddings() -> None:
    shape = toy_shape(hidden_size=6)
    head, made = toy_head(shape), recorded(shape, MASKS)
    unroll(head, made.batch, made.teacher(head)).objective().backward()
    assert head.embed_tokens is not None and head.embed_tokens.weight.grad.abs().max() > 0.001


def refused(shape: HeadShape, made: Recorded, teacher: Teacher | None = None, **options: Any) -> str:
    head = toy_head(shape)
    with pytest.raises(UsageError) as error:
        unroll(head, made.batch, teacher or made.teacher(head), **options)
    return error.value.message


def test_what_does_not_fit_is_refused_by_name() -> None:
    shape, made = toy_shape(), recorded(toy_shape(), MASKS)
    assert refused(shape, made, steps=0) == "a training-time test of 0 steps; allowed: 1 or more"
    assert refused(shape, made, loss="mse").startswith("the loss is 'mse'; allowed: cross-entropy, ")
    short = replace(shape, max_positions=6)
    assert refused(short, made) == "a text has 7 tokens; allowed: up to the 6 positions of the head"
    taps = replace(shape, taps=(0, 2))
    assert refused(taps, made) == "the features are 3 taps of width 8; the head reads 2 of 8"
    rows = Teacher(made.embeddings, made.rows)
    said = "the teacher has 13 rows of width 8; the head says 9 ids, and its target's width is 8"
    assert refused(shape, made, rows) == said


def test_a_batch_is_refused_whose_lengths_do_not_fit() -> None:
    batch = recorded(toy_shape(), MASKS).batch
    with pytest.raises(UsageError, match="a batch of 3 texts has 2 lengths; allowed: one for each"):
        replace(batch, lengths=[7, 6])
    for wrong in (0, 8):
        with pytest.raises(UsageError, match=f"a text of a batch has length {wrong}; allowed: 1 to 7"):
            replace(batch, lengths=[7, wrong, 4])


def test_the_toys_are_lively() -> None:
    """Drafts that hardly depend on what they read would let faults pass."""
    shape = toy_shape()
    head, made = toy_head(shape, seed=1), recorded(shape, MASKS)
    with torch.no_grad():
        logits = torch.stack(walked(head, made.embeddings, made.batch.ids[0], made.batch.features[0], 2, 4))
    assert logits.std() > 0.5 and (logits[1:] - logits[:1]).abs().max() > 0.5
