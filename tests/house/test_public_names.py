"""The public names, frozen: a change here is a change for everyone, and belongs in the changelog."""

import inspect
import tomllib
from pathlib import Path

import outpace

PUBLIC = {
    "DraftTree",
    "Drafter",
    "NumericsError",
    "Options",
    "OutpaceError",
    "Piece",
    "Proposal",
    "Result",
    "Rule",
    "Sampling",
    "Stats",
    "Target",
    "UnsupportedError",
    "UsageError",
    "Verdict",
    "WeightsError",
    "__version__",
    "generate",
    "load_drafter",
    "load_target",
    "speculative_decode",
    "stream",
}

SIGNATURES = {
    "generate": ["target", "drafter", "prompt"],
    "stream": ["target", "drafter", "prompt"],
    "load_target": ["name"],
    "load_drafter": ["name", "target"],
    "speculative_decode": ["target", "draft", "prompt", "K", "temperature"],
}
"""Parameters that may be given by place, in their order; all others by name only or after these."""


def test_public_names_are_frozen() -> None:
    assert set(outpace.__all__) == PUBLIC and len(outpace.__all__) == len(PUBLIC)


def test_every_public_name_is_there_and_explained() -> None:
    for name in PUBLIC - {"__version__"}:
        assert inspect.getdoc(getattr(outpace, name)), f"{name} has no docstring"
        assert name in dir(outpace)


def test_leading_parameters_are_frozen() -> None:
    for name, leading in SIGNATURES.items():
        parameters = list(inspect.signature(getattr(outpace, name)).parameters)
        assert parameters[: len(leading)] == leading, name


def test_the_version_is_the_project_s() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    assert outpace.__version__ == project["project"]["version"]
