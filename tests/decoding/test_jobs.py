"""Files of prompts: every entry is answered once, as its own plain text, and a bad one harms no other."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from asked import NEW, PROMPTS, all_of, entries_of, lines_of, said_in
from outpace.decoding import jobs
from outpace.decoding.jobs import answer
from outpace.decoding.text import text_of
from outpace.drafters.lookup import Lookup
from outpace.models.function import FunctionTarget
from outpace.models.toy import random_table
from outpace.models.transformer import Transformer
from toys import LETTER_VOCAB, Watched, lively, must_fail, reference

# ---- every entry is its own plain text ------------------------------------------------------------------------------


def test_every_entry_is_its_own_text(tiny: Transformer, tmp_path: Path) -> None:
    """In batches that are refilled, written as it is returned, whatever the order."""
    out = tmp_path / "out.jsonl"
    found = all_of(tiny, entries_of(*PROMPTS), out)
    wanted = {f"q{place}": [reference(tiny, tuple(prompt), NEW)] for place, prompt in enumerate(PROMPTS, 1)}
    assert {key: [one.token_ids for one in outcome.answers] for key, outcome in found.items()} == wanted
    assert {outcome.status for outcome in found.values()} == {"answered"}
    assert said_in(out) == wanted
    head, *answers = lines_of(out)
    assert head["format_version"] == 1 and head["settings"]["max_new_tokens"] == NEW
    assert set(answers[0]) == {"id", "category", "turns", "answers"}
    one = answers[0]["answers"][0]
    assert set(one) == {"text", "token_ids", "finish_reason", "usage", "speculation", "timing"}
    assert one["usage"] == {"prompt_tokens": 1, "completion_tokens": NEW} and one["finish_reason"] == "length"


def test_slots_are_refilled(tiny: Transformer) -> None:
    """No more than ``batch_size`` rows are in flight; a new prompt is read when one of them ends, not when all do."""
    watched = Watched(tiny)
    entries = entries_of(*PROMPTS)
    list(answer(watched, None, entries, max_new_tokens=NEW, batch_size=3))
    assert [len(prompts) for prompts in watched.prefills] == [3, 3, 1]  # plain rows of one limit end together
    assert max(len(rows) for rows in watched.scored) == 3
    watched = Watched(tiny)
    list(answer(watched, Lookup(), entries, max_new_tokens=NEW, num_draft_tokens=3, batch_size=3))
    assert len(watched.prefills) > 3 and max(len(rows) for rows in watched.scored) == 3


def test_new_tokens_are_told(tiny: Transformer) -> None:
    told: list[int] = []
    list(answer(tiny, None, entries_of(*PROMPTS), told=told.append, max_new_tokens=NEW))
    assert sum(told) == NEW * len(PROMPTS) and len(told) > len(PROMPTS)


def test_without_entries_there_is_nothing_to_do(tiny: Transformer, tmp_path: Path) -> None:
    assert list(answer(tiny, None, [], output=tmp_path / "out.jsonl")) == []
    assert (tmp_path / "out.jsonl").read_bytes() == b""


# ---- dialogues ------------------------------------------------------------------------------------------------------


def parrot(folder: Path, **shown: Any) -> Watched:
    """Says "ab" and ends, whatever it is told, and notes what it was told."""
    text = text_of(folder)
    said = torch.tensor([*text.encode("ab", raw=True), text.tokenizer.eos_token_id])
    heard: list[str] = []

    def logits_of(ids: Tensor) -> Tensor:
        rows = torch.zeros(*ids.shape, LETTER_VOCAB)
        for row in range(len(ids)):
            for place in range(ids.shape[1]):
                tail = text.decode(ids[row, : place + 1].tolist())
                step = 2 if tail.endswith("ab") else 1 if tail.endswith("a") else 0
                rows[row, place, said[step]] = 9.0
        heard.extend(text.decode(one.tolist()) for one in ids)
        return rows

    target = FunctionTarget(logits_of, LETTER_VOCAB, eos_ids=(int(said[2]),), **shown)
    target.folder = folder
    watched = Watched(target)
    watched.heard = heard  # type: ignore[attr-defined]
    return watched


def test_later_turns_see_the_first_answers(chat_letters: Path, letters: Path) -> None:
    """As a dialogue in the chat template; as lines where there is none, or with ``raw``."""
    entries = entries_of(("x", "y", "z"), "k")
    for folder, options, words in (
        (chat_letters, {}, "[user]x\n[assistant]ab\n[user]y\n[assistant]ab\n[user]z\n[assistant]"),
        (chat_letters, {"raw": True}, "x\nab\ny\nab\nz"),
        (letters, {}, "x\nab\ny\nab\nz"),
    ):
        target = parrot(folder)
        found = {outcome.entry.key: outcome for outcome in answer(target, None, entries, max_new_tokens=5, **options)}
        assert [result.text for result in found["q1"].answers] == ["ab"] * 3
        assert [result.text for result in found["q2"].answers] == ["ab"]
        prompts = {heard[: len(words)] for heard in target.heard}  # type: ignore[attr-defined]
        assert words in prompts
        usage = [result.prompt_tokens for result in found["q1"].answers]
        assert usage == sorted(usage) and usage[-1] == len(words)


def test_planted_fault_in_a_dialogue(chat_letters: Path, letters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: a later turn is asked as if it were the first."""
    monkeypatch.setattr(jobs, "_dialogue", lambda text, turns, answers, options: text.encode(turns[-1]))
    with must_fail():
        test_later_turns_see_the_first_answers(chat_letters, letters)


# ---- entries that cannot be answered --------------------------------------------------------------------------------


def test_an_entry_that_is_too_long_is_skipped_and_tried_again(tmp_path: Path) -> None:
    """It stands in no output file; the others are answered; a target with more room answers it."""
    small, out = lively(max_position_embeddings=16), tmp_path / "out.jsonl"
    long = list(range(1, 17))
    entries = entries_of([1, 2], long, long[:15])
    for run in range(2):
        found = all_of(small, entries, out, max_new_tokens=None)
        assert found["q2"].status == "too long" and not found["q2"].answers
        assert found["q2"].reason == "16 tokens leave no room in the context of 16"
        assert [found[key].status for key in ("q1", "q3")] == ["kept" if run else "answered"] * 2
    assert {key: len(ids[0]) for key, ids in said_in(out).items()} == {"q1": 14, "q3": 1}


def test_a_dialogue_that_outgrows_the_context(letters: Path, tmp_path: Path) -> None:
    """The second turn is eight ids: "xyz", an answer of two and "k", with line breaks. Nothing is written."""
    target = parrot(letters, max_positions=8)
    out = tmp_path / "out.jsonl"
    found = {one.entry.key: one for one in answer(target, None, entries_of(("xyz", "k"), "p"), output=out)}
    assert found["q1"].reason == "turn 2: 8 tokens leave no room in the context of 8"
    assert found["q1"].status == "too long" and set(said_in(out)) == {"q2"}


def breaking(prompt: list[int]) -> FunctionTarget:
    """A table; a text that begins with this prompt has NaN for its logits from the third new token on."""
    table = random_table(64, seed=4).float()

    def logits_of(ids: Tensor) -> Tensor:
        rows = table[ids].clone()
        if ids.shape[1] >= len(prompt):
            rows[(ids[:, : len(prompt)] == torch.tensor(prompt)).all(1), len(prompt) + 2 :] = torch.nan
        return rows

    return FunctionTarget(logits_of, 64)


def test_an_entry_that_fails_leaves_the_others_alone(tmp_path: Path) -> None:
    """It is reported with its reason and not written, so that the next run tries it again."""
    entries, out = entries_of(*PROMPTS), tmp_path / "out.jsonl"
    found = all_of(breaking(PROMPTS[2]), entries, out)
    assert found["q3"].status == "failed" and not found["q3"].answers
    assert str(found["q3"].reason).startswith("the target's logits for position ")
    assert "\n" not in str(found["q3"].reason)
    healthy = breaking([63, 63, 63, 63, 63, 63, 63])
    wanted = {f"q{place}": [reference(healthy, tuple(prompt), NEW)] for place, prompt in enumerate(PROMPTS, 1)}
    assert said_in(out) == {key: ids for key, ids in wanted.items() if key != "q3"}
    again = all_of(healthy, entries, out)
    assert again["q3"].status == "answered" and said_in(out) == wanted
