"""The script of a lab as a module: its own folder and what labs share come first on the path while it is open.

Knows nothing of what is tested. Import it as ``exercises``: ``conftest.py`` puts this folder on the path.
"""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

LABS = Path(__file__).parents[1] / "labs"


@contextmanager
def opened(folder: str) -> Iterator[ModuleType]:
    """``labs/<folder>/lab.py``; modules of its folder, and ``common``, are those of labs while it is open."""
    mine = {"common", *(path.stem for path in (LABS / folder).glob("*.py"))}
    path, kept = list(sys.path), {name: sys.modules.pop(name) for name in mine & sys.modules.keys()}
    spec = importlib.util.spec_from_file_location("lab", LABS / folder / "lab.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lab"] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path[:] = path
        for name in mine & sys.modules.keys():
            del sys.modules[name]
        sys.modules.update(kept)
