"""Our schemas say what the engines' own sources say, setting by setting, type by type, value by value.

Sources are downloaded from the package registry once and kept in the cache; offline these tests are skipped.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from definitions import (
    Settings,
    llamacpp_settings,
    openvino_settings,
    release,
    sglang_settings,
    vllm_settings,
)
from outpace.engines.emit import ENGINES
from outpace.engines.guesser import KINDS
from outpace.engines.pairs import pairs
from outpace.engines.schema import FOLDER, limits, schema, versions

READERS: dict[str, tuple[str, Callable[[Path], Settings]]] = {
    "vllm": ("vllm", vllm_settings),
    "sglang": ("sglang", sglang_settings),
    "openvino": ("openvino-genai", openvino_settings),
}
"""The package of an engine, and who reads it."""
CASES = [(engine, version) for engine in READERS for version in versions(engine)]


def differences(ours: Any, theirs: Settings) -> list[str]:
    """What one has and the other has not, or has otherwise."""
    missing = [f"{name} is missing" for name in theirs.keys() - ours.keys()]
    unknown = [f"{name} is unknown" for name in ours.keys() - theirs.keys()]
    shared = ours.keys() & theirs.keys()
    return sorted(
        missing + unknown + [f"{name}: {ours[name]}, {theirs[name]}" for name in shared if ours[name] != theirs[name]]
    )


@pytest.mark.parametrize(("engine", "version"), CASES)
def test_the_schema_is_the_engines_own(engine: str, version: str) -> None:
    package, reader = READERS[engine]
    number = f"{version}.0" if engine == "openvino" else version
    assert differences(schema(engine, version).settings, reader(release(package, number))) == []


def test_the_schema_of_llamacpp() -> None:
    """The newest one: its source archive is large, and pip needs the most of a minute for it."""
    found, removed = llamacpp_settings(release("llama_cpp_python", "0.3.36"))
    ours = schema("llamacpp", "0c1e57098")
    assert differences(ours.settings, found) == [] and list(ours.removed) == removed


def test_the_schema_of_transformers() -> None:
    """The installed version, whichever it is, knows every option that is emitted, and takes our values."""
    from transformers import GenerationConfig

    known = set(vars(GenerationConfig()))
    assert set(schema("transformers").settings) <= known
    GenerationConfig(prompt_lookup_num_tokens=3, max_matching_ngram_size=8).validate(strict=True)
    for plan in (
        {"num_assistant_tokens_schedule": "constant"},
        {"num_assistant_tokens_schedule": "heuristic_transient"},
    ):
        GenerationConfig(num_assistant_tokens=4, assistant_confidence_threshold=0.0, **plan).validate(strict=True)


def test_planted_differences_are_found() -> None:
    """A name too few, a name too many, another type, another value: each is seen."""
    ours = {"a": {"type": "integer"}, "b": {"type": "string", "allowed": ["x"]}, "c": {"type": "integer", "least": 1}}
    assert differences(ours, ours) == []
    assert differences(ours, {name: kind for name, kind in ours.items() if name != "a"}) == ["a is unknown"]
    assert differences(ours, ours | {"d": {"type": "any"}}) == ["d is missing"]
    assert len(differences(ours, ours | {"a": {"type": "number"}, "b": {"type": "string", "allowed": ["y"]}})) == 2
    assert len(differences(ours, ours | {"c": {"type": "integer"}})) == 1


def test_definitions_are_read(tmp_path: Path) -> None:
    """The readers on a few lines in the style of each: what they make of every form that matters."""
    (tmp_path / "vllm/config").mkdir(parents=True)
    (tmp_path / "vllm/config/speculative.py").write_text(
        "A = Literal['x']\nM = Literal['y', A]\n"
        "class SpeculativeConfig:\n    n: int = Field(default=None, gt=0)\n    k: int | None = Field(ge=2)\n"
        "    m: M | None = None\n    r: list[float] | None = None\n    q: other.Name | str | None = None\n"
        "    b: bool = False\n    hidden: SkipValidation[ModelConfig] = None\n    z: Literal['p', 'q'] | None = None\n"
    )
    assert vllm_settings(tmp_path) == {
        "n": {"type": "integer", "least": 1},
        "k": {"type": "integer", "least": 2},
        "m": {"type": "string", "allowed": ["y", "x"]},
        "r": {"type": "list"},
        "q": {"type": "string"},
        "b": {"type": "boolean"},
        "z": {"type": "string", "allowed": ["p", "q"]},
    }
    (tmp_path / "vendor/llama.cpp/common").mkdir(parents=True)
    (tmp_path / "vendor/llama.cpp/common/speculative.cpp").write_text(
        'std::map<a, b> common_speculative_type_from_name_map = {\n    {"none", X},\n    {"one", Y},\n};\n'
    )
    (tmp_path / "vendor/llama.cpp/common/arg.cpp").write_text(
        'add_opt(common_arg({"--spec-type"}, names(), "help", [](common_params & params, const std::string & value) {\n'
        'add_opt(common_arg({"--spec-n", "-n"}, "N", "help", [](common_params & params, int value) {\n'
        "if (value < 1 || value > 9) {\n"
        'add_opt(common_arg({"--draft-x"}, "N", [](common_params & params, int value) { arg_removed("gone"); }\n'
        'add_opt(common_arg({"--other"}, "N", [](common_params & params, int value) {\n'
    )
    assert llamacpp_settings(tmp_path) == (
        {
            "--spec-type": {"type": "string", "allowed": ["none", "one"]},
            "--spec-n": {"type": "integer", "least": 1, "most": 9},
            "-n": {"type": "integer", "least": 1, "most": 9},
        },
        ["--draft-x"],
    )


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_every_schema_says_where_it_was_read(path: Path) -> None:
    engine, version = path.stem.split("-", 1)
    found = schema(engine, version)
    assert (found.engine, found.version) == (engine, version) and engine in ENGINES and len(found.source) > 20
    for rule in found.rules:
        for name in (*rule["when"], *rule.get("needs", ()), *rule.get("without", ())):
            assert name in found.settings, name
        for name, values in rule["when"].items():
            assert set(values) <= set(found.settings[name].get("allowed", values)), name


def test_limits_and_pairs_are_well_formed() -> None:
    for engine in ENGINES:
        assert limits(engine, "lookup") and versions(engine)
    assert any("do_sample" in one.nearest for one in limits("openvino", "model"))
    assert not any("do_sample" in one.nearest for one in limits("openvino", "lookup"))
    assert len({(one.target, one.drafter) for one in pairs()}) == len(pairs())
    assert all(one.kind in KINDS[1:] and one.source and one.target.count("/") == 1 for one in pairs())
