"""A probe reads the target's own text token by token, drafts at each position, and can be read back as it was."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from outpace.decoding.generate import generate
from outpace.decoding.trace import Logits
from outpace.drafters.budget import DYNAMIC, Budget
from outpace.drafters.drafter import Drafter
from outpace.drafters.either import Either
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.errors import UsageError
from outpace.evaluation.probe import DEPTH, NODES, Node, Probe, Record, probe_text, read_probe, write_probe
from outpace.evaluation.workloads import Question
from outpace.models.shape import Shape
from outpace.models.toy import tiny_config, tiny_tensors
from outpace.models.transformer import Transformer
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling
from toys import Scripted, dense_logits, lively, must_fail, reference, right_then_wrong

ASKED = [Question("a", "x", [5, 6, 7]), Question("b", None, [7, 8, 7, 8, 7, 8, 7])]
NEW = 12
GREEDY = Sampling()
SAMPLED = Sampling(0.9, top_k=40)


def written(path: Path, target: Any, drafter: Drafter, sampling: Sampling = GREEDY, seed: int = 0) -> Probe:
    count = write_probe(path, target, drafter, ASKED, sampling=sampling, max_new_tokens=NEW, seed=seed)
    found = read_probe(path)
    assert len(found.records) == count
    return found


def texts(found: Probe) -> list[list[int]]:
    return [
        [*question.ids, *(record.token for record in found.records if record.request == place)]
        for place, question in enumerate(ASKED)
    ]


@pytest.mark.parametrize("kind", ["lookup", "small"])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_every_position_of_the_plain_text_has_a_record(
    kind: str, sampling: Sampling, tmp_path: Path, tiny: Transformer, tiny_draft: Transformer
) -> None:
    drafter = Lookup() if kind == "lookup" else Small(tiny_draft, tiny)
    found = written(tmp_path / "p.jsonl", tiny, drafter, sampling, seed=4)
    plain = [
        generate(tiny, None, question.ids, max_new_tokens=NEW, seed=4, **asdict(sampling)).token_ids
        for question in ASKED
    ]
    assert texts(found) == [[*question.ids, *said] for question, said in zip(ASKED, plain, strict=True)]
    for place, (question, text) in enumerate(zip(ASKED, texts(found), strict=True)):
        records = [record for record in found.records if record.request == place]
        assert [record.start for record in records] == list(range(len(question.ids), len(text)))
        assert [record.last for record in records] == text[len(question.ids) - 1 : -1]
        assert records[0].nodes == [] and records[0].draft is None
        assert all(
            [node.parent for node in record.nodes] == list(range(-1, len(record.nodes) - 1)) for record in records
        )
        assert max(len(record.nodes) for record in records) == DEPTH
        if kind == "small":
            assert all(len(record.nodes) == DEPTH and len(record.draft or []) == DEPTH for record in records[1:])
        else:
            assert all(record.draft is None for record in records)


def same_row(logits: torch.Tensor, shown: Logits) -> None:
    torch.testing.assert_close(torch.tensor(shown.logits), logits[shown.ids], rtol=0, atol=1e-4)
    assert shown.logsumexp == pytest.approx(float(logits.logsumexp(-1)), abs=1e-4)
    assert len(shown.ids) == 16 and shown.logits == sorted(shown.logits, reverse=True)


def test_the_numbers_are_the_models(tmp_path: Path, tiny: Transformer) -> None:
    """Rows of target and draft behind the true text and the draft so far, read afresh; the law that a node was drawn
    from; and the target's probability of every node whose ancestors the text has.

    The drafter is the target with a tenth off its logits: unlike, and often right. That no first draft comes true,
    which would show nothing of second ones, has a chance that the text tells: of 40 seeds 1e-9 was the most.
    """
    config, heat = tiny_config(), 0.5
    tensors = tiny_tensors(config, seed=3)
    tensors["lm_head.weight"] *= 0.9
    near = Transformer(Shape.from_config(config), tensors, dtype=torch.float32, packed=False, name="near")
    found = written(tmp_path / "p.jsonl", tiny, Small(near, tiny), Sampling(heat), seed=5)
    known, missed = 0, 1.0
    for record in found.records:
        text = texts(found)[record.request]
        before, drafted = text[: record.start], [node.token for node in record.nodes]
        same_row(dense_logits(tiny, before)[-1], record.target[0])
        guesses = dense_logits(near, [*before, *drafted])[len(before) - 1 :]
        for logits, shown, node in zip(guesses, record.draft or [], record.nodes, strict=False):
            same_row(logits, shown)
            assert node.draft_prob == pytest.approx(float((logits / heat).softmax(-1)[node.token]), abs=1e-5)
        if drafted and record.start + 1 < len(text):
            missed *= 1 - float((guesses[0] / heat).softmax(-1)[record.token])
        for depth, node in enumerate(record.nodes):
            place = record.start + depth
            agrees = drafted[:depth] == text[record.start : place] and place < len(text)
            assert (node.target_prob is not None) == agrees
            if node.target_prob is not None:
                row = dense_logits(tiny, text[:place])[-1].softmax(-1)
                assert node.target_prob == pytest.approx(float(row[node.token]), abs=1e-5)
                known += depth > 0
    assert missed < 1e-7, "this text leaves a draft too much room to miss it: take another one"
    assert known, "no draft came true: nothing was shown about its second token"


def test_a_draft_that_comes_true_is_known_to_its_end(tmp_path: Path, tiny: Transformer) -> None:
    """A drafter that knows the text: all of its nodes within the text have a probability, the greatest."""
    whole = [[*question.ids, *reference(tiny, tuple(question.ids), NEW + DEPTH)] for question in ASKED]
    found = written(tmp_path / "p.jsonl", tiny, Scripted(right_then_wrong(whole, [DEPTH])))
    for record in found.records[1:NEW]:
        inside = len(ASKED[0].ids) + NEW - record.start
        probs = [node.target_prob for node in record.nodes]
        assert all(prob is not None and prob > 1 / 64 for prob in probs[:inside])
        assert probs[inside:] == [None] * (len(probs) - inside) and len(probs) == DEPTH


def test_what_is_followed_is_what_the_drafter_says_of_the_text(tmp_path: Path, tiny: Transformer) -> None:
    """At every position and depth, told all tokens of the text before; the target's own token beside it."""
    heat, near = 0.5, lively(seed=4, layers=1)
    found = written(tmp_path / "p.jsonl", tiny, Small(near, tiny), Sampling(heat), seed=5)
    depths = []
    for record in found.records[1::3]:
        text = texts(found)[record.request]
        for depth, one in enumerate(record.followed or []):
            token, logits = text[record.start + depth], dense_logits(near, text[: record.start + depth])[-1]
            same_row(logits, one.row)
            assert one.prob == pytest.approx(float(logits.softmax(-1)[token]), abs=1e-5)
            assert one.law == pytest.approx(float((logits / heat).softmax(-1)[token]), abs=1e-5)
            assert one.rank == int((logits > logits[token]).sum())
            depths.append(depth)
        ours = dense_logits(tiny, text[: record.start])[-1]
        assert record.said is not None and record.said.rank == int((ours > ours[record.token]).sum())
        assert record.said.law == pytest.approx(float((ours / heat).softmax(-1)[record.token]), abs=1e-5)
    assert max(depths) == DEPTH - 1


def test_a_recorded_tree_is_the_one_that_is_drafted(tmp_path: Path, tiny: Transformer) -> None:
    """Node by node what the drafter proposes there, with its probabilities; a drafter of chains has none."""
    drafter = Small(lively(seed=4, layers=1), tiny)
    found = written(tmp_path / "p.jsonl", tiny, drafter)
    for record in (found.records[1], found.records[-1]):
        text = texts(found)[record.request]
        state = drafter.open(1, len(text) + NODES)
        drafter.admit(state, [text[: record.start - 1]], None)
        drafter.commit(state, [[record.last]], None)
        keys = Keys((0,), (0,), (record.start,), (False,))
        drawn = drafter.propose(state, Budget([DEPTH], [NODES], DYNAMIC), [GREEDY], keys)
        nodes = record.trees["top-k:8"]
        assert [([node.token for node in nodes], [node.parent for node in nodes])] == drawn.tree.to_lists()
        logits = dense_logits(drafter.model, text[: record.start])[-1]
        tops = [node for node in nodes if node.parent < 0]
        assert [node.token for node in tops] == logits.topk(len(tops)).indices.tolist()
        assert tops[0].draft_prob == pytest.approx(float(logits.softmax(-1).max()), abs=1e-5)
    assert all(not record.trees for record in written(tmp_path / "q.jsonl", tiny, Lookup()).records)


def test_the_same_probe_is_the_same_file(tmp_path: Path, tiny: Transformer, tiny_draft: Transformer) -> None:
    drafter = Small(tiny_draft, tiny)
    files = []
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        written(tmp_path / name, tiny, drafter, Sampling(1.0), seed)
        files.append((tmp_path / name).read_bytes())
    assert files[0] == files[1] != files[2]


def test_records_are_read_as_they_were_made(tmp_path: Path, tiny: Transformer, tiny_draft: Transformer) -> None:
    """To the last digit of every number."""
    drafter = Small(tiny_draft, tiny)
    found = written(tmp_path / "p.jsonl", tiny, drafter, SAMPLED, seed=1)
    made: list[Record] = []
    for place, question in enumerate(ASKED):
        said = texts(found)[place][len(question.ids) :]
        made += probe_text(tiny, drafter, question.ids, said, SAMPLED, 1, place)
    assert found.records == made
    assert found.header["probe"] == {
        "depth": 8,
        "deepest": None,
        "candidates": 16,
        "seed": 1,
        "tree_nodes": 64,
        "trees": [str(DYNAMIC)],
        "rates": [],
        "texts": [{"id": one.key, "category": one.category, "prompt": one.ids, "limit": NEW} for one in ASKED],
    }
    assert found.header["format_version"] == 1 and found.header["drafter"] == drafter.name
    assert found.header["target"]["fingerprint"] == tiny.fingerprint
    assert found.header["sampling"] == asdict(SAMPLED)
    with must_fail():
        broken = made[3].nodes[0]
        made[3].nodes[0] = Node(broken.parent, broken.token, broken.draft_prob * (1 + 1e-15), broken.target_prob)
        assert found.records == made


def test_a_drafter_on_features_is_given_those_of_every_token_read(tiny: Transformer) -> None:
    """As in decoding: the prompt's with the first token, then one row a token, in order, and none twice."""
    drafter = Scripted(lambda row, limit: [1] * limit, taps=(1, "last_normed"))
    prompt = ASKED[1].ids
    said = reference(tiny, tuple(prompt), NEW)
    probe_text(tiny, drafter, prompt, said, GREEDY, 0, 0)
    text = [*prompt, *said]
    state = tiny.open(1, len(text))
    whole = tiny.prefill(state, torch.tensor([text[:-1]]), [len(text) - 1], drafter.taps).features
    assert whole is not None
    given = torch.cat(drafter.rows[0].features)
    torch.testing.assert_close(given, whole[0], rtol=0, atol=1e-4)
    assert drafter.rows[0].known == text
    with must_fail():
        torch.testing.assert_close(given.roll(1, 0), whole[0], rtol=0, atol=1e-4)


def test_drafts_end_where_the_context_does(tiny: Transformer) -> None:
    """As in decoding: a turn emits a token of its own, so that the last position of the context is never drafted."""
    room = tiny.max_positions
    prompt = [(3 * place) % 60 for place in range(room - 4)]
    said = generate(tiny, None, prompt, max_new_tokens=None).token_ids
    drafter = Scripted(lambda row, limit: [1] * limit)
    records = probe_text(tiny, drafter, prompt, said, GREEDY, 0, 0)
    assert [record.start + len(record.nodes) for record in records[1:]] == [room - 1] * 3
    assert len(said) == 4


BROKEN = [
    ("", "is no probe of version 1; allowed: a trace that bench --probe wrote\nhint: a trace of generate has turns"),
    ("words\n", "is no probe of version 1"),
    ('{"format_version": 1}\n', "is no probe of version 1"),
    ('{"format_version": 2, "probe": {}}\n', "is no probe of version 1"),
    ("[1]\n", "is no probe of version 1"),
    ('{"format_version": 1, "probe": {}}\n{"request": 0}\n', "line 2, is no record of a probe"),
    ('{"format_version": 1, "probe": {}}\n{"request"\n', "line 2, is no record of a probe"),
    ('{"format_version": 1, "probe": {}}\n7\n', "line 2, is no record of a probe"),
]


@pytest.mark.parametrize(("content", "words"), BROKEN, ids=range(len(BROKEN)))
def test_what_is_no_probe_is_refused(content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(content, "utf-8")
    with pytest.raises(UsageError, match=words):
        read_probe(tmp_path / "p.jsonl")


def test_files_that_cannot_be_opened(tmp_path: Path, tiny: Transformer) -> None:
    with pytest.raises(UsageError, match=r"the trace .*nowhere\.jsonl cannot be read: "):
        read_probe(tmp_path / "nowhere.jsonl")
    with pytest.raises(UsageError, match=r"the trace cannot be written to .*: No such file"):
        written(tmp_path / "no" / "p.jsonl", tiny, Lookup())


def test_what_the_drafter_said_of_its_draft_is_recorded(
    tmp_path: Path, tiny: Transformer, tiny_draft: Transformer
) -> None:
    found = written(tmp_path / "p.jsonl", tiny, Lookup())
    for place, text in enumerate(texts(found)):
        for record in (one for one in found.records if one.request == place and one.start > len(ASKED[place].ids)):
            drafter = Lookup()
            state = drafter.open(1, 8)
            drafter.admit(state, [text[: record.start]], None)
            assert [record.grade] == drafter.grades(state) and (record.grade == 0) == (not record.nodes)
    assert len({record.grade for record in found.records}) > 2
    assert all(one.grade is None for one in written(tmp_path / "m.jsonl", tiny, Small(tiny_draft, tiny)).records)


def test_two_that_are_joined_are_probed_apart(tmp_path: Path, tiny: Transformer, tiny_draft: Transformer) -> None:
    both = Either(Lookup(), Small(tiny_draft, tiny))
    with pytest.raises(UsageError, match=r"the drafter is 'lookup\+small.*'; allowed for a probe: one that is not joi"):
        written(tmp_path / "p.jsonl", tiny, both)
    assert not (tmp_path / "p.jsonl").exists()


def test_a_trace_of_turns_is_no_probe(tmp_path: Path, tiny: Transformer) -> None:
    generate(tiny, Lookup(), [1, 2, 3], max_new_tokens=5, num_draft_tokens=2, trace=tmp_path / "t.jsonl")
    assert json.loads((tmp_path / "t.jsonl").read_text("utf-8").splitlines()[0])["format_version"] == 1
    with pytest.raises(UsageError, match="is no probe of version 1"):
        read_probe(tmp_path / "t.jsonl")
