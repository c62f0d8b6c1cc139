"""A release's own files, run as they are among modules of our own that stand in for everything around them."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any


def play(modules: dict[str, dict[str, Any]]) -> None:
    """Put modules of our own in the places that a release's files import from."""
    for name, attributes in modules.items():
        module = ModuleType(name)
        module.__dict__.update(attributes, __path__=[])
        sys.modules[name] = module


def real(name: str, folder: Path) -> Any:
    """One module of the release, as it is."""
    spec = spec_from_file_location(name, folder / f"{name.replace('.', '/')}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
