"""Recordings hold what probes and traces say; an ordinary trace tells less, and what it tells is nearly right."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from outpace.decoding.control import Fixed
from outpace.decoding.generate import generate
from outpace.drafters.budget import Branching
from outpace.drafters.drafter import Drafter
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.errors import UsageError
from outpace.evaluation.metrics import pooled
from outpace.evaluation.probe import write_probe
from outpace.evaluation.workloads import Question
from outpace.models.shape import Shape
from outpace.models.toy import tiny_config, tiny_tensors
from outpace.models.transformer import Transformer
from outpace.tuning.recording import Recording, read_recording
from outpace.tuning.replay import Setting, replay
from outpace.verification.probabilities import Sampling

ASKED = [
    Question("a", "repeats", [7, 8, 7, 8, 7, 8, 7]),
    Question("b", None, [5, 6, 7]),
    Question("c", "others", [9, 3, 9, 11]),
]
NEW = 24


@pytest.fixture(scope="module")
def probe(tiny: Transformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("probe") / "p.jsonl"
    write_probe(path, tiny, Lookup(), ASKED, sampling=Sampling(), max_new_tokens=NEW)
    return path


def test_a_probe_is_read_with_its_texts(probe: Path, tiny: Transformer) -> None:
    found = read_recording(probe)
    assert (found.kind, found.target, found.drafter) == ("probe", tiny.name, "lookup")
    assert [(text.key, text.category, text.prompt, text.limit) for text in found.texts] == [
        (one.key, one.category, len(one.ids), NEW) for one in ASKED
    ]
    for text, one in zip(found.texts, ASKED, strict=True):
        assert list(text.tokens(0, NEW)) == generate(tiny, None, one.ids, max_new_tokens=NEW).token_ids
    assert found.categories == ("repeats", "others") and not found.is_model


def test_categories_are_taken_by_name(probe: Path) -> None:
    found = read_recording(probe)
    assert [text.key for text in found.only(["others"]).texts] == ["c"]
    with pytest.raises(UsageError, match="category is 'news'; allowed in this trace: repeats, others"):
        found.only(["news"])


def test_a_probe_that_was_interrupted_counts_what_it_has(probe: Path, tmp_path: Path) -> None:
    lines = probe.read_text("utf-8").splitlines()
    (tmp_path / "half.jsonl").write_text("\n".join(lines[: 1 + NEW]), "utf-8")
    assert [text.key for text in read_recording(tmp_path / "half.jsonl").texts] == ["a"]
    (tmp_path / "none.jsonl").write_text(lines[0], "utf-8")
    with pytest.raises(UsageError, match="the trace has no text of two tokens"):
        read_recording(tmp_path / "none.jsonl")


# ---- ordinary traces -------------------------------------------------------------------------------------------------


def traced(path: Path, target: Transformer, drafter: Drafter, length: int, **options: Any) -> Recording:
    prompts = [one.ids for one in ASKED]
    generate(target, drafter, prompts, max_new_tokens=NEW, num_draft_tokens=length, trace=path, **options)
    return read_recording(path)


@pytest.mark.parametrize("kind", ["lookup", "small"])
@pytest.mark.parametrize("heat", [0.0, 0.8])
def test_a_trace_says_of_itself_what_happened(
    kind: str, heat: float, tmp_path: Path, tiny: Transformer, tiny_draft: Transformer
) -> None:
    drafter = Lookup() if kind == "lookup" else Small(tiny_draft, tiny)
    prompts = [one.ids for one in ASKED]
    options: dict[str, Any] = {"max_new_tokens": NEW, "num_draft_tokens": 4, "temperature": heat, "seed": 3}
    real = pooled([one.stats.speculation for one in generate(tiny, drafter, prompts, trace=tmp_path / "t", **options)])
    said = replay(read_recording(tmp_path / "t"), Setting(4, temperature=heat))
    assert said.tau == pytest.approx(real.tau) and said.unsure == 0
    assert said.acceptance_by_position == pytest.approx(real.acceptance_by_position)
    assert said.approximate == (
        "an ordinary trace: where no turn began, drafts are taken to be as good as the usual one",
    )


def test_a_trace_guesses_shorter_chains(tmp_path: Path, tiny: Transformer) -> None:
    """Where no turn began, the usual acceptance stands in: near, and it says for which share of turns.

    The drafter is the target with a tenth off its logits at a temperature, seeded: unlike, and often right.
    """
    config = tiny_config()
    tensors = tiny_tensors(config, seed=3)
    tensors["lm_head.weight"] *= 0.9
    often = Small(Transformer(Shape.from_config(config), tensors, dtype=torch.float32, packed=False), tiny)
    law: dict[str, Any] = {"temperature": 1.0, "seed": 2}
    found, shorter = (traced(tmp_path / name, tiny, often, length, **law) for name, length in (("t", 6), ("u", 2)))
    real, said = (replay(one, Setting(2, temperature=1.0)) for one in (shorter, found))
    assert 0 < said.unsure < 1 and real.tau > 1.5 and said.tau == pytest.approx(real.tau, rel=0.15)


def test_what_a_trace_cannot_tell(tmp_path: Path, tiny: Transformer, tiny_draft: Transformer) -> None:
    found = traced(tmp_path / "t", tiny, Lookup(), 4)
    for setting, words in (
        (Setting(5), "drafts are 5 deep; allowed: up to 4"),
        (Setting(4, "top-k:2"), "tree is top-k:2, and the trace has chains; allowed: chain\nhint: a probe tells of"),
        (Setting(4, temperature=0.3), "temperature is 0.3; allowed for this trace: 0"),
    ):
        with pytest.raises(UsageError, match=words):
            replay(found, setting)
    with pytest.raises(UsageError, match="is a trace of trees; allowed: a trace of chains, or a probe"):
        traced(tmp_path / "u", tiny, Small(tiny_draft, tiny), 6, tree="top-k:2")
    generate(tiny, None, ASKED[0].ids, max_new_tokens=4, trace=tmp_path / "v")
    with pytest.raises(UsageError, match="is a trace without drafts"):
        read_recording(tmp_path / "v")


def test_broken_lines_are_named(tmp_path: Path, tiny: Transformer, probe: Path) -> None:
    traced(tmp_path / "t", tiny, Lookup(), 4)
    lines = (tmp_path / "t").read_text("utf-8").splitlines()
    (tmp_path / "t").write_text("\n".join([*lines[:3], '{"request": 0}']), "utf-8")
    with pytest.raises(UsageError, match="line 4, is no record of a turn; allowed: what --trace wrote"):
        read_recording(tmp_path / "t")
    (tmp_path / "t").write_text("words", "utf-8")
    with pytest.raises(UsageError, match="is no probe of version 1"):
        read_recording(tmp_path / "t")
    header = json.loads(probe.read_text("utf-8").splitlines()[0])
    del header["probe"]["texts"]
    (tmp_path / "t").write_text(json.dumps(header), "utf-8")
    with pytest.raises(UsageError, match="the probe does not name its texts"):
        read_recording(tmp_path / "t")


def test_a_longer_chain_is_told_by_every_place(probe: Path, tiny: Transformer) -> None:
    """Against the decoder, as the tests of replay do: here through the file."""
    prompts = [one.ids for one in ASKED]
    real = pooled(
        [one.stats.speculation for one in generate(tiny, Lookup(), prompts, max_new_tokens=NEW, num_draft_tokens=7)]
    )
    assert replay(read_recording(probe), Setting(7)).tau == real.tau
    assert replay(read_recording(probe), Setting(7), control=lambda: Fixed(Branching(), 7)).tau == real.tau
