"""What every test may ask for."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# Small tensors gain nothing from many threads, and test processes may run side by side.
torch.set_num_threads(min(4, torch.get_num_threads()))

# Time depends on the machine. Where the result decides a change, the examples are the same for everyone.
settings.register_profile("outpace", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("outpace")


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
