"""Whatever a plan says, what is emitted is valid by the engine's own terms, stated here anew, and survives a shell."""

import ast
import itertools
import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outpace.decoding.plan import Choice, Plan
from outpace.drafters.budget import Branching
from outpace.engines.emission import Emission
from outpace.engines.emit import ENGINES, emit
from outpace.engines.schema import schema, versions
from outpace.errors import UnsupportedError
from outpace.verification.rules import CHAIN_ONLY, RULES
from plans import KINDS, plan_of

HAS = {
    "vllm": ("lookup", "model", "eagle3", "eagle1"),
    "sglang": ("lookup", "model", "eagle3", "eagle1"),
    "trtllm": ("lookup", "model", "eagle3"),
    "llamacpp": ("lookup", "model"),
    "transformers": ("lookup", "model"),
    "openvino": ("lookup", "model", "eagle3"),
}
"""Drafters that every known version of an engine has; others may be refused, and nothing else may."""
VERSIONS = {engine: versions(engine) for engine in ENGINES}
TREES = ("chain", "top-k:1", "top-k:3", "top-p:0.9", "dynamic", "sampled:2", "static", "static:0.6,0.2")


@st.composite
def choices(draw: st.DrawFn, kind: str, batch: int) -> dict[str, Any]:
    """One choice in parts; whether it is one is for ``Choice`` to say."""
    tree = "chain" if kind == "lookup" else draw(st.sampled_from(TREES))
    nodes: Any = draw(st.one_of(st.just("auto"), st.integers(0, 40)))
    depth = draw(st.one_of(st.none(), st.integers(1, 12)))
    if depth is not None and nodes != "auto":
        depth = None if nodes == 0 else nodes if tree == "chain" else min(depth, nodes)
    rules = sorted(set(RULES) - {"greedy"} - (set() if tree == "chain" else CHAIN_ONLY))
    return {
        "batch": batch,
        "drafter": draw(st.sampled_from([KINDS[kind], KINDS[kind], "none"])),
        "num_draft_tokens": nodes,
        "tree": tree,
        "depth": depth,
        "rule": draw(st.sampled_from([None, *rules])),
    }


@st.composite
def asked(draw: st.DrawFn) -> tuple[str, str, str, list[dict[str, Any]], float]:
    """An engine and version, the kind of drafter, choices by batch size, and a temperature."""
    engine = draw(st.sampled_from(sorted(ENGINES)))
    version = draw(st.sampled_from(VERSIONS[engine]))
    kind = draw(st.sampled_from(["lookup", "model", "eagle3", "eagle1", "medusa"]))
    batches = [1, *sorted(draw(st.sets(st.integers(2, 64), max_size=3)))]
    made = [draw(choices(kind, batch)) for batch in batches]
    return engine, version, kind, made, draw(st.sampled_from([0.0, 0.7, 1.5]))


def depth_of(choice: Choice) -> int:
    """How deep a choice drafts at least where it drafts: assumed where the controller chooses."""
    if choice.drafter == "none" or choice.num_draft_tokens == 0:
        return 0
    if choice.num_draft_tokens == "auto":
        return min(4, choice.depth or 8)
    chain = Branching.parse(choice.tree).is_chain or choice.tree == "top-k:1"
    return min(choice.num_draft_tokens, choice.depth or (choice.num_draft_tokens if chain else 8))


@given(asked())
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_every_emission_is_valid(drawn: tuple[str, str, str, list[dict[str, Any]], float]) -> None:
    engine, version, kind, made, temperature = drawn
    plan = plan_of(*(Choice(**one) for one in made))
    try:
        given_kind = None if kind == "lookup" else kind
        done = emit(plan, engine, version, temperature=temperature, kind=given_kind)
    except UnsupportedError:
        assert kind not in HAS[engine]
        return
    CHECKS[engine](done, plan)
    assert json.loads(json.dumps(done.document)) == done.document
    assert all(one.what and one.nearest for one in done.cannot)
    if done.python is not None:
        ast.parse(done.python)


# ---- every engine's terms --------------------------------------------------------------------------------------------


def vllm(done: Emission, plan: Plan) -> None:
    config = done.config
    assert (config is None) == ("--speculative-config" not in done.argv)
    alike = any("with Medusa heads drafts alike" in one.what for one in done.cannot)  # at every batch, as at the first
    if config is None:
        assert depth_of(plan.choice()) == 0
        assert alike or all(depth_of(choice) == 0 for choice in plan.choices)
        return
    assert json.loads(done.argv[-1]) == config
    most = config["num_speculative_tokens"]
    ranges = config.get("num_speculative_tokens_per_batch_size", [[1, 1024, most]])
    assert ranges[0][0] == 1 and max(number for _, _, number in ranges) == most >= 1
    assert all(this[1] + 1 == then[0] for this, then in itertools.pairwise(ranges))
    for batch in range(1, 80):
        (number,) = [number for start, end, number in ranges if start <= batch <= end]
        assert number == depth_of(plan.choice(batch=1 if alike else batch))
    if config.get("rejection_sample_method", "standard") != "standard":
        assert config["draft_sample_method"] == "probabilistic" and config["method"] not in ("ngram", "medusa")


def sglang(done: Emission, plan: Plan) -> None:
    words = list(done.argv[5:])
    switches = {word for word in words if word.startswith("--speculative-use") or word == "--speculative-adaptive"}
    pairs = [word for word in words if word not in switches]
    said = dict(zip(pairs[::2], pairs[1::2], strict=True))
    if not said:
        assert depth_of(plan.choice()) == 0
        return
    tokens = int(said["--speculative-num-draft-tokens"])
    if said["--speculative-algorithm"] == "NGRAM":
        assert tokens >= 2 and not switches
        return
    steps, width = int(said["--speculative-num-steps"]), int(said["--speculative-eagle-topk"])
    assert steps >= 1 and width >= 1 and 2 <= tokens <= 1 + width + (steps - 1) * width**2
    assert width > 1 or tokens == steps + 1
    assert not switches or width == 1
    assert said["--speculative-algorithm"] != "STANDALONE" or not switches
    assert ("--speculative-adaptive" in switches) == (done.config is not None)
    if done.config is not None:
        by_batch = {int(batch): one["candidate_steps"] for batch, one in done.config.items()}
        assert min(by_batch) == 1 and steps in {step for own in by_batch.values() for step in own}
        for batch in range(1, 80):
            own, choice = by_batch[max(start for start in by_batch if start <= batch)], plan.choice(batch=batch)
            assert depth_of(choice) in own
            assert len(own) == 1 or choice.num_draft_tokens == "auto"


def trtllm(done: Emission, plan: Plan) -> None:
    if done.config is None:
        assert depth_of(plan.choice()) == 0
        return
    said = done.config["speculative_config"]
    assert said["max_draft_len"] == depth_of(plan.choice()) >= 1
    if said.get("use_dynamic_tree"):
        assert said["max_draft_len"] <= said["max_total_draft_tokens"]
        assert said["max_total_draft_tokens"] <= said["dynamic_tree_max_topK"] * said["max_draft_len"]
    if "max_concurrency" in said:
        above = said["max_concurrency"] + 1
        assert depth_of(plan.choice(batch=above)) == 0 < depth_of(plan.choice(batch=above - 1))


def llamacpp(done: Emission, plan: Plan) -> None:
    flags = {word for word in done.argv if word.startswith("-")} - {"-m"}
    known = schema("llamacpp", done.version)
    assert flags <= set(known.settings) and not flags & set(known.removed)
    assert bool(flags) == (depth_of(plan.choice()) > 0)


def library(done: Emission, plan: Plan) -> None:
    depth = depth_of(plan.choice())
    assert (done.config is None) == (depth == 0)
    if done.config is None:
        return
    drafts = done.config.get("prompt_lookup_num_tokens", done.config.get("num_assistant_tokens"))
    if (steps := done.config.get("tree_depth")) is None:
        assert drafts == depth
    else:
        width = done.config["branching_factor"]
        assert steps == depth and steps <= drafts <= width**2 * (steps - 1) + width
    for name, value in done.config.items():
        assert f"{name} = {value!r}" in (done.python or "") or f"{name}={value!r}" in (done.python or "")


CHECKS = {
    "vllm": vllm,
    "sglang": sglang,
    "trtllm": trtllm,
    "llamacpp": llamacpp,
    "transformers": library,
    "openvino": library,
}


def test_the_terms_find_planted_faults() -> None:
    """One planted fault a term: each is found."""
    plan = plan_of(Choice(num_draft_tokens=4))
    config = {"method": "ngram", "num_speculative_tokens": 5}
    faults = [
        (vllm, Emission("vllm", "", ("--speculative-config", json.dumps(config)), config)),
        (vllm, Emission("vllm", "", ("--speculative-config", "{}"), config)),
        (vllm, Emission("vllm", "")),
        (sglang, Emission("sglang", "", ("a",) * 5)),
        (trtllm, Emission("trtllm", "", config={"speculative_config": {"max_draft_len": 5}})),
        (llamacpp, Emission("llamacpp", versions("llamacpp")[-1], ("llama-server", "--draft-max", "4"))),
        (library, Emission("transformers", "", config={"num_assistant_tokens": 3}, python="")),
    ]
    for check, done in faults:
        with pytest.raises(AssertionError):
            check(done, plan)
    wrong = ["--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "3"]
    with pytest.raises(AssertionError):
        sglang(Emission("sglang", "", (*("a",) * 5, "--speculative-algorithm", "EAGLE3", *wrong)), plan)


# ---- a shell ---------------------------------------------------------------------------------------------------------

NASTY = ("a b", "it's", 'say "no"', "$(rm -rf x)", "`id`", "a;b", "ünï", "-m", "a\\b", "END", "*", "#")


@pytest.mark.parametrize("target", NASTY)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "llamacpp"])
def test_a_shell_reads_what_was_meant(tmp_path: Path, engine: str, target: str) -> None:
    """The script is run by a shell in which every command says what it was given; files hold what they should."""
    plan = plan_of(Choice(num_draft_tokens=4), target=target)
    if engine == "sglang":
        choices = (Choice(drafter=f"org/{'draft'}", num_draft_tokens=4), Choice(drafter="none", batch=4))
        plan = plan_of(*choices, target=target)
    done = emit(plan, engine, kind="eagle3" if engine == "sglang" else None)
    heard = tmp_path / "heard"
    for name in ("vllm", "python", "trtllm-serve", "llama-server", "hf", "outpace"):
        (tmp_path / name).write_text(f'#!/bin/sh\nprintf "%s\\0" "$0" "$@" >> {shlex.quote(str(heard))}\n', "utf-8")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-eu", "-c", done.script], check=True, env=environment, cwd=tmp_path, timeout=60)
    words = heard.read_text("utf-8").split("\0")[:-1]
    meant = [word for command in (*done.prepare, done.argv) for word in (str(tmp_path / command[0]), *command[1:])]
    assert words == meant and target in " ".join(words)
    if done.file is not None:
        assert (tmp_path / done.file).read_text("utf-8") == done.text


@pytest.mark.parametrize("target", NASTY)
@pytest.mark.parametrize("engine", ["transformers", "openvino"])
def test_a_program_names_what_was_meant(engine: str, target: str) -> None:
    done = emit(plan_of(Choice(num_draft_tokens=4), target=target), engine)
    strings = {node.value for node in ast.walk(ast.parse(done.script)) if isinstance(node, ast.Constant)}
    assert target in strings or f"{target}-openvino" in strings
