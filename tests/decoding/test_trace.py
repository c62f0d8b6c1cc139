"""A trace is JSON line by line, adds up to the result's figures, and its numbers are those of the models."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from outpace.decoding.generate import Result, generate
from outpace.decoding.judging import verdict_coins
from outpace.drafters.drafter import Drafter
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.models.toy import random_table, table_target
from outpace.models.transformer import Transformer
from outpace.verification.coins import Keys
from toys import Scripted, dense_logits, reference, right_then_wrong

PROMPTS = [[9], [5, 6, 7], [7, 8, 7, 8, 7, 8, 7]]


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def traced(path: Path, target: Any, guesser: Drafter | None, **options: Any) -> tuple[Any, list[Any], list[Result]]:
    options = {"num_draft_tokens": 4, **options}
    results = generate(target, guesser, [list(prompt) for prompt in PROMPTS], trace=path, **options)
    header, *records = [json.loads(line, parse_constant=refuse) for line in path.read_text("utf-8").splitlines()]
    return header, records, results


def drafter(kind: str, target: Transformer, other: Transformer) -> Drafter | None:
    texts = [[*prompt, *reference(target, tuple(prompt), 30)] for prompt in PROMPTS]
    scripted = Scripted(right_then_wrong(texts, [[0], [2], [4]]))
    return {"none": None, "lookup": Lookup(), "small": Small(other, target), "scripted": scripted}[kind]


@pytest.mark.parametrize("kind", ["none", "lookup", "small", "scripted"])
@pytest.mark.parametrize("options", [{"batch_size": 1}, {"temperature": 1.0}, {"temperature": 0.7, "seed": 3}], ids=str)
def test_records_add_up(kind: str, options: Any, tmp_path: Path, tiny: Transformer, tiny_draft: Transformer) -> None:
    guesser = drafter(kind, tiny, tiny_draft)
    header, records, results = traced(tmp_path / "t.jsonl", tiny, guesser, max_new_tokens=9, **options)
    assert header["format_version"] == 1 and header["target"]["fingerprint"] == tiny.fingerprint
    assert header["drafter"] == (None if guesser is None else guesser.name)
    for index, (prompt, result) in enumerate(zip(PROMPTS, results, strict=True)):
        first, *turns = [record for record in records if record["request"] == index]
        assert (first["start"], first["last"], first["nodes"]) == (len(prompt), prompt[-1], [])
        text = list(prompt)
        for record in (first, *turns):
            assert (record["start"], record["last"]) == (len(text), text[-1])
            tokens = [node["token"] for node in record["nodes"]]
            text += [tokens[node] for node in record["verdict"]["path"]] + [record["verdict"]["next_token"]]
        assert text[: len(prompt) + 9] == [*prompt, *result.token_ids]
        stats = result.stats.speculation
        assert len(turns) == stats.turns
        assert sum(record["num_draft_tokens"] for record in turns) == stats.drafted
        assert sum(len(record["nodes"]) for record in turns) == stats.drafted
        assert sum(len(record["verdict"]["path"]) for record in turns) == stats.matched
        assert {record["verdict"]["rule"] for record in turns if record["nodes"] or not stats.drafted} == {stats.rule}
        assert all(value >= 0 for record in turns for value in record["seconds"].values())


def same_rows(logits: torch.Tensor, shown: list[Any]) -> None:
    for row, one in zip(logits, shown, strict=True):
        torch.testing.assert_close(torch.tensor(one["logits"]), row[one["ids"]], rtol=0, atol=1e-4)
        assert one["logsumexp"] == pytest.approx(float(row.logsumexp(-1)), abs=1e-4)
        assert len(one["ids"]) == 16 and one["logits"] == sorted(one["logits"], reverse=True)


def test_the_numbers_are_the_models(tmp_path: Path, tiny: Transformer, tiny_draft: Transformer) -> None:
    """Raw target logits at every scored row, the draft's law at every node, and coins that their key gives again."""
    guesser = Small(tiny_draft, tiny)
    _, records, _ = traced(tmp_path / "t.jsonl", tiny, guesser, max_new_tokens=9, temperature=1.0, rule="block")
    texts = {index: list(prompt) for index, prompt in enumerate(PROMPTS)}
    for record in records:
        text = texts[record["request"]]
        tokens = [node["token"] for node in record["nodes"]]
        rows = dense_logits(tiny, [*text, *tokens])[len(text) - 1 :]
        guesses = dense_logits(tiny_draft, [*text, *tokens])[len(text) - 1 :]
        laws = guesses.softmax(-1)
        for logits, shown in ((rows, record["target"]), (guesses[: len(tokens)], record["draft"] or [])):
            same_rows(logits, shown)
        for place, node in enumerate(record["nodes"]):
            assert node["parent"] == place - 1
            assert node["target_prob"] == pytest.approx(float(rows[place].softmax(-1)[node["token"]]), abs=1e-5)
            assert node["draft_prob"] == pytest.approx(float(laws[place, node["token"]]), abs=1e-5)
        keys = Keys((record["seed"],), (0,), (record["start"],), (False,))
        assert verdict_coins("block", keys, len(tokens) + 1)[0].tolist() == record["coins"]
        text += [tokens[node] for node in record["verdict"]["path"]] + [record["verdict"]["next_token"]]


def test_a_deterministic_draft_has_probability_one(tmp_path: Path, tiny: Transformer) -> None:
    _, records, _ = traced(tmp_path / "t.jsonl", tiny, Lookup(), max_new_tokens=12)
    drafted = [node for record in records for node in record["nodes"]]
    assert drafted and all(node["draft_prob"] == 1.0 for node in drafted)


def test_forbidden_tokens_are_left_out(tmp_path: Path) -> None:
    """JSON has no infinity."""
    table = random_table(12, seed=1)
    table[:, 3:] = -torch.inf
    path = tmp_path / "t.jsonl"
    generate(table_target(table), Lookup(), [1, 2, 1, 2], max_new_tokens=5, trace=path)
    for line in path.read_text("utf-8").splitlines()[1:]:
        assert all(sorted(row["ids"]) == [0, 1, 2] for row in json.loads(line, parse_constant=refuse)["target"])


def test_a_trace_replaces_an_older_one_and_lasts_when_the_reader_stops(tmp_path: Path, tiny: Transformer) -> None:
    from outpace.decoding.generate import stream

    path = tmp_path / "t.jsonl"
    path.write_text("older\n")
    pieces = iter(stream(tiny, None, [1, 2], max_new_tokens=9, trace=path))
    for _ in range(3):
        next(pieces)
    del pieces
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert lines[0]["format_version"] == 1 and len(lines) == 4
