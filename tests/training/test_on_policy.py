"""Texts of the student's own: drawn from its present law, the same for the same step, and read by its target."""

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from hosts import liven
from lessons import samples_of
from lessons import student as tiny_target
from outpace.errors import NumericsError, UsageError
from outpace.models.ends import read_ends
from outpace.models.student import Student, new_student
from outpace.models.student_files import student_target
from outpace.models.target import Target
from outpace.models.toy import random_table, table_target
from outpace.training import on_policy as module
from outpace.training.batch import Batch
from outpace.training.distil import distil
from outpace.training.masks import Sample
from outpace.training.on_policy import Begun, OnPolicy, mixed, mixed_batch, own_texts, texts_of
from outpace.training.reader import Reader
from outpace.training.shards import batch_of
from outpace.training.teacher import Teacher
from toys import dense_logits, must_fail, reference

PROMPTS = [Begun(f"p{place}", ids, 4 + place) for place, ids in enumerate(([5], [9, 8, 7], [1, 2, 3, 1], [30] * 9))]


@pytest.fixture(scope="module")
def student() -> Student:
    """Lively, and unlike its target."""
    made = new_student(tiny_target(), depth=1, width=16, heads=2, embeddings="random")
    liven(made.model, seed=1)
    return made


@pytest.fixture(scope="module")
def copy(student: Student) -> Target:
    return student_target(student, tiny_target())


def said(texts: list[Sample]) -> list[list[int]]:
    return [text.ids.tolist() for text in texts]


# ---- whose texts they are --------------------------------------------------------------------------------------------


def test_greedy_texts_are_the_students_plain_ones(student: Student, copy: Target) -> None:
    """By its own module, the whole text read anew for every token."""
    texts = own_texts(copy, PROMPTS, OnPolicy(temperature=0.0), 3)
    for prompt, text in zip(PROMPTS, texts, strict=True):
        expected = list(prompt.ids)
        with torch.no_grad():
            for _ in range(prompt.max_new_tokens):
                states = student(torch.tensor([expected]))[0]
                expected.append(int((student.rows @ states[-1]).argmax()))
        assert text.ids.tolist() == expected and text.key == f"{prompt.key} at step 3"
        assert text.loss_mask.tolist() == [False] * len(prompt.ids) + [True] * prompt.max_new_tokens
        assert reference(copy, tuple(prompt.ids), prompt.max_new_tokens) == expected[len(prompt.ids) :]
    assert len({token for text in texts for token in text.ids.tolist()}) >= 8


def first_tokens(copy: Target, law: Tensor, temperature: float) -> float:
    """The chi-square of 2,000 first tokens against a law, its rare tokens taken together."""
    count = 2000
    begun = [Begun(f"p{place}", [1, 2, 3], 1) for place in range(count)]
    texts = own_texts(copy, begun, OnPolicy(temperature=temperature, batch_size=500), 0)
    found = Counter(int(text.ids[-1]) for text in texts)
    counts, likely = torch.tensor([float(found[token]) for token in range(64)]), law > 5 / count
    rest = (counts[~likely].sum() - count * law[~likely].sum()) ** 2 / (count * law[~likely].sum()).clamp(min=1)
    return float(((counts - count * law)[likely] ** 2 / (count * law[likely])).sum() + rest)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_draws_follow_the_students_law(student: Student, copy: Target, temperature: float) -> None:
    """False alarm: chi-square with at most 63 degrees of freedom above 150 has a chance below 1e-8. Planted: the law of
    another temperature is seen."""
    with torch.no_grad():
        logits = student.rows @ student(torch.tensor([[1, 2, 3]]))[0, -1]
    assert first_tokens(copy, (logits.double() / temperature).softmax(0), temperature) < 150
    assert first_tokens(copy, (logits.double() / temperature).softmax(0), 1.7 - temperature) > 150


def test_no_gradient_goes_through_a_draw(student: Student, copy: Target) -> None:
    before = [weight.clone() for weight in student.parameters()]
    own_texts(copy, PROMPTS, OnPolicy(), 0)
    assert all(weight.grad is None for weight in student.parameters())
    assert all(torch.equal(one, other) for one, other in zip(before, student.parameters(), strict=True))


def test_an_end_ends_a_text(student: Student) -> None:
    plain = own_texts(student_target(student, tiny_target()), PROMPTS[:1], OnPolicy(temperature=0.0), 0)[0]
    table = table_target(random_table(64, seed=1), eos_ids=(int(plain.ids[2]),))
    [text] = own_texts(student_target(student, table), PROMPTS[:1], OnPolicy(temperature=0.0), 0)
    assert text.ids.tolist() == plain.ids[:3].tolist() and text.loss_mask.tolist() == [False, True, True]


# ---- the same for the same step --------------------------------------------------------------------------------------


def test_a_step_is_gone_on_with_as_it_would_have_been(student: Student, copy: Target) -> None:
    """Named by seed and step, whoever else is drawn, with how many at once, in another copy of the same weights; other
    steps, seeds and prompts draw otherwise (chance below 1e-4 that any two of these are alike)."""
    policy = OnPolicy(seed=4)
    texts = said(own_texts(copy, PROMPTS, policy, 7))
    again = student_target(student, tiny_target())
    assert said(own_texts(again, PROMPTS, OnPolicy(seed=4, batch_size=1), 7)) == texts
    assert said(own_texts(copy, PROMPTS[::-1], policy, 7)) == texts[::-1]
    assert said(own_texts(copy, PROMPTS[2:3], policy, 7)) == texts[2:3]
    for other in (own_texts(copy, PROMPTS, policy, 8), own_texts(copy, PROMPTS, OnPolicy(seed=5), 7)):
        assert said(other)[1:] != texts[1:]
    twins = [Begun(name, [9, 8, 7], 12) for name in ("one", "two")]
    assert len({tuple(ids) for ids in said(own_texts(copy, twins, policy, 7))}) == 2


def test_chance_of_others_is_left_alone(copy: Target) -> None:
    torch.manual_seed(3)
    own_texts(copy, PROMPTS, OnPolicy(), 0)
    drawn = torch.rand(2)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(2))


def test_the_share_is_a_chance(copy: Target) -> None:
    """Six standard deviations of 2,000 at 0.3 are 123: false alarm 2e-9. A larger share holds a smaller one."""
    keys = [f"text {place}" for place in range(2000)]
    chosen = {share: {key for key in keys if OnPolicy(share).chosen(key, 5)} for share in (0.0, 0.3, 0.6, 1.0)}
    assert not chosen[0.0] and len(chosen[1.0]) == 2000 and chosen[0.3] < chosen[0.6]
    assert abs(len(chosen[0.3]) - 600) < 123
    assert {key for key in keys if OnPolicy(0.3).chosen(key, 6)} != chosen[0.3]


# ---- in a batch ------------------------------------------------------------------------------------------------------


def case(copy: Target, share: float) -> None:
    """Chosen samples keep their prompts and their room, and are the student's; the others are what they were."""
    samples, policy = list(samples_of()), OnPolicy(share, seed=2)
    found = mixed(copy, samples, policy, 1, 64)
    assert len(found) == len(samples)
    for sample, text in zip(samples, found, strict=True):
        start = int(sample.loss_mask.int().argmax())
        if not policy.chosen(sample.key, 1):
            assert text is sample
            continue
        assert text.key == f"{sample.key} at step 1" and len(text) <= len(sample)
        assert torch.equal(text.ids[:start], sample.ids[:start]) and not text.loss_mask[:start].any()
        assert bool(text.loss_mask[start:].all()) and bool((text.ids[start:] != sample.ids[start : len(text)]).any())
        begun = Begun(sample.key, sample.ids[:start].tolist(), len(sample) - start)
        assert said(own_texts(copy, [begun], policy, 1)) == [text.ids.tolist()]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_share_of_the_answers_is_the_students(copy: Target, share: float) -> None:
    chosen = [OnPolicy(share, seed=2).chosen(sample.key, 1) for sample in samples_of()]
    assert any(chosen) == (share > 0) and all(chosen) == (share == 1)
    case(copy, share)


def test_answers_that_go_to_another_prompt_are_seen(copy: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: texts come back in another order than they were asked for."""
    honest = module.own_texts
    monkeypatch.setattr(module, "own_texts", lambda *given: honest(*given)[::-1])
    with must_fail():
        case(copy, 1.0)


def test_of_a_dialogue_all_behind_the_first_prompt_is_replaced(copy: Target) -> None:
    mask = torch.tensor([False, False, True, True, False, False, True])
    [text] = mixed(copy, [Sample("d", torch.arange(7, dtype=torch.int32), mask)], OnPolicy(), 0, 64)
    assert text.loss_mask.tolist() == [False, False, *[True] * 5] and text.ids[:2].tolist() == [0, 1]


def test_ids_that_the_target_lacks_are_cut_off(copy: Target) -> None:
    """A student padded further than its target may say them; where it says one at once, the answer stays."""
    samples = list(samples_of())
    whole = mixed(copy, samples, OnPolicy(temperature=0.0), 0, 64)
    cut = mixed(copy, samples, OnPolicy(temperature=0.0), 0, 40)
    ends = []
    for sample, text, found in zip(samples, whole, cut, strict=True):
        start = int(sample.loss_mask.int().argmax())
        foreign = [place for place in range(start, len(text)) if int(text.ids[place]) >= 40]
        ends.append(foreign[0] - start if foreign else None)
        if foreign and foreign[0] == start:
            assert found is sample
        elif not int((text.ids[:start] >= 40).any()):
            assert torch.equal(found.ids, text.ids[: foreign[0]] if foreign else text.ids)
    assert 0 in ends and any(ends)


@cache
def recorded() -> Batch:
    """The samples, read by their target."""
    return read(list(samples_of()))


def read(samples: list[Sample]) -> Batch:
    found = Reader(tiny_target(), (0, 1)).read(samples)
    return batch_of([found.row(place) for place in range(len(samples))])


def batch_case(copy: Target, share: float) -> None:
    """A mixed batch is what its texts are when they are read anew; those that stay are not read."""
    policy, reader = OnPolicy(share, seed=2), Reader(tiny_target(), (0, 1))
    batch, before = mixed_batch(copy, recorded(), policy, 2, reader), texts_of(recorded())
    texts = mixed(copy, before, policy, 2, 64)
    assert any(text is not old for text, old in zip(texts, before, strict=True))
    again = read(texts)
    assert batch.lengths == again.lengths
    for name in ("ids", "loss_mask", "argmax"):
        assert torch.equal(getattr(batch, name), getattr(again, name)), name
    for name in ("features", "last_normed", "logsumexp"):
        torch.testing.assert_close(getattr(batch, name), getattr(again, name), rtol=1e-4, atol=1e-4)
    for row, text in enumerate(texts):
        own = dense_logits(tiny_target(), text.ids.tolist())
        for place in range(len(text) - 1):
            if bool(text.loss_mask[place + 1]):
                assert int(batch.argmax[row, place]) == int(own[place].argmax())


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_the_target_reads_what_the_student_said(copy: Target, share: float) -> None:
    """Its likeliest token and its states at every place; the objective counts all tokens of the new answers."""
    batch_case(copy, share)
    target = tiny_target()
    batch = mixed_batch(copy, recorded(), OnPolicy(share, seed=2), 2, Reader(target, (0, 1)))
    ends, learning = read_ends(target), new_student(target, depth=1, width=16, heads=2)
    counts = distil(learning, batch, Teacher(ends.embeddings, ends.head)).counts
    assert counts.places == batch.answers.sum() > 0


def test_a_recording_of_another_text_is_seen(copy: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the target reads the new texts in another order than they stand in the batch."""
    honest = Reader.read
    with monkeypatch.context() as patch:
        patch.setattr(module.Reader, "read", lambda self, texts: honest(self, list(texts)[::-1]))
        with must_fail():
            batch_case(copy, 1.0)


def test_a_batch_of_which_nothing_is_chosen_stays(copy: Target) -> None:
    """By its share; or because it has no prompt or no answer, as that of a process that has nothing to learn."""
    reader = Reader(tiny_target(), (0, 1))
    assert mixed_batch(copy, recorded(), OnPolicy(0.0), 0, reader) is recorded()
    for mask in (torch.zeros_like(recorded().loss_mask), torch.ones_like(recorded().loss_mask)):
        bare = replace(recorded(), loss_mask=mask)
        assert mixed_batch(copy, bare, OnPolicy(), 0, reader) is bare


def test_a_student_is_taught_on_texts_of_its_own() -> None:
    """Thirty steps, each on what it says then: what it would say now is accepted more often than at first."""
    target, reader = tiny_target(), Reader(tiny_target(), (0, 1))
    ends = read_ends(target)
    teacher = Teacher(ends.embeddings, ends.head)
    made = new_student(target, depth=1, width=32, heads=4, feed_forward=64, tied=False)
    optimiser = torch.optim.AdamW(made.parameters(), 5e-3, weight_decay=0.0)
    policy, seen = OnPolicy(seed=1), []
    for step in range(30):
        batch = mixed_batch(student_target(made, target), recorded(), policy, step, reader)
        found = distil(made, batch, teacher)
        seen.append(found.counts.acceptance[0] or 0.0)
        found.objective().backward()
        optimiser.step()
        optimiser.zero_grad()
    assert sum(seen[-5:]) > 2 * sum(seen[:5])


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_refusals(student: Student) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"share": 1.1}, "share is 1.1; allowed: 0 to 1"),
        ({"batch_size": 0}, "batch_size is 0; allowed: 1 or more"),
        ({"temperature": -1.0}, "temperature is -1.0; allowed: 0"),
    ]
    for given, words in cases:
        with pytest.raises(UsageError, match=words):
            OnPolicy(**given)
    broken = table_target(torch.full((64, 64), torch.nan))
    with pytest.raises(NumericsError, match=r"p0 cannot be continued by the student: .* no distribution"):
        own_texts(broken, PROMPTS[:1], OnPolicy(), 0)
