"""The lesson's call: targets or functions of ids in, ids out, the prompt left out."""

from pathlib import Path

import torch

from outpace.decoding.generate import generate, speculative_decode
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.models.toy import random_table, table_target
from outpace.models.transformer import Transformer
from toys import LETTER_VOCAB, Watched, lively, reference, spelling

TABLE, DRAFT = random_table(6, seed=1), random_table(6, seed=2)


def test_functions_play_target_and_draft() -> None:
    """A function, a table and a drafter built by hand are one: the same samples under the same seed."""
    wanted = speculative_decode(
        table_target(TABLE), table_target(DRAFT), [0, 3], 3, 1.0, max_new_tokens=9, seed=1, num_samples=5, rule="block"
    )
    assert wanted.dtype == torch.int64 and wanted.shape == (5, 9)
    for target, draft, prompt in (
        (lambda ids: TABLE[ids], lambda ids: DRAFT[ids], [0, 3]),
        (table_target(TABLE), lambda ids: DRAFT[ids], torch.tensor([0, 3])),
        (lambda ids: TABLE[ids], Small(table_target(DRAFT), table_target(TABLE)), [0, 3]),
    ):
        options = {"max_new_tokens": 9, "seed": 1, "num_samples": 5, "rule": "block", "batch_size": 2}
        assert torch.equal(speculative_decode(target, draft, prompt, 3, 1.0, **options), wanted)


def test_greedy_is_the_reference_for_every_k(tiny: Transformer, tiny_draft: Transformer) -> None:
    for draft in (tiny_draft, Lookup(), tiny):
        for K in (0, 1, 4, 1_000_000):
            [row] = speculative_decode(tiny, draft, [1, 2, 3], K, 0.0, max_new_tokens=12)
            assert row.tolist() == reference(tiny, (1, 2, 3), 12)


def test_k_is_what_a_turn_drafts(tiny: Transformer) -> None:
    watched = Watched(tiny)
    speculative_decode(watched, tiny, [1, 2, 3], 5, 0.0, max_new_tokens=19)
    assert watched.scored == [[5], [5], [5]]


def test_rows_that_end_early_are_filled_with_their_last_id() -> None:
    target = table_target(TABLE, eos_ids=(2, 5))
    rows = speculative_decode(target, table_target(DRAFT), [0], 3, 1.5, max_new_tokens=30, seed=4, num_samples=40)
    ended = 0
    for row in rows.tolist():
        places = [place for place, token in enumerate(row) if token in (2, 5)]
        if places:
            assert set(row[places[0] :]) == {row[places[0]]}
            ended += 1
    assert ended > 30 and len({row.index(2) for row in rows.tolist() if 2 in row}) > 2


def test_a_string_is_read_by_the_targets_tokenizer(letters: Path) -> None:
    target = spelling([0, 1, 2], prompt=4, vocab=LETTER_VOCAB, folder=letters)
    assert speculative_decode(target, Lookup(), "abab", 2, 0.0, max_new_tokens=3).tolist() == [[0, 1, 2]]


def test_it_is_generate_in_other_words(tiny: Transformer) -> None:
    other = lively(seed=4)
    rows = speculative_decode(tiny, other, [5, 6], 4, 0.9, max_new_tokens=10, seed=8, num_samples=2)
    result = generate(tiny, Small(other, tiny), [5, 6], temperature=0.9, seed=8, max_new_tokens=10)
    assert rows[0].tolist() == result.token_ids
    assert speculative_decode(tiny, other, [5, 6], 4, 0.9, max_new_tokens=0).shape == (1, 0)
