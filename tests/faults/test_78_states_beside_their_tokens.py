"""78: states are paired with the wrong tokens: the loss falls, and next to nothing is accepted."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from heads import random_head, shape_of
from outpace.decoding.loop import Request
from outpace.drafters.eagle import Eagle
from outpace.models.ends import read_ends
from outpace.models.function import FunctionTarget
from outpace.models.target import Scores
from outpace.training.eagle3 import Eagle3Lesson
from outpace.training.features import online
from outpace.training.ledger import read_ledger
from outpace.training.masks import Sample
from outpace.training.reader import Reader
from outpace.training.recipe import TrainSettings
from outpace.training.teacher import Teacher
from outpace.training.trainer import Trainer
from toys import must_fail, run

WORDS, WIDTH, TIMES = 5, 24, 8


def widened(rows: Tensor) -> Tensor:
    return functional.pad(rows.float(), (0, WIDTH - WORDS))


class Telling(FunctionTarget):
    """Its state at a place is the one-hot of the token there; what comes next is a table's, by the last two tokens."""

    def __init__(self) -> None:
        super().__init__(self.said, WORDS, name="telling", max_positions=64)
        self.next = torch.randint(WORDS, (WORDS, WORDS), generator=torch.Generator().manual_seed(4))
        rows = SimpleNamespace(weight=torch.eye(WORDS, WIDTH), bias=None)
        self.model = SimpleNamespace(get_input_embeddings=lambda: rows, get_output_embeddings=lambda: rows)

    def said(self, ids: Tensor) -> Tensor:
        before = torch.cat((ids[:, :1], ids[:, :-1]), 1)
        return 30.0 * functional.one_hot(self.next[before, ids], WORDS).float()

    def prefill(self, state: Any, ids: Tensor, lengths: list[int], taps: Any = ()) -> Scores:
        scores = super().prefill(state, ids, lengths)
        return Scores(scores.logits, self.shown(ids, self.said(ids), taps))

    def score(self, state: Any, last: Tensor, tree: Any, taps: Any = ()) -> Scores:
        scores = super().score(state, last, tree)
        read = torch.cat((last[:, None], tree.tokens.clamp(min=0)), 1)
        return Scores(scores.logits, self.shown(read, scores.logits, taps))

    def shown(self, ids: Tensor, logits: Tensor, taps: Any) -> Tensor | None:
        states = {0: widened(functional.one_hot(ids, WORDS)), "last_normed": widened(logits)}
        return torch.stack([states[tap] for tap in taps], -2) if taps else None


def texts(target: Telling) -> list[Sample]:
    """Every pair of tokens, and what the table says behind it."""
    found = []
    for pair in range(WORDS * WORDS):
        text = [pair // WORDS, pair % WORDS]
        while len(text) < 6:
            text.append(int(target.next[text[-2], text[-1]]))
        found.append(Sample(f"pair {pair}", torch.tensor(text, dtype=torch.int32), torch.arange(6) >= 2))
    return found


def case(folder: Path) -> None:
    """Only with the state of the token before it can a token tell the next one: then the loss vanishes, and every draft
    of a decoder is accepted."""
    target = Telling()
    samples, ends = texts(target), read_ends(target)
    head = random_head(
        shape_of(
            hidden_size=WIDTH,
            target_hidden_size=WIDTH,
            taps=(0,),
            feed_forward=64,
            vocab_size=WORDS,
            draft_vocab_size=WORDS,
            max_positions=64,
        )
    )
    settings = TrainSettings(
        depth=1,
        epochs=10,
        tokens_per_batch=6 * len(samples),
        batches_per_step=1,
        learning_rate=1e-2,
        loss="forward-kl",
        precision="fp32",
    )
    trainer = Trainer(
        Eagle3Lesson(head, Teacher.of(ends.embeddings, ends.head, head.target_ids), settings),
        online(target, samples * TIMES, taps=(0,)),
        None,
        settings,
        folder,
        identity={},
    )
    head = trainer.train().pupil
    last = read_ledger(folder / "log.jsonl")[-1]
    assert last["step"] == 10 * TIMES and last["loss"][0] < 1e-3
    requests = [Request(sample.ids[:2].tolist(), max_new_tokens=4) for sample in samples]
    ended = run(target, Eagle(head, target, packed=False), requests, num_draft_tokens=1)
    assert len({token for one in ended for token in one.ids}) > 3, "too dull a table"
    assert [one.stats.acceptance for one in ended] == [1.0] * len(samples)


def test_case(tmp_path: Path) -> None:
    case(tmp_path)


def shifted(by: int) -> Any:
    """What training reads at a place was shown at another."""

    def prefill(self: Reader, samples: Any) -> Tensor:
        seen = honest_prefill(self, samples)
        moved = torch.zeros_like(seen)
        moved[:, :, -1] = seen[:, :, -1]
        if by > 0:
            moved[:, by:, :-1] = seen[:, :-by, :-1]
        else:
            moved[:, :by, :-1] = seen[:, -by:, :-1]
        return moved

    return prefill


honest_prefill = Reader._prefill


@pytest.mark.parametrize("by", [1, -1])
def test_planted_fault(by: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reader, "_prefill", shifted(by))
    with must_fail():
        case(tmp_path)
