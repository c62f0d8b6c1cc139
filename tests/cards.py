"""Cards, exported folders and other people's heads that tests of files share, and ways to spoil them.

Knows nothing of what is tested. Import it as ``cards``: ``conftest.py`` puts this folder on the path.
"""

import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from heads import random_head, shape_of
from outpace.drafters.card import write_card
from outpace.drafters.head import Head
from outpace.drafters.record import Card
from outpace.drafters.walk import Walker
from outpace.export.formats import FORMATS
from outpace.models.target import Target
from outpace.models.toy import tiny_config, tiny_tensors
from toys import lively

LAYERS, USUAL = 8, (2, 4, 5)
"""Of a target of eight layers these are the taps that SafeAILab's reader counts out."""
WEIGHTS = "model.safetensors"


def target_of(**changes: Any) -> Target:
    return lively(layers=LAYERS, **changes)


def card_for(head: Head, target: Target | None = None) -> Card:
    """The card of a head that was never trained."""
    return Card.of(head, target or target_of(), depth_trained=3, steps=10, data={"tokens": 7}, recipe={"name": "tiny"})


def written(folder: Path, head: Head | None = None, dtype: torch.dtype = torch.float32) -> Path:
    """A card of a random head for the tiny target of eight layers."""
    head = head or random_head(shape_of(taps=USUAL))
    write_card(folder, head, card_for(head), dtype=dtype)
    return folder


@contextmanager
def unnamed() -> Iterator[None]:
    """Tiny targets are no ids of the hub, and one layout gives notice of it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the target is called")
        yield


def exported(folder: Path, layout: str, head: Head, card: Card | None = None) -> Path:
    """A head in one of the layouts."""
    with unnamed():
        FORMATS[layout](folder, head, card or card_for(head))
    return folder


def document(folder: Path, file: str = "config.json") -> dict[str, Any]:
    found = json.loads((folder / file).read_text("utf-8"))
    assert isinstance(found, dict)
    return found


def change_document(folder: Path, change: Callable[[dict[str, Any]], Any], file: str = "config.json") -> Path:
    """Rewrite a JSON file as ``change`` leaves it."""
    said = document(folder, file)
    change(said)
    (folder / file).write_text(json.dumps(said), "utf-8")
    return folder


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> Path:
    """Rewrite the tensors as ``change`` leaves them."""
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / WEIGHTS).items()}
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def foreign(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """A folder as somebody else wrote it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def same_weights(left: Head, right: Head) -> bool:
    """Bit for bit, by the same names."""
    mine, theirs = dict(left.state_dict()), dict(right.state_dict())
    return mine.keys() == theirs.keys() and all(
        mine[name].dtype == theirs[name].dtype and torch.equal(mine[name], theirs[name]) for name in mine
    )


@torch.inference_mode()
def logits_of(head: Head, places: tuple[int, ...] = (5, 95)) -> Tensor:
    """Draft logits at some places of one text, in fp32: ``[places, draft]``."""
    shape, generator = head.shape, torch.Generator().manual_seed(3)
    rows = torch.randn(shape.vocab_size, shape.hidden_size, generator=generator)
    features = torch.randn(max(places) + 1, len(shape.taps), shape.target_hidden_size, generator=generator)
    tokens = torch.randint(shape.vocab_size, (max(places) + 1,), generator=generator).tolist()
    walker = Walker(head, rows, dtype=torch.float32, packed=False)
    said = []
    for place in places:
        cache = walker.open(1, place + 1)
        cache.admit(1)
        residual, queries = walker.read(cache, [0], [features[: place + 1]], [tokens[: place + 1]])
        said.append(walker.logits(walker.attend(cache, residual[None, -1:], queries[None, -1:]))[0, 0])
    return torch.stack(said)


def model_folder(folder: Path, *, seed: int = 1, words: str = "w", **changes: Any) -> Path:
    """A language model on disk: forty words, a vocabulary of 64."""
    folder.mkdir(parents=True)
    config = tiny_config(**({"layers": LAYERS} | changes)) | {"architectures": ["LlamaForCausalLM"]}
    spelt = {f"{words}{place}": place for place in range(40)}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordLevel", "vocab": spelt}}), "utf-8")
    save_file(tiny_tensors(config, seed=seed), folder / WEIGHTS, metadata={"format": "pt"})
    return folder
