"""92: training numbers are good, acceptance is poor: the two are counted apart, or served is not what was trained."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cards import card_for, change_tensors, exported, target_of
from heads import random_head, shape_of
from outpace.decoding.loop import Request
from outpace.drafters.card import write_card
from outpace.drafters.eagle import Eagle
from outpace.drafters.head import Head
from outpace.drafters.load import load_drafter
from outpace.drafters.walk import Walker
from outpace.export.formats import FORMATS
from outpace.models.ends import read_ends
from outpace.training.eagle3 import Eagle3Lesson
from outpace.training.features import online
from outpace.training.masks import Sample
from outpace.training.recipe import TrainSettings
from outpace.training.rounds import walked
from outpace.training.teacher import Teacher
from outpace.training.trainer import Trainer
from toys import must_fail, reference, run

LEARNT = ((1, 2, 3), (9,), (5, 6, 7, 8, 20), (40, 2))
HELD_OUT = ((11, 3, 2, 8), (30, 31, 5))
NEW, DEPTH, TIMES = 24, 4, 48
Figures = tuple[int, int, float | None, tuple[float, ...]]
"""Turns, tokens emitted in them, tau, and acceptance by position."""


def teacher_of(head: Head) -> Teacher:
    ends = read_ends(target_of())
    return Teacher.of(ends.embeddings, ends.head, head.target_ids)


def trained(folder: Path) -> tuple[Head, float]:
    """A head that knows some texts by half, and its teacher-forced tau on them and on others."""
    target = target_of()

    def texts(prompts: tuple[tuple[int, ...], ...]) -> list[Sample]:
        found = []
        for prompt in prompts:
            ids = torch.tensor([*prompt, *reference(target, prompt, NEW)], dtype=torch.int32)
            found.append(Sample(str(prompt), ids, torch.arange(len(ids)) >= len(prompt)))
        return found

    head = random_head(shape_of(taps=(2, 4, 5), draft_vocab_size=64), seed=1)
    settings = TrainSettings(
        depth=DEPTH,
        epochs=2,
        tokens_per_batch=128,
        batches_per_step=1,
        learning_rate=1e-2,
        loss="forward-kl",
        precision="fp32",
    )
    features = online(target, texts(LEARNT) * TIMES, taps=head.shape.taps)
    held = online(target, texts(LEARNT + HELD_OUT), taps=head.shape.taps)
    trainer = Trainer(Eagle3Lesson(head, teacher_of(head), settings), features, held, settings, folder, identity={})
    done = trainer.train()
    assert done.validation is not None and done.validation.tau is not None
    return done.pupil.eval(), done.validation.tau


def walk(head: Head) -> Figures:
    """By the trainer, over the target's own texts."""
    found = walked(
        head, target_of(), teacher_of(head), [*LEARNT, *HELD_OUT], depth=DEPTH, max_new_tokens=NEW, tokens_per_batch=64
    )
    return found.turns, found.emitted, found.tau, found.acceptance_by_position


def served(drafter: Any) -> Figures:
    """By the decoder, pooled over the same prompts."""
    requests = [Request(list(prompt), max_new_tokens=NEW) for prompt in (*LEARNT, *HELD_OUT)]
    stats = [one.stats for one in run(target_of(), drafter, requests, num_draft_tokens=DEPTH)]
    turns, emitted = sum(one.turns for one in stats), sum(one.emitted for one in stats)
    rates = []
    for place in range(max(len(one.tried) for one in stats)):
        tried, passed = (
            sum(counts[place] for counts in rows if place < len(counts))
            for rows in ([one.tried for one in stats], [one.passed for one in stats])
        )
        rates.append(passed / tried)
    return turns, emitted, emitted / turns, tuple(rates)


def case(head: Head, forced: float, folder: Path, spoil: Callable[[Path], Any] = lambda folder: None) -> None:
    """What the trainer walks is what the decoder counts, exactly; and the same again of every file that was written and
    read. What teacher forcing shows is another figure."""
    target, found = target_of(), walk(head)
    assert found[2] is not None and 1.3 < found[2] < DEPTH, "a head that is always right, or never, tells nothing"
    assert found == served(Eagle(head, target, packed=False))
    assert forced != found[2]
    write_card(folder / "card", head, card_for(head), dtype=torch.float32)
    for layout in FORMATS:
        exported(folder / layout, layout, head)
    for layout in ("card", *FORMATS):
        spoil(folder / layout)
        drafter = load_drafter(str(folder / layout), target, dtype="fp32")
        assert served(drafter) == found, layout


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> tuple[Head, float]:
    return trained(tmp_path_factory.mktemp("learnt"))


def test_case(learnt: tuple[Head, float], tmp_path: Path) -> None:
    case(*learnt, tmp_path)


# ---- planted faults --------------------------------------------------------------------------------------------------


def test_planted_figure(learnt: tuple[Head, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Teacher-forced tau stands where walked tau should."""
    turns, emitted, _, rates = walk(learnt[0])
    monkeypatch.setitem(globals(), "walk", lambda head: (turns, emitted, learnt[1], rates))
    with must_fail():
        case(*learnt, tmp_path)


def token_before(self: Walker, cache: Any, rows: Any, features: Any, tokens: list[list[int]]) -> Any:
    """States are served beside the token at their own place."""
    moved = [[part[0], *part[:-1]] for part in tokens]
    return honest_read(self, cache, rows, features, moved)


def states_in_another_order(self: Walker, cache: Any, rows: Any, features: list[Tensor], tokens: Any) -> Any:
    """High, middle, low."""
    return honest_read(self, cache, rows, [part.flip(1) for part in features], tokens)


def fed_back_normed(self: Walker, out: Tensor) -> Tensor:
    """The state that goes round is the one that the vocabulary is read from."""
    return self.head.norm(out)


honest_read = Walker.read


@pytest.mark.parametrize(
    ("name", "fault"), [("read", token_before), ("read", states_in_another_order), ("feed", fed_back_normed)]
)
def test_planted_serving(
    name: str, fault: Any, learnt: tuple[Head, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Walker, name, fault)
    with must_fail():
        case(*learnt, tmp_path)


def without(part: str) -> Callable[[Path], Any]:
    """A file in which a norm is as it was before training."""

    def change(tensors: dict[str, Tensor]) -> None:
        [name] = [name for name in tensors if name.endswith(part)]
        tensors[name] = torch.ones_like(tensors[name])

    return lambda folder: change_tensors(folder, change)


@pytest.mark.parametrize("part", ["hidden_norm.weight", "input_layernorm.weight", "post_attention_layernorm.weight"])
def test_planted_file(part: str, learnt: tuple[Head, float], tmp_path: Path) -> None:
    with must_fail():
        case(*learnt, tmp_path, without(part))
