"""What turns add up to is what decoding itself counted, and a shorter draft would have had what the trace says."""

from pathlib import Path
from typing import Any

import pytest

from outpace.report.pieces import Pieces
from outpace.report.reading import by_request, read_trace
from outpace.report.story import story
from outpace.report.summary import cut, speculations, steps_of, summary

WAYS: dict[str, dict[str, Any]] = {
    "rejection": {"rule": "rejection"},
    "block": {"rule": "block"},
    "tree-rejection": {"rule": "tree-rejection", "tree": "sampled:2", "num_draft_tokens": 6, "depth": 3},
    "traversal": {"rule": "traversal", "tree": "sampled:2", "num_draft_tokens": 6, "depth": 3},
    "match": {"rule": "match", "tree": "top-k:2", "num_draft_tokens": 6, "depth": 3},
    "coupling": {},
    "greedy": {"temperature": 0.0, "seed": None},
    "plain": {"num_draft_tokens": 0},
}


@pytest.mark.parametrize("way", WAYS)
def test_figures_are_those_of_decoding_and_every_verdict_is_explained(way: str, toy_trace: Any) -> None:
    """A vocabulary that fits a record: every law is exact, so that every coin has to agree with its verdict."""
    path, results = toy_trace(**WAYS[way])
    trace = read_trace(path)
    for found, result in zip(speculations(trace), results, strict=True):
        counted = result.stats.speculation
        for name in ("turns", "plain_turns", "drafted", "matched", "tried", "passed", "acceptance", "lossless"):
            assert getattr(found, name) == getattr(counted, name), name
    told = story(trace, Pieces(None))
    turns = [turn for run in told["runs"] for turn in run["turns"]]
    assert all(turn["explained"] for turn in turns)
    assert not any(row["about"] for turn in turns for row in turn["rows"].values())
    said = summary(trace)
    assert said["texts"] == 3 and said["turns"] == sum(result.stats.speculation.turns for result in results)
    assert sum(len(run["said"]) for run in told["runs"]) == sum(len(one.emitted) for one in trace.records)
    if way == "plain":
        assert (said["acceptance"], said["positions"], said["cut"], said["plain_turn_share"]) == (None, [], [], 1.0)
    else:
        assert {turn["rule"] for turn in turns if turn["nodes"]} == {way}


def test_a_shorter_draft_would_have_had_what_the_trace_says(toy_trace: Any) -> None:
    path, _ = toy_trace(rule="rejection", num_draft_tokens=4)
    trace = read_trace(path)
    drafted = [one for records in by_request(trace.records).values() for one in records if len(one.tokens) == 4]
    lengths = [len(record.path) for record in drafted]
    expected = [1 + sum(min(length, depth) for length in lengths) / len(lengths) for depth in range(5)]
    assert cut([one for one in trace.records if one.tokens]) == pytest.approx(expected, rel=1e-3)
    assert cut([]) == []
    assert summary(read_trace(toy_trace(rule="block")[0]))["cut"] == []


def test_rows_of_one_batch_share_their_seconds(toy_trace: Any) -> None:
    path, _ = toy_trace(rule="rejection")
    trace = read_trace(path)
    steps = steps_of(trace)
    assert max(map(len, steps)) == 3, "three texts are decoded at once"
    assert sum(map(len, steps)) == summary(trace)["turns"]
    whole = sum(step[0].seconds["verify"] for step in steps)
    assert summary(trace)["seconds"]["verify"] == pytest.approx(whole, rel=1e-3)
    assert summary(trace)["costs"]["verify"].keys() <= {*range(1, 6)}


def test_tokens_without_a_tokenizer_are_numbers(toy_trace: Any, tmp_path: Path) -> None:
    """Nothing is fetched for a target that is not here."""
    trace = read_trace(toy_trace()[0])
    pieces = Pieces.of("nobody/has-this", "a-b-c")
    assert not pieces.tells_words and pieces.piece(7) == "#7"
    assert Pieces.of("toy", None, tmp_path).piece(3) == "#3"
    assert story(trace, pieces)["words"] is False


def test_tokens_say_what_the_text_says(letters: Path, octets: Path) -> None:
    """A piece by itself, the pieces of a text, special tokens by name, and characters of several tokens."""
    pieces = Pieces.of("here", None, letters)
    ids = pieces.text.tokenizer.encode("end to", add_special_tokens=False) if pieces.text else []
    assert "".join(pieces.said(ids)) == "end to" and pieces.piece(ids[3]) == " "
    special = pieces.text.tokenizer.convert_tokens_to_ids("<eos>") if pieces.text else 0
    assert pieces.piece(special) == "<eos>" and pieces.said([ids[0], special]) == ["e", "<eos>"]
    bytewise = Pieces.of("here", None, octets)
    ids = bytewise.text.tokenizer.encode("é€", add_special_tokens=False) if bytewise.text else []
    assert bytewise.said(ids) == ["", "é", "", "", "€"]
    assert bytewise.said(ids[:3]) == ["", "é", "\ufffd"]
