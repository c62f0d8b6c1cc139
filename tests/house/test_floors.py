"""Imports fall one way: the table of floors as data, and an AST check that also reads imports inside functions."""

import ast
import graphlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "outpace"

FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("verification",),
    ("models",),
    ("drafters",),
    ("decoding",),
    ("__init__",),  # the public names; rooms below never import the front door
    ("training", "evaluation", "export", "engines", "serving"),
    ("tuning", "report"),
    ("cli",),
    ("__main__",),
)
"""From the ground up. A file imports from lower floors and from its own room; neighbours do not know each other."""

THIRD_PARTIES: dict[str, set[str]] = {
    "verification": {"torch", "jaxtyping"},
    "models": {"torch", "jaxtyping", "safetensors"},
    "drafters": {"torch", "jaxtyping", "safetensors"},
    "decoding": {"torch", "jaxtyping"},
    "training": {"torch", "jaxtyping", "safetensors", "accelerate"},
    "evaluation": {"torch", "jaxtyping", "numpy"},
    "export": {"torch", "safetensors"},
    "tuning": {"torch", "jaxtyping", "numpy"},
    "cli": {"typer", "rich"},
}
"""What a room may import from outside; a room that is not named may import the standard library alone."""

THIRD_PARTIES_OF_FILES: dict[str, set[str]] = {
    "models/gguf.py": {"gguf", "numpy"},
    "models/hosted.py": {"transformers"},
    "models/pull.py": {"huggingface_hub"},
    "models/staging.py": {"filelock", "platformdirs"},
    "models/student.py": {"transformers"},
    "drafters/lookup.py": {"numpy"},
    "decoding/text.py": {"transformers"},
    "training/plot.py": {"matplotlib"},
    "report/plots.py": {"matplotlib"},
}
"""What a single file may import beyond its room's."""

NEVER: dict[str, set[str]] = {
    "verification": {"io", "os", "pathlib", "random", "secrets", "socket", "subprocess", "time", "datetime"},
}
"""Standard modules that would break a room's promise: verification sees no file, no clock and no global chance."""


def modules(root: Path) -> dict[str, Path]:
    """Every module of the package by its dotted name without the package's; a room's own file is ``room.__init__``."""
    return {".".join(path.relative_to(root).with_suffix("").parts): path for path in sorted(root.rglob("*.py"))}


def imports(path: Path) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Line, module and names of every import at any depth, ``TYPE_CHECKING`` blocks and run-time ones included."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield node.lineno, module, tuple(alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {
            "importlib.import_module",
            "import_module",
            "__import__",
        }:
            named = node.args[0] if node.args else None
            yield node.lineno, named.value if isinstance(named, ast.Constant) else "?", ()


def inside(module: str, names: tuple[str, ...], known: dict[str, Path]) -> list[str]:
    """The package's own modules that one import reaches: submodules by name, else the room's own file."""
    base = module.removeprefix("outpace").lstrip(".")
    reached = []
    for name in names or ("",):
        candidates = [".".join(filter(None, (base, name))), base]
        for candidate in (form for each in candidates for form in (each, f"{each}.__init__".lstrip("."))):
            if candidate in known:
                reached.append(candidate)
                break
        else:
            reached.append(base or "__init__")
    return reached


def faults(root: Path) -> list[str]:
    """Every import that climbs, crosses a floor sideways, brings a stranger, or closes a circle."""
    known = modules(root)
    floor_of = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
    found, graph = [], {}
    for name, path in known.items():
        room, where = name.split(".")[0], path.relative_to(root).as_posix()
        graph[name] = set()
        if room not in floor_of:
            found.append(f"{where}: room {room} stands on no floor")
            continue
        strangers = THIRD_PARTIES.get(room, set()) | THIRD_PARTIES_OF_FILES.get(where, set())
        for line, module, names in imports(path):
            top = module.split(".")[0]
            if module.startswith(".") or module == "?":
                found.append(f"{where}:{line}: imports {module}; allowed: absolute imports by a constant name")
            elif top == "outpace":
                for other in inside(module, names, known):
                    graph[name].add(other)
                    there = other.split(".")[0]
                    if there != room and floor_of.get(there, len(FLOORS)) >= floor_of[room]:
                        found.append(f"{where}:{line}: {room} imports {other}, which is not on a lower floor")
            elif top in NEVER.get(room, set()):
                found.append(f"{where}:{line}: {room} may not import {top}")
            elif top not in sys.stdlib_module_names and top not in strangers:
                found.append(f"{where}:{line}: {top} is not allowed here")
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        found.append(f"circle: {' -> '.join(error.args[1])}")
    return found


def test_imports_fall_one_way() -> None:
    assert not (found := faults(ROOT)), "\n".join(found)


def test_named_exceptions_are_needed() -> None:
    """An exception that its file does not use any more is taken out of the table."""
    for where, strangers in THIRD_PARTIES_OF_FILES.items():
        if (path := ROOT / where).exists():
            assert strangers <= {module.split(".")[0] for _, module, _ in imports(path)}, where


def test_every_stranger_is_declared() -> None:
    """What the package imports, pyproject.toml asks for by name: not what some other package happens to bring."""
    project = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["train"], *extras["plot"]]
    declared = {re.match(r"[\w.-]+", line)[0].replace("-", "_") for line in lines}
    used = {module.split(".")[0] for path in ROOT.rglob("*.py") for _, module, _ in imports(path)}
    assert used - sys.stdlib_module_names - {"outpace"} <= declared


PLANTED = {
    "a climb": (
        {"verification/a.py": "from outpace.models import target\n"},
        "verification imports models.target, which",
    ),
    "a neighbour": (
        {"training/a.py": "import outpace.export.b\n", "export/b.py": ""},
        "training imports export.b, which is not on a lower floor",
    ),
    "inside a function": (
        {"models/a.py": "def f():\n    from outpace.cli import main\n"},
        "a.py:2: models imports cli",
    ),
    "for the type checker": (
        {"models/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import outpace.decoding.turn\n"},
        "a.py:3: models imports decoding.turn, which",
    ),
    "by a string": (
        {"models/a.py": "import importlib\nimportlib.import_module('outpace.drafters.x')\n"},
        "models imports drafters.x, which",
    ),
    "by a computed string": (
        {"models/a.py": "import importlib\nimportlib.import_module(f'{1}')\n"},
        "a.py:2: imports ?",
    ),
    "the front door": ({"decoding/a.py": "import outpace\n"}, "decoding imports __init__, which"),
    "a relative import": (
        {"models/a.py": "from . import b\n", "models/b.py": ""},
        "a.py:1: imports .; allowed: absolute",
    ),
    "a stranger": (
        {"decoding/turn.py": "def f():\n    import transformers\n"},
        "turn.py:2: transformers is not allowed",
    ),
    "a clock": ({"verification/a.py": "import time\n"}, "verification may not import time"),
    "a homeless room": ({"attic/a.py": ""}, "room attic stands on no floor"),
    "a circle": (
        {"models/a.py": "import outpace.models.b\n", "models/b.py": "from outpace.models import a\n"},
        "circle: models.",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_check_finds_a_planted_fault(tmp_path: Path, name: str) -> None:
    sources, message = PLANTED[name]
    defaults = {
        "models/target.py": "",
        "decoding/turn.py": "",
        "drafters/x.py": "",
        "cli/main.py": "",
        "__init__.py": "",
    }
    plant(tmp_path, defaults | sources)
    assert len(faults(tmp_path)) == 1 and message in faults(tmp_path)[0]


def test_the_check_passes_an_honest_house(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "errors.py": "",
            "verification/tree.py": "import torch\nimport outpace.errors\n",
            "verification/chain.py": "from outpace.verification import tree\nfrom outpace.errors import UsageError\n",
            "__init__.py": "from outpace.verification.tree import DraftTree\n",
            "cli/main.py": "import typer\nimport outpace\nfrom outpace.verification.chain import judge\n",
        },
    )
    assert faults(tmp_path) == []


def plant(root: Path, sources: dict[str, str]) -> None:
    for where, text in sources.items():
        (root / where).parent.mkdir(parents=True, exist_ok=True)
        (root / where).write_text(text, "utf-8")
