"""Laws compared on some ids: those that are drawn stand for all others, and nothing is measured on them.

Where chance is drawn at all it is named by a seed that is written here, so that nothing can raise a false alarm.
"""

import math
from collections import Counter
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from lessons import samples_of, student
from outpace.errors import UsageError
from outpace.models.ends import read_ends
from outpace.training import distil as module
from outpace.training.batch import Batch
from outpace.training.distil import over_the_vocabulary, over_the_vocabulary_plain
from outpace.training.features import online
from outpace.training.losses import LOSSES, weighted_loss_plain
from outpace.training.recipe import Recipe
from outpace.training.sampled import DRAWN, Some, Vocabulary, WholeLesson
from outpace.training.teacher import Teacher
from together import lesson_of, settings_of
from toys import must_fail

SIZE, WIDTH = 12, 5
KEPT = torch.tensor([1, 4, 7])
OTHERS = [one for one in range(SIZE) if one not in KEPT]
STEPS = 400


def noise(seed: int, *sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Places:
    """States at some places, and the rows of both sides."""

    def __init__(self, count: int = 6) -> None:
        self.hidden, self.rows = noise(1, count, WIDTH), noise(2, SIZE, WIDTH)
        self.last, self.teacher = noise(3, count, WIDTH), Teacher(noise(4, SIZE, WIDTH), noise(5, SIZE, WIDTH))
        self.sums = self.teacher.logits(self.last).logsumexp(-1)
        self.hidden.requires_grad_()
        self.rows.requires_grad_()

    @property
    def given(self) -> tuple[Any, ...]:
        return self.hidden, self.rows, self.teacher, self.last, self.sums

    def gradients(self, total: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(total, (self.hidden, self.rows))


def some_of(drawn: tuple[int, ...]) -> Some:
    """The kept ids and these, each of which stands for as many of the others."""
    ids = torch.tensor(sorted([*KEPT.tolist(), *drawn]))
    shift = torch.where(torch.isin(ids, KEPT), 0.0, math.log(len(OTHERS) / len(drawn)))
    return Some(ids, shift.double())


# ---- the loss --------------------------------------------------------------------------------------------------------


def by_definition(loss: str, seed: int = 0) -> None:
    """Both laws written out on these ids; rows of other ids get no gradient, and no id is a choice for what it stands
    for."""
    made, some = Places(), some_of((0, 5, 9))
    found = over_the_vocabulary(loss, *made.given, some=some)
    said = made.hidden @ made.rows[some.ids].T
    law = made.teacher.logits(made.last)[:, some.ids] + some.shift
    plain = weighted_loss_plain(loss, said + some.shift, law, made.sums, torch.ones(6, dtype=torch.float64))
    torch.testing.assert_close(found.total, plain.total)
    torch.testing.assert_close(found.acceptance, plain.acceptance)
    assert torch.equal(found.choices, some.ids[said.argmax(-1)])
    assert not torch.equal(found.choices, some.ids[(said + some.shift).argmax(-1)]), "the cases have to tell"
    ours, theirs = made.gradients(found.total), made.gradients(plain.total)
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-7, atol=1e-9)
    rest = [one for one in range(SIZE) if one not in some.ids]
    assert not ours[1][rest].any() and ours[1][some.ids].any()


@pytest.mark.parametrize("loss", LOSSES)
def test_it_is_its_definition(loss: str) -> None:
    by_definition(loss)


def test_choices_by_what_ids_stand_for_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: the likeliest of the shifted logits."""
    shift = some_of((0, 5, 9)).shift
    monkeypatch.setattr(module, "argmax", lambda said: ((said + shift).argmax(-1), said))
    with must_fail():
        by_definition("cross-entropy")


@pytest.mark.parametrize("loss", LOSSES)
def test_all_ids_without_a_shift_are_the_whole(loss: str) -> None:
    made, every = Places(), Some(torch.arange(SIZE), torch.zeros(SIZE))
    found, whole = over_the_vocabulary(loss, *made.given, some=every), over_the_vocabulary_plain(loss, *made.given)
    torch.testing.assert_close(found.total, whole.total)
    assert torch.equal(found.choices, whole.choices)


def test_tokens_are_found_among_them() -> None:
    """The cross-entropy of given tokens, which stand among the ids."""
    made, some, tokens = Places(), some_of((0, 5, 9)), torch.tensor([1, 9, 7, 4, 1, 5])
    found = over_the_vocabulary("cross-entropy", *made.given, tokens=tokens, some=some)
    said = made.hidden @ made.rows[some.ids].T + some.shift
    places = [some.ids.tolist().index(token) for token in tokens.tolist()]
    torch.testing.assert_close(found.total, -said.log_softmax(-1)[torch.arange(6), places].sum())


def stand_for_all(shift: float | None = None) -> None:
    """Over all draws of two, the sum of exponentials, by which a law is divided, is the whole's on average."""
    made = Places()
    logits = (made.hidden @ made.rows.T).detach()
    sums = []
    for drawn in combinations(OTHERS, 2):
        some = some_of(drawn)
        given = some.shift if shift is None else some.shift.clamp(max=shift)
        sums.append((logits[:, some.ids] + given).exp().sum(-1))
    torch.testing.assert_close(torch.stack(sums).mean(0), logits.exp().sum(-1))


def test_what_is_drawn_stands_for_all_others() -> None:
    stand_for_all()
    with must_fail():
        stand_for_all(shift=0.0)  # the planted fault: what is drawn weighs as itself


# ---- the draw --------------------------------------------------------------------------------------------------------


def batch() -> Batch:
    features = online(student(), samples_of(4), taps=())
    return features.fetch(range(4))


def told(own: Batch) -> set[int]:
    """Its tokens, and what the target finds likeliest at its places."""
    return {int(one) for one in [*own.ids.flatten(), *own.argmax.flatten()] if one >= 0}


def test_certain_ids_are_themselves_and_others_are_drawn_alike() -> None:
    """The frequent ones, the batch's tokens and the target's choices have no shift; each other id comes as often as
    chance has it: 400 named draws, within five standard deviations."""
    own, vocabulary = batch(), Vocabulary(torch.arange(6), 5, 64)
    certain = told(own) | set(range(6))
    others = 64 - len(certain)
    counts: Counter[int] = Counter()
    for step in range(STEPS):
        some = vocabulary.draw(own, 0, step)
        assert bool((some.ids.diff() > 0).all()) and len(some.ids) == len(certain) + 5
        drawn = some.ids[some.shift > 0].tolist()
        assert not certain & set(drawn) and certain < set(some.ids.tolist()) and len(drawn) == 5
        torch.testing.assert_close(some.shift[some.shift > 0], torch.full((5,), math.log(others / 5)))
        counts.update(drawn)
    share = 5 / others
    spread = 5 * math.sqrt(STEPS * share * (1 - share))
    assert len(counts) == others and all(abs(count - STEPS * share) < spread for count in counts.values())


def test_a_draw_is_named_by_seed_step_and_tokens() -> None:
    own, vocabulary = batch(), Vocabulary(torch.arange(6), 5, 64)
    first = vocabulary.draw(own, 0, 3).ids.tolist()
    torch.manual_seed(99)
    assert vocabulary.draw(batch(), 0, 3).ids.tolist() == first
    other = replace(own, ids=own.ids.flip(0), argmax=own.argmax)
    for changed in (vocabulary.draw(own, 1, 3), vocabulary.draw(own, 0, 4), vocabulary.draw(other, 0, 3)):
        assert changed.ids.tolist() != first


def test_none_is_drawn_where_all_are_certain() -> None:
    some = Vocabulary(torch.arange(64), 8, 64).draw(batch(), 0, 0)
    assert some.ids.tolist() == list(range(64)) and not some.shift.any()


def test_how_many_there_are() -> None:
    """As many as the setting says, one of eight of them drawn; all where it says none or enough."""
    chosen = Vocabulary.of(samples_of(), 32, 64, (3,))
    assert chosen is not None and len(chosen.frequent) == 32 - 32 // DRAWN and chosen.drawn == 4
    counts = Counter(int(token) for one in samples_of() for token in one.ids[one.loss_mask])
    assert {token for token, _ in counts.most_common(5)} < set(chosen.frequent.tolist()) and 3 in chosen.frequent
    trial = Vocabulary.of(None, 32, 64, ())
    assert trial is not None and trial.frequent.tolist() == list(range(28))
    assert Vocabulary.of(samples_of(), None, 64, ()) is Vocabulary.of(samples_of(), 64, 64, ()) is None


# ---- in lessons ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["eagle1", "medusa", "distil"])
def test_lessons_learn_on_some_and_measure_on_all(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own, seen = batch(), []
    honest = module.weighted_loss

    def noted(name: str, logits: Tensor, *more: Any) -> Any:
        seen.append(logits.shape[1])
        return honest(name, logits, *more)

    monkeypatch.setattr(module, "weighted_loss", noted)
    lesson = lesson_of(method, samples_of(4), settings_of(method, vocabulary=24))
    lesson.begin(2)
    assert lesson.train()(own)[1].losses.isfinite().all() and seen
    assert len(set(seen)) == 1 and len(told(own)) < seen[0] < 64
    seen.clear()
    lesson.eval()(own)
    assert set(seen) == {64}


def learnt(method: str, vocabulary: int | None, drawn: int | None = None) -> tuple[float, float]:
    """The loss over all ids before and after some steps over this many; ``drawn`` of them in place of one in eight."""
    own = batch()
    settings = settings_of(method, vocabulary=vocabulary, **({"noise": 0.0} if method == "eagle1" else {}))
    lesson = lesson_of(method, samples_of(4), settings)
    assert isinstance(lesson, WholeLesson)
    if drawn is not None:
        assert lesson.vocabulary is not None
        lesson.vocabulary = replace(lesson.vocabulary, drawn=drawn)
    optimiser = torch.optim.Adam(lesson.parameters(), 0.01)
    before = float(lesson.eval()(own)[0].detach())
    lesson.train()
    for step in range(60):
        lesson.begin(step)
        optimiser.zero_grad()
        lesson(own)[0].backward()
        optimiser.step()
    return before, float(lesson.eval()(own)[0].detach())


def most_of_the_way(method: str, drawn: int | None = None) -> None:
    """Steps over some ids bring more than three quarters of what as many steps over all bring, by the loss over all."""
    (before, some), (_, whole) = learnt(method, 24, drawn), learnt(method, None)
    assert whole < before and before - some > 0.775 * (before - whole)


@pytest.mark.parametrize("method", ["eagle1", "medusa", "distil"])
def test_what_is_learnt_on_some_is_known_of_all(method: str) -> None:
    most_of_the_way(method)


@pytest.mark.parametrize("method", ["medusa", "distil"])
def test_ids_that_are_left_out_are_missed(method: str) -> None:
    """The planted fault: nothing stands for the others, and nobody learns that they are unlikely."""
    with must_fail():
        most_of_the_way(method, drawn=0)


def test_refusals() -> None:
    least = 'format_version = 1\nmethod = "medusa"\n[head]\n[train]\nvocabulary = '
    assert Recipe.from_toml(least + "8").train.vocabulary == 8  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="vocabulary is 7; allowed: 8 or more"):
        Recipe.from_toml(least + "7")
    flags = "".join(
        f"{name} = false\n" for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    )
    with pytest.raises(UsageError, match="unknown key 'vocabulary'; allowed: depth, epochs"):
        Recipe.from_toml(f"format_version = 1\n[head]\n{flags}[train]\nvocabulary = 8")


def test_a_target_of_other_rows() -> None:
    """Ids beyond the rows that both have are left out."""
    ends = read_ends(student())
    teacher, rows = Teacher(ends.embeddings, ends.head), noise(7, 40, ends.head.shape[1]).float()
    last = noise(8, 3, ends.head.shape[1]).float()
    some = Some(torch.tensor([2, 30, 39, 40, 63]), torch.zeros(5))
    found = over_the_vocabulary("cross-entropy", last, rows, teacher, last, torch.zeros(3), some=some)
    assert set(found.choices.tolist()) <= {2, 30, 39}
