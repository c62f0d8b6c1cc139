"""What every engine and version is given for the same plans, typed out from what its own definitions ask for."""

import json
import shlex
from typing import Any

import pytest

from outpace.decoding.plan import Choice
from outpace.engines.emission import Emission
from outpace.engines.emit import emit, emit_pair
from outpace.engines.schema import versions
from plans import DRAFT, TARGET, emitted, plan_of

VLLM, SGLANG = ("vllm", "serve", TARGET), ("python", "-m", "sglang.launch_server", "--model-path", TARGET)
NGRAM = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 8, "num_speculative_tokens": 6}
CHAIN = {"num_draft_tokens": 5}
TREE = {"num_draft_tokens": 24, "depth": 6, "tree": "top-k:3"}


def whats(done: Emission) -> list[str]:
    return [one.what for one in done.cannot]


# ---- vLLM ------------------------------------------------------------------------------------------------------------

VLLM_CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "lookup": ("lookup", {"num_draft_tokens": 6}, NGRAM),
    "a model": ("model", CHAIN, {"method": "draft_model", "model": DRAFT, "num_speculative_tokens": 5}),
    "EAGLE-3": ("eagle3", CHAIN, {"method": "eagle3", "model": DRAFT, "num_speculative_tokens": 5}),
    "EAGLE-1": ("eagle1", CHAIN, {"method": "eagle", "model": DRAFT, "num_speculative_tokens": 5}),
    "a tree": ("eagle3", TREE, {"method": "eagle3", "model": DRAFT, "num_speculative_tokens": 6}),
    "auto": ("eagle3", {"depth": 8}, {"method": "eagle3", "model": DRAFT, "num_speculative_tokens": 4}),
    "auto, shallow": ("eagle3", {"depth": 2}, {"method": "eagle3", "model": DRAFT, "num_speculative_tokens": 2}),
    "match": (
        "model",
        CHAIN | {"rule": "match"},
        {"method": "draft_model", "model": DRAFT, "num_speculative_tokens": 5},
    ),
    "rejection": (
        "model",
        CHAIN | {"rule": "rejection"},
        {
            "method": "draft_model",
            "model": DRAFT,
            "num_speculative_tokens": 5,
            "draft_sample_method": "probabilistic",
        },
    ),
    "sampled": (
        "model",
        CHAIN | {"temperature": 1.0},
        {
            "method": "draft_model",
            "model": DRAFT,
            "num_speculative_tokens": 5,
            "draft_sample_method": "probabilistic",
            "rejection_sample_method": "block",
        },
    ),
    "sampled lookup": ("lookup", {"num_draft_tokens": 6, "temperature": 1.0}, NGRAM),
}


@pytest.mark.parametrize("version", versions("vllm"))
@pytest.mark.parametrize("name", VLLM_CASES)
def test_vllm(name: str, version: str) -> None:
    kind, said, config = VLLM_CASES[name]
    done = emitted("vllm", kind, version, **said)
    assert done.config == config and done.version == version
    assert done.argv == (*VLLM, "--speculative-config", json.dumps(config)) and done.file is None


def test_medusa_is_of_older_vllm() -> None:
    done = emitted("vllm", "medusa", "0.32.0", **CHAIN, rule="rejection")
    assert done.config == {"method": "medusa", "model": DRAFT, "num_speculative_tokens": 5}
    assert whats(done)[0] == "the rule rejection for Medusa: vLLM drafts greedily with it"


def test_vllm_has_a_schedule_by_batch_size() -> None:
    """Ranges touch, begin at 1 and end with the last choice; neighbours that are alike are one."""
    plan = plan_of(
        Choice(drafter=DRAFT, num_draft_tokens=5),
        Choice(drafter=DRAFT, num_draft_tokens=5, batch=2),
        Choice(drafter=DRAFT, num_draft_tokens=2, batch=8),
        Choice(drafter="none", batch=32),
    )
    config = emit(plan, "vllm", kind="eagle3").config
    assert config is not None and config["num_speculative_tokens"] == 5
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 7, 5], [8, 31, 2], [32, 1024, 0]]
    only = emit(plan, "vllm", kind="eagle3", batch=9)
    assert only.config == {"method": "eagle3", "model": DRAFT, "num_speculative_tokens": 2}
    assert "--speculative-config" not in emit(plan, "vllm", kind="eagle3", batch=40).argv


def test_one_drafter_is_kept() -> None:
    """Where a plan changes its drafter, the first one goes on with the smaller number, and that is said."""
    plan = plan_of(Choice(drafter=DRAFT, num_draft_tokens=5), Choice(batch=8, num_draft_tokens=3))
    done = emit(plan, "vllm", kind="model")
    assert done.config is not None
    assert done.config["num_speculative_tokens_per_batch_size"] == [[1, 7, 5], [8, 1024, 3]]
    assert whats(done)[0] == f"the drafter lookup from batch 8 on: an engine is started with one, here {DRAFT}"
    assert done.cannot[0].nearest == f"a chain of 3 by {DRAFT} there, which was not measured"
    more = plan_of(Choice(drafter=DRAFT, num_draft_tokens=5), Choice(batch=8, num_draft_tokens=9))
    assert emit(more, "vllm", kind="model").config == {
        "method": "draft_model",
        "model": DRAFT,
        "num_speculative_tokens": 5,
    }


# ---- SGLang ----------------------------------------------------------------------------------------------------------

DRAFTED = ("--speculative-draft-model-path", DRAFT)


def numbers(steps: int, width: int, tokens: int) -> tuple[str, ...]:
    names = ("num-steps", "eagle-topk", "num-draft-tokens")
    given = zip(names, (steps, width, tokens), strict=True)
    return tuple(word for name, value in given for word in (f"--speculative-{name}", str(value)))


SGLANG_CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "lookup": (
        "lookup",
        {"num_draft_tokens": 6},
        ("NGRAM", "--speculative-num-draft-tokens", "7", "--speculative-ngram-max-bfs-breadth", "1"),
    ),
    "a model": ("model", CHAIN, ("STANDALONE", *DRAFTED, *numbers(5, 1, 6))),
    "EAGLE-3": ("eagle3", CHAIN, ("EAGLE3", *DRAFTED, *numbers(5, 1, 6))),
    "EAGLE-1": ("eagle1", CHAIN, ("EAGLE", *DRAFTED, *numbers(5, 1, 6))),
    "a tree": ("eagle3", TREE, ("EAGLE3", *DRAFTED, *numbers(6, 3, 25))),
    "EAGLE-2": (
        "eagle1",
        {"num_draft_tokens": 24, "depth": 5, "tree": "dynamic"},
        ("EAGLE", *DRAFTED, *numbers(5, 8, 25)),
    ),
    "more nodes than such a tree has": (
        "eagle3",
        {"num_draft_tokens": 24, "depth": 2, "tree": "top-k:2"},
        ("EAGLE3", *DRAFTED, *numbers(2, 2, 7)),
    ),
    "a tree by mass": (
        "eagle3",
        {"num_draft_tokens": 24, "depth": 6, "tree": "top-p:0.9"},
        ("EAGLE3", *DRAFTED, *numbers(6, 4, 25)),
    ),
    "rejection": (
        "eagle1",
        CHAIN | {"rule": "rejection"},
        ("EAGLE", *DRAFTED, *numbers(5, 1, 6), "--speculative-use-rejection-sampling"),
    ),
    "match": ("eagle3", CHAIN | {"rule": "match"}, ("EAGLE3", *DRAFTED, *numbers(5, 1, 6))),
}


@pytest.mark.parametrize("version", versions("sglang"))
@pytest.mark.parametrize("name", SGLANG_CASES)
def test_sglang(name: str, version: str) -> None:
    kind, said, words = SGLANG_CASES[name]
    done = emitted("sglang", kind, version, **said)
    assert done.argv == (*SGLANG, "--speculative-algorithm", *words)
    assert done.config is None and done.file is None


def test_block_verification_is_of_newer_sglang() -> None:
    old, new = (emitted("sglang", "eagle3", version, **CHAIN, rule="block") for version in ("0.5.20", "0.5.23"))
    assert new.argv[-2:] == ("--speculative-use-rejection-sampling", "--speculative-use-block-verification")
    assert old.argv[-1] == "--speculative-use-rejection-sampling"
    assert whats(old)[0] == "the rule block: SGLang 0.5.20 does not have it"


def test_sglang_has_a_file_of_batch_sizes() -> None:
    plan = plan_of(
        Choice(drafter=DRAFT, num_draft_tokens=5), Choice(drafter=DRAFT, batch=8), Choice(drafter="none", batch=32)
    )
    done = emit(plan, "sglang", kind="eagle3")
    assert done.config == {
        "1": {"candidate_steps": [5]},
        "8": {"candidate_steps": [0, 1, 2, 4, 8]},
        "32": {"candidate_steps": [0]},
    }
    assert done.argv[-3:] == ("--speculative-adaptive", "--speculative-adaptive-config", "speculative.json")
    assert json.loads(done.text or "") == done.config
    assert whats(done)[0].startswith("auto: SGLang does not choose the number of drafts by what they cost")
    assert emit(plan, "sglang", kind="model").config is None, "a smaller model has no such file"


# ---- TensorRT-LLM ----------------------------------------------------------------------------------------------------

TRT_CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "lookup": (
        "lookup",
        {"num_draft_tokens": 6},
        {"decoding_type": "NGram", "max_draft_len": 6, "max_matching_ngram_size": 4},
    ),
    "a model": ("model", CHAIN, {"decoding_type": "Draft_Target", "max_draft_len": 5, "speculative_model": DRAFT}),
    "EAGLE-3": ("eagle3", CHAIN, {"decoding_type": "Eagle3", "max_draft_len": 5, "speculative_model": DRAFT}),
    "a tree": (
        "eagle3",
        {"num_draft_tokens": 16, "depth": 6, "tree": "top-k:3"},
        {
            "decoding_type": "Eagle3",
            "max_draft_len": 6,
            "speculative_model": DRAFT,
            "use_dynamic_tree": True,
            "dynamic_tree_max_topK": 3,
            "max_total_draft_tokens": 16,
        },
    ),
    "rejection": (
        "eagle3",
        CHAIN | {"rule": "rejection"},
        {
            "decoding_type": "Eagle3",
            "max_draft_len": 5,
            "speculative_model": DRAFT,
            "use_rejection_sampling": True,
        },
    ),
}


@pytest.mark.parametrize("name", TRT_CASES)
def test_trtllm(name: str) -> None:
    kind, said, config = TRT_CASES[name]
    done = emitted("trtllm", kind, **said)
    alone = {} if kind == "eagle3" else {"disable_overlap_scheduler": True}
    assert done.config == alone | {"speculative_config": config}
    assert done.argv == ("trtllm-serve", TARGET, "--backend", "pytorch", "--config", "speculative.yaml")


def test_trtllm_reads_its_file_as_yaml() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not here")
    done = emitted("trtllm", "lookup", num_draft_tokens=6)
    assert yaml.safe_load(done.text) == done.config


def test_trtllm_stops_drafting_above_a_batch_size() -> None:
    plan = plan_of(Choice(num_draft_tokens=6), Choice(num_draft_tokens=2, batch=8), Choice(drafter="none", batch=32))
    done = emit(plan, "trtllm")
    assert done.config is not None
    assert done.config["speculative_config"]["max_concurrency"] == 31
    assert done.config["speculative_config"]["max_draft_len"] == 6
    assert done.cannot[0].nearest == "a chain of 6 up to there"


def test_trtllm_does_not_draft_where_the_plan_pauses() -> None:
    """One bound is all that it has: what the plan drafts again above the pause is given up, and said."""
    plan = plan_of(Choice(num_draft_tokens=6), Choice(drafter="none", batch=8), Choice(num_draft_tokens=2, batch=32))
    done = emit(plan, "trtllm")
    assert done.config is not None
    assert done.config["speculative_config"]["max_concurrency"] == 7
    assert "a chain of 2 from batch 32 on" in done.cannot[0].what


# ---- llama.cpp -------------------------------------------------------------------------------------------------------

LLAMA = ("llama-server", "-m", "target.gguf")
OLD, NEW = versions("llamacpp")


def test_llamacpp_changed_its_flags() -> None:
    """The names of each are refused by the other."""
    old, new = (emitted("llamacpp", "model", version, **CHAIN) for version in (OLD, NEW))
    assert old.argv == (*LLAMA, "-md", "draft.gguf", "--draft-max", "5", "--draft-min", "0", "--draft-p-min", "0.0")
    assert new.argv == (*LLAMA, "--spec-type", "draft-simple", "-md", "draft.gguf", "--spec-draft-n-max", "5")
    old, new = (emitted("llamacpp", "lookup", version, **CHAIN) for version in (OLD, NEW))
    spec = ("--spec-type", "ngram-simple")
    assert old.argv == (*LLAMA, *spec, "--spec-ngram-size-n", "3", "--spec-ngram-size-m", "5")
    assert new.argv == (*LLAMA, *spec, "--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "5")


def test_llamacpp_says_what_to_fetch_and_convert() -> None:
    done = emitted("llamacpp", "eagle3", **CHAIN)
    assert done.argv[3:] == ("--spec-type", "draft-eagle3", "-md", "draft.gguf", "--spec-draft-n-max", "5")
    assert [shlex.join(words) for words in done.prepare] == [
        "hf download org/target --local-dir target",
        "python convert_hf_to_gguf.py target --outfile target.gguf",
        "hf download org/draft --local-dir draft",
        "python convert_hf_to_gguf.py draft --target-model-dir target --outfile draft.gguf",
    ]
    ready = emit(plan_of(Choice(num_draft_tokens=2), target="files/a.gguf"), "llamacpp")
    assert ready.prepare == () and ready.argv[2] == "files/a.gguf"


# ---- libraries -------------------------------------------------------------------------------------------------------


def test_transformers() -> None:
    done = emitted("transformers", "model", **CHAIN)
    assert done.config == {
        "num_assistant_tokens": 5,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    assert done.argv == () and "assistant_model=drafter" in (done.python or "")
    auto = emitted("transformers", "model", depth=6)
    assert auto.config == {"num_assistant_tokens": 4, "num_assistant_tokens_schedule": "heuristic_transient"}
    assert whats(auto)[0] == "auto: transformers does not choose the number of drafts by what they cost"
    lookup = emitted("transformers", "lookup", num_draft_tokens=6, temperature=0.7)
    assert lookup.config == {"prompt_lookup_num_tokens": 6, "max_matching_ngram_size": 8}
    assert "do_sample=True, temperature=0.7, prompt_lookup_num_tokens=6" in (lookup.python or "")


@pytest.mark.parametrize("version", versions("openvino"))
def test_openvino(version: str) -> None:
    done = emitted("openvino", "model", version, **CHAIN)
    assert done.config == {"num_assistant_tokens": 5}
    assert 'draft_model("draft-openvino", "CPU")' in (done.python or "") and "prompt_lookup" not in (done.python or "")
    assert [words[-1] for words in done.prepare] == ["target-openvino", "draft-openvino"]
    lookup = emitted("openvino", "lookup", version, num_draft_tokens=6)
    assert lookup.config == {"num_assistant_tokens": 6, "max_ngram_size": 8}
    assert "prompt_lookup=True" in (lookup.python or "")


def test_trees_are_of_newer_openvino() -> None:
    old, new = (emitted("openvino", "eagle3", version, **TREE) for version in versions("openvino"))
    assert new.config == {"num_assistant_tokens": 24, "branching_factor": 3, "tree_depth": 6}
    assert old.config == {"num_assistant_tokens": 6}
    small = emitted("openvino", "eagle3", num_draft_tokens=24, depth=2, tree="top-k:2")
    assert small.config == {"num_assistant_tokens": 6, "branching_factor": 2, "tree_depth": 2}, "it has no more nodes"
    assert whats(old)[0] == (
        "the tree top-k:3 (24 nodes, 6 deep): OpenVINO GenAI 2026.0.0 drafts chains with an EAGLE-3 head"
    )


# ---- without a plan --------------------------------------------------------------------------------------------------


def test_a_published_pair() -> None:
    """The first that the engine has, and it is said that nothing was measured."""
    done = emit_pair("Qwen/Qwen3-32B", "vllm")
    assert done.config == {"method": "eagle3", "model": "AngelSlim/Qwen3-32B_eagle3", "num_speculative_tokens": 4}
    assert done.notes[0].startswith("not measured: AngelSlim/Qwen3-32B_eagle3 for Qwen/Qwen3-32B (")
    assert done.notes[1] == "also published: Qwen/Qwen3-0.6B; --draft NAME takes it"
    other = emit_pair("Qwen/Qwen3-32B", "transformers")
    assert 'from_pretrained("Qwen/Qwen3-0.6B"' in (other.python or "")
    named = emit_pair("Qwen/Qwen3-32B", "vllm", drafter="Qwen/Qwen3-0.6B")
    assert named.config == {"method": "draft_model", "model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 4}
    own = emit_pair("org/target", "vllm", drafter="org/mine", kind="eagle3")
    assert own.config == {"method": "eagle3", "model": "org/mine", "num_speculative_tokens": 4}
