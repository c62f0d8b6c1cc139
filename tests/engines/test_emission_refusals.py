"""What cannot be emitted is refused by name; what is near enough is emitted, and what it is not is said."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cards import written
from heads import random_head, shape_of
from outpace.decoding.plan import Choice
from outpace.drafters.record import read_record
from outpace.engines import guesser as guessers
from outpace.engines.emit import ENGINES, emit, emit_pair
from outpace.engines.guesser import Guesser, guesser
from outpace.engines.schema import schema, versions
from outpace.errors import UnsupportedError, UsageError
from outpace.export.formats import export
from plans import DRAFT, emitted, plan_of

CHAIN = {"num_draft_tokens": 5}


@pytest.mark.parametrize(
    ("engine", "kind", "message", "hint"),
    [
        ("vllm", "medusa", "vllm 0.33.0 does not take method = 'medusa'; allowed: ngram, draft_model", "0.32.0"),
        (
            "sglang",
            "medusa",
            "SGLang does not draft with Medusa heads; allowed: lookup, a smaller model, or an",
            "emit",
        ),
        (
            "trtllm",
            "eagle1",
            "TensorRT-LLM does not draft with an EAGLE-1 head; allowed: lookup, a smaller",
            "emit for",
        ),
        ("trtllm", "medusa", "TensorRT-LLM does not draft with Medusa heads", "emit for another engine"),
        ("llamacpp", "eagle1", "llama.cpp does not draft with an EAGLE-1 head", "emit for another engine"),
        ("transformers", "eagle3", "transformers does not draft with an EAGLE-3 head; allowed: lookup, or", "emit for"),
        ("openvino", "medusa", "OpenVINO GenAI does not draft with Medusa heads", "emit for another engine"),
    ],
)
def test_a_drafter_that_an_engine_does_not_have(engine: str, kind: str, message: str, hint: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        emitted(engine, kind, **CHAIN)
    assert caught.value.message.startswith(message) and hint in (caught.value.hint or "")


def test_older_llamacpp_has_no_heads() -> None:
    with pytest.raises(UnsupportedError, match="f49e91787 does not draft with an EAGLE-3 head; allowed: lookup, or a"):
        emitted("llamacpp", "eagle3", "f49e91787", **CHAIN)


@pytest.mark.parametrize("engine", ENGINES)
def test_versions_that_nobody_read(engine: str) -> None:
    known = ", ".join(versions(engine))
    with pytest.raises(UsageError) as caught:
        emitted(engine, "lookup", "0.0.1", **CHAIN)
    assert caught.value.message == f"the version of {engine} is '0.0.1'; allowed: {known}"
    assert emitted(engine, "lookup", **CHAIN).version == versions(engine)[-1]


def test_versions_go_by_their_numbers() -> None:
    assert versions("vllm") == ["0.32.0", "0.33.0"]
    assert versions("llamacpp") == ["f49e91787", "0c1e57098"], "commits go by the order that their files say"


def test_unknown_words() -> None:
    with pytest.raises(UsageError, match="the engine is 'tgi'; allowed: vllm, sglang, trtllm, llamacpp, transformers"):
        emitted("tgi", "lookup", **CHAIN)
    plan = plan_of(Choice(**CHAIN), Choice(category="rag", num_draft_tokens=2))
    with pytest.raises(UsageError, match="category is 'code'; allowed: all, rag, as in the plan"):
        emit(plan, "vllm", category="code")
    with pytest.raises(UsageError, match="batch is 0; allowed: 1 or more"):
        emit(plan, "vllm", batch=0)
    with pytest.raises(UsageError, match="kind is 'lookup'; allowed: model, eagle3, eagle1, medusa"):
        emit(plan_of(Choice(drafter=DRAFT, **CHAIN)), "vllm", kind="lookup")
    with pytest.raises(UsageError, match=r"no drafter is known for 'org/target'; allowed: meta-llama/Llama-3.1-8B-Ins"):
        emit_pair("org/target", "vllm")


def test_a_drafter_that_is_nowhere() -> None:
    with pytest.raises(UsageError, match=r"drafter 'org/draft' is not on this machine .* --kind model or eagle3 or"):
        emit(plan_of(Choice(drafter=DRAFT, **CHAIN)), "vllm")
    with pytest.raises(UsageError, match=r"the drafter is 'eagle3', and no head comes with outpace for the target of"):
        emit(plan_of(Choice(drafter="eagle3", **CHAIN)), "vllm")
    assert guesser("auto", "made-for-nothing").kind == "lookup"
    assert guesser("AngelSlim/Qwen3-8B_eagle3", "").kind == "eagle3", "a well-known one need not be here"


def test_lookup_beside_a_model_is_given_up() -> None:
    """One drafter: what is emitted is that of the model alone, and it is said; a model that is named as well is it."""
    alone, joined = Choice(drafter=DRAFT, **CHAIN), Choice(drafter=f"lookup+{DRAFT}", **CHAIN)
    for choices in ([joined], [joined, replace(alone, batch=8)], [alone, replace(joined, batch=8)]):
        done = emit(plan_of(*choices), "vllm", kind="model")
        assert replace(done, cannot=done.cannot[1:]) == emit(plan_of(alone), "vllm", kind="model")
        assert (done.cannot[0].what, done.cannot[0].nearest) == (
            f"lookup beside {DRAFT}, where the text repeats itself: an engine is started with one drafter",
            f"{DRAFT} there too, which costs its steps; it was not measured so",
        )
    assert not [one for one in emit(plan_of(alone), "vllm", kind="model").cannot if "beside" in one.what]
    other = emit(
        plan_of(replace(alone, num_draft_tokens=3), Choice(drafter="lookup+a/b", batch=8)), "vllm", kind="model"
    )
    assert [one.what for one in other.cannot][:1] == [
        f"the drafter lookup+a/b from batch 8 on: an engine is started with one, here {DRAFT}"
    ]
    for name in ("lookup", "auto", "", "lookup+a/b"):
        with pytest.raises(
            UsageError, match=re.escape(f"lookup is joined with {name!r}; allowed: a head or a smaller")
        ):
            emit(plan_of(Choice(drafter=f"lookup+{name}", **CHAIN)), "vllm")


def test_auto_is_the_head_that_comes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which lookup drafts beside; without a head it is lookup alone, and nothing is given up."""
    folder = written(tmp_path / "head")
    made_for = read_record(folder).target.fingerprint
    monkeypatch.setattr(guessers, "HEADS", tmp_path)
    plan = replace(plan_of(Choice(drafter="auto", **CHAIN)), fingerprint=made_for)
    done = emit(plan, "sglang")
    assert str(folder) in done.argv or str(folder) in done.script
    assert done.cannot[0].what.startswith("lookup beside eagle3, where the text repeats itself: an engine is started")
    assert not [one for one in emit(plan_of(Choice(drafter="auto", **CHAIN)), "sglang").cannot if "beside" in one.what]
    one = emit(replace(plan, choices=(Choice(drafter="eagle3", **CHAIN),)), "sglang")
    assert replace(done, cannot=done.cannot[1:]) == one


@pytest.mark.parametrize("engine", ENGINES)
def test_plain_decoding_has_no_flags_of_speculation(engine: str) -> None:
    done = emitted(engine, "none")
    assert done.config is None and not any("spec" in word for word in done.argv) and done.cannot == ()
    assert "draft" not in done.script and "assist" not in done.script and "lookup" not in done.script


def test_what_is_given_up_is_said() -> None:
    """A tree, auto, a lossy rule and other batch sizes, each with what stands in its place; then what requests miss."""
    plan = plan_of(Choice(drafter=DRAFT, tree="top-p:0.9", depth=6, rule="typical"), Choice(drafter="none", batch=16))
    said = [(one.what, one.nearest) for one in emit(plan, "llamacpp", kind="eagle3").cannot]
    assert said[0] == (
        "the rule typical, which is not lossless: no engine has it in this form",
        "the engine's lossless acceptance",
    )
    assert said[1] == (
        "drafts by batch size (no drafts from batch 16 on): llama.cpp drafts alike at all of them",
        "16 nodes, 4 deep at every batch size; --batch N emits what the plan has for N",
    )
    assert said[2][0] == "auto: llama.cpp does not choose the number of drafts anew each turn"
    assert said[3] == (
        "the tree top-p:0.9 (16 nodes, 4 deep): llama.cpp drafts chains with an EAGLE-3 head",
        "a chain of 4, of which fewer tokens a turn are accepted than of the tree",
    )
    assert said[4][0] == "log-probabilities: those of speculated tokens are all 0"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_requests_without_min_p(engine: str) -> None:
    said = [one.what for one in emitted(engine, "lookup", **CHAIN).cannot]
    assert any(what.startswith("min_p") for what in said)
    assert any("shared-noise coupling" in what for what in said)


def test_one_rule_at_every_batch_size() -> None:
    plan = plan_of(
        Choice(drafter=DRAFT, rule="block", **CHAIN), Choice(drafter=DRAFT, rule="match", batch=8, num_draft_tokens=2)
    )
    done = emit(plan, "vllm", kind="model")
    assert done.config is not None and done.config["rejection_sample_method"] == "block"
    assert done.cannot[0].what == "rules by batch size (match besides block): an engine has one"


def test_notes_of_a_plan() -> None:
    plan = plan_of(
        Choice(**CHAIN), Choice(temperature=0.8, num_draft_tokens=2), Choice(category="rag", num_draft_tokens=9)
    )
    cold, hot = emit(plan, "vllm"), emit(plan, "vllm", temperature=1.0)
    assert cold.notes == (
        "left out: choices of their own for rag; --category NAME emits one of them",
        "left out: choices for temperatures from 0.8 on; --temperature T emits those for T",
    )
    assert hot.config is not None and hot.config["num_speculative_tokens"] == 2
    assert "left out: choices for temperatures from 0 on; --temperature T emits those for T" in hot.notes


# ---- heads with a card -----------------------------------------------------------------------------------------------


def test_a_card_is_exported_where_an_engine_reads_another_layout(tmp_path: Path) -> None:
    """vLLM reads a card as it is; what is emitted before SGLang is the very command that makes its layout."""
    card = written(tmp_path / "card", random_head(shape_of(taps=(2, 4, 5))))
    plan = plan_of(Choice(drafter=str(card), **CHAIN))
    served = emit(plan, "vllm")
    assert served.prepare == () and served.config is not None and served.config["model"] == str(card)
    done = emit(plan, "sglang")
    assert done.prepare == (("outpace", "export", str(card), "--to", "sglang", "--out", "card-sglang"),)
    assert done.argv[done.argv.index("--speculative-draft-model-path") + 1] == "card-sglang"
    assert export(str(card), "sglang", tmp_path / "card-sglang").files
    assert emit(plan, "trtllm").config == {
        "speculative_config": {
            "decoding_type": "Eagle3",
            "max_draft_len": 5,
            "speculative_model": str(card),
            "eagle3_layers_to_capture": [1, 3, 4],
        }
    }
    assert emit(plan, "openvino").prepare[1][4] == "safeailab"


@pytest.mark.parametrize(
    ("engine", "layout", "changes"),
    [
        ("sglang", "sglang", {"norm_before_residual": True}),
        ("sglang", "sglang", {"taps": (0, 4, 5)}),
        ("llamacpp", "sglang", {"taps": (0, 4, 5)}),
        ("openvino", "safeailab", {"taps": (1, 4, 5)}),
        ("openvino", "safeailab", {"fc_norm": True}),
    ],
)
def test_a_head_that_a_layout_cannot_carry(tmp_path: Path, engine: str, layout: str, changes: dict[str, Any]) -> None:
    """Refused as ``outpace export`` refuses it, so that no command is emitted that would fail."""
    card = written(tmp_path / "card", random_head(shape_of(**{"taps": (2, 4, 5)} | changes)))
    with pytest.raises(UnsupportedError) as ours:
        emit(plan_of(Choice(drafter=str(card), **CHAIN)), engine)
    with pytest.raises(UnsupportedError) as theirs:
        export(str(card), layout, tmp_path / "out")
    assert ours.value.message == theirs.value.message


@pytest.mark.parametrize("said", [{}, {"depth": 8}, {"num_draft_tokens": 5}], ids=["auto", "auto bound", "five"])
def test_medusa_drafts_no_deeper_than_it_has_heads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: dict[str, Any]
) -> None:
    """vLLM would make heads for the others out of nothing."""
    card = read_record(written(tmp_path / "card", random_head(shape_of(taps=(2, 4, 5)))))
    whole = card.target.vocab_size
    card = replace(card, method="medusa", taps=(), flags={"own_head": False}, depth_trained=3, draft_vocab_size=whole)
    monkeypatch.setattr("outpace.engines.wish.guesser", lambda *names: Guesser("medusa", DRAFT, card))
    done = emit(plan_of(Choice(drafter=DRAFT, **said)), "vllm", "0.32.0")
    assert done.config is not None and done.config["num_speculative_tokens"] == 3


def test_medusa_has_no_schedule() -> None:
    """vLLM has one for its other methods alone."""
    plan = plan_of(Choice(drafter=DRAFT, num_draft_tokens=3), Choice(drafter="none", batch=8))
    done = emit(plan, "vllm", "0.32.0", kind="medusa")
    assert done.config == {"method": "medusa", "model": DRAFT, "num_speculative_tokens": 3}
    assert done.cannot[0].what == (
        "drafts by batch size (no drafts from batch 8 on): vLLM with Medusa heads drafts alike at all of them"
    )


def test_a_temperature_that_openvino_cannot_keep_is_said() -> None:
    done = emitted("openvino", "eagle3", **CHAIN, rule="match", temperature=0.7)
    assert "do_sample = False" in (done.python or "")
    assert done.cannot[0].what == "temperature 0.7: OpenVINO GenAI has no exact acceptance of drawn drafts"


@pytest.mark.parametrize("engine", ["llamacpp", "openvino"])
def test_two_models_of_one_name_are_not_converted_to_one_file(engine: str) -> None:
    plan = plan_of(Choice(drafter="one/model", **CHAIN), target="another/model")
    with pytest.raises(UsageError, match="the target and the drafter both become 'model"):
        emit(plan, engine, kind="model")


def test_a_head_of_part_of_the_vocabulary_cannot_be_drawn_from_by_sglang(tmp_path: Path) -> None:
    card = written(tmp_path / "card", random_head(shape_of(taps=(2, 4, 5))))
    done = emit(plan_of(Choice(drafter=str(card), rule="block", **CHAIN)), "sglang")
    assert "--speculative-use-rejection-sampling" not in done.argv
    assert done.cannot[0].what == ("the rule block: SGLang cannot draw from a head that says a part of the vocabulary")
    whole = written(tmp_path / "whole", random_head(shape_of(taps=(2, 4, 5), draft_vocab_size=64)))
    done = emit(plan_of(Choice(drafter=str(whole), rule="block", **CHAIN)), "sglang")
    assert "--speculative-use-rejection-sampling" in done.argv


def test_what_a_drafter_is_and_what_it_is_said_to_be(tmp_path: Path) -> None:
    card = written(tmp_path / "card")
    with pytest.raises(UsageError, match=r"is an EAGLE-3 head, and kind is 'medusa'; allowed: 'eagle3'"):
        emit(plan_of(Choice(drafter=str(card), **CHAIN)), "vllm", kind="medusa")


# ---- schemas ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "said", "message"),
    [
        ("vllm", {"num_spec": 4}, "vllm 0.33.0 does not take num_spec = 4; allowed: enforce_eager, num_specul"),
        ("vllm", {"num_speculative_tokens": 0}, "num_speculative_tokens = 0; allowed: 1 or more"),
        ("vllm", {"num_speculative_tokens": True}, "= True; allowed: a value of type integer"),
        ("vllm", {"rejection_sample_method": "strict"}, "'strict'; allowed: standard, synthetic, block, fly"),
        ("vllm", {"method": "eagle3", "model": "x"}, "method = 'eagle3' without num_speculative_tokens; allowed: bo"),
        ("vllm", {"method": "ngram", "num_speculative_tokens": 2, "model": "x"}, "'ngram' with model; allowed: one"),
        ("llamacpp", {"--draft-max": 4}, "llamacpp 0c1e57098 does not take --draft-max = 4; allowed: --spec-draft"),
        ("llamacpp", {"--spec-ngram-simple-size-n": 2000}, "= 2000; allowed: 1 to 1024"),
        ("sglang", {"--speculative-algorithm": "EAGLE3"}, "'EAGLE3' without --speculative-draft-model-path"),
        (
            "sglang",
            {"--speculative-algorithm": "EAGLE3", "--speculative-draft-model-path": "x", "--speculative-num-steps": 3},
            "without --speculative-eagle-topk; allowed: both",
        ),
        ("trtllm", {"max_concurrency": 4, "draft_len_schedule": {}}, "max_concurrency = 4 with draft_len_schedule"),
        ("transformers", {"prompt_lookup_num_tokens": 2, "num_assistant_tokens": 2}, "with num_assistant_tokens; al"),
    ],
)
def test_a_schema_refuses(engine: str, said: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        schema(engine).check(said)
    assert message in caught.value.message
