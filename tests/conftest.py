"""What every test may ask for."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from hypothesis import settings

# For toys.py, whatever pytest's import mode. Nothing here may import outpace outside a fixture: what is imported before
# pytest is configured is not checked for axes.
sys.path.insert(0, str(Path(__file__).parent))

import axes

jaxtyping.jaxtyped = axes.jaxtyped  # what the import hook decorates with, from here on

THREADS = 1 if "PYTEST_XDIST_WORKER" in os.environ else min(4, torch.get_num_threads())
"""A worker among others has a core of its own, and no more; so have the processes that it starts."""
if THREADS == 1:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Time depends on the machine. Where the result decides a change, the examples are the same for everyone.
settings.register_profile("outpace", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("outpace")


@pytest.fixture(scope="module", autouse=True)
def threads(request: pytest.FixtureRequest) -> None:
    """One thread for toys: on a busy machine two of them wait for each other five times as long as one works."""
    torch.set_num_threads(THREADS if request.node.get_closest_marker("real") else 1)


@pytest.fixture(scope="module", autouse=True)
def gradients() -> Iterator[None]:
    """What switches gradients off switches them on again: tests of training come later in the same process."""
    yield
    assert torch.is_grad_enabled()


@pytest.fixture(scope="session", autouse=True)
def costs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What turns of toys cost is no business of the user's cache folder."""
    from outpace.decoding import costs

    folder, honest, user = tmp_path_factory.mktemp("costs"), costs.cache_root, os.environ.get("OUTPACE_CACHE")
    costs.cache_root = lambda: folder if os.environ.get("OUTPACE_CACHE") == user else honest()
    yield
    costs.cache_root = honest


@pytest.fixture(scope="module")
def unchecked() -> Iterator[None]:
    """No checks of axes, no garbage collection: for tens of thousands of samples, where both would be most of the time.

    Every other test checks axes.
    """
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    gc.disable()
    yield
    gc.enable()
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of measuring and training data that ``OUTPACE_DATA`` names."""
    named = os.environ.get("OUTPACE_DATA")
    if not named:
        pytest.skip("OUTPACE_DATA is not set: it names the folder with specbench-dev.jsonl and its neighbours")
    folder = Path(named)
    if not folder.is_dir():
        pytest.skip(f"OUTPACE_DATA names {folder}, which is not a folder")
    return folder


@pytest.fixture(scope="session")
def tiny() -> Any:
    """A tiny fp32 target with a lively greedy text."""
    from toys import lively

    return lively()


@pytest.fixture(scope="session")
def tiny_draft() -> Any:
    """Another one of the same vocabulary, which seldom agrees with it."""
    from toys import lively

    return lively(seed=4, layers=1)


@pytest.fixture(scope="session")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tokenizer with one token a character."""
    from toys import character_tokenizer

    return character_tokenizer(tmp_path_factory.mktemp("letters"))


@pytest.fixture(scope="session")
def chat_letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a chat template."""
    from toys import CHAT, character_tokenizer

    return character_tokenizer(tmp_path_factory.mktemp("chat"), CHAT)


@pytest.fixture(scope="session")
def octets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tokenizer with one token a byte."""
    from toys import byte_tokenizer

    return byte_tokenizer(tmp_path_factory.mktemp("octets"))
