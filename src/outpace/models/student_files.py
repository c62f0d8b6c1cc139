"""A student as others take it: a folder that ``load_target`` opens, or a Target of its weights as they are now.

Knows nothing of training. What is written opens in the fast lane if the family has one.
"""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import torch

from outpace.errors import UnsupportedError, UsageError, WeightsError
from outpace.models.shape import Shape
from outpace.models.staging import staged
from outpace.models.student import Student
from outpace.models.target import Target
from outpace.models.transformer import Transformer
from outpace.models.weights import save_tensors

TOKENIZER = (
    "tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "*.model", "*.tiktoken",
    "chat_template*",
)  # fmt: skip
"""The files of a model's folder that its tokenizer and chat template are in."""
DTYPES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}


def student_target(student: Student, target: Target, *, dtype: torch.dtype = torch.float32) -> Target:
    """The student's present weights as a Target, copied: it may be trained on meanwhile.

    Args:
        student: as it is now.
        target: whose tokenizer and ends of text it shares.
        dtype: of the copy. Nothing is packed, so that its draws depend on no measurement.

    Warns, Raises: as for ``host``, where the fast lane does not know the family.
    """
    shown: dict[str, Any] = {"name": student.name, "folder": target.folder, "eos_ids": target.eos_ids}
    try:
        shape = Shape.from_config(_config(student, torch.float32))
    except UnsupportedError:
        from outpace.models.hosted import host

        return host(copy.deepcopy(student.model).to(dtype), packed=False, **shown)
    return Transformer(shape, student.model.state_dict(), dtype=dtype, packed=False, **shown)


def save_student(folder: Path, student: Student, target: Target, *, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write a folder that ``load_target`` opens, whole or not at all; one that stands there goes.

    Args, Raises: as for ``write_student``.
    """
    with staged(folder.absolute()) as growing:
        write_student(growing, student, target, dtype=dtype)


def write_student(folder: Path, student: Student, target: Target, *, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write weights, configuration, the target's tokenizer and its ends of text into a folder that is there.

    Args:
        folder: within ``staged``, where other files may be put beside.
        student: its weights are rounded to ``dtype``.
        target: whose tokenizer and ``generation_config.json`` come along.
        dtype: one of ``DTYPES``.

    Raises:
        UsageError: another dtype.
        WeightsError: the target has no folder with a tokenizer, a weight is not finite in that dtype, the disk is full,
            or the folder cannot be written.
    """
    if dtype not in DTYPES:
        raise UsageError(f"the dtype to store is {dtype}; allowed: {', '.join(map(str, DTYPES))}")
    beside = _beside(target)
    tied = student.rows is student.model.get_input_embeddings().weight
    tensors = {}
    for name, tensor in student.model.state_dict().items():
        if not (tied and name == "lm_head.weight"):  # what is tied stands in the file once
            tensors[name] = tensor.detach().to(dtype)
            if not bool(tensors[name].isfinite().all()):
                raise WeightsError(f"the tensor {name!r} of {student.name!r} is not finite in {DTYPES[dtype]}")
    ends = list(target.eos_ids)
    ending = {"eos_token_id": ends[0] if len(ends) == 1 else ends or None}
    save_tensors(folder, tensors)
    _write(folder / "config.json", _config(student, dtype) | ending)
    if not any(file.name == "generation_config.json" for file in beside):
        _write(folder / "generation_config.json", ending)
    for file in beside:
        shutil.copyfile(file, folder / file.name)


def _config(student: Student, dtype: torch.dtype) -> dict[str, Any]:
    """As ``config.json`` says it; the rotary base also where engines look that do not read ``rope_parameters``."""
    model = student.model
    said: dict[str, Any] = json.loads(model.config.to_json_string(use_diff=False))
    theta = (said.get("rope_parameters") or {}).get("rope_theta")
    said |= {"architectures": [type(model).__name__], "dtype": DTYPES[dtype]}
    return said if theta is None else said | {"rope_theta": theta}


def _beside(target: Target) -> list[Path]:
    """The target's files that come along, of which a tokenizer's must be one."""
    if target.folder is None:
        raise WeightsError(f"the target {target.name!r} has no folder to take a tokenizer from")
    found = sorted({file for pattern in TOKENIZER for file in target.folder.glob(pattern) if file.is_file()})
    if not found:
        raise WeightsError(f"{target.folder} has no tokenizer; a student speaks with its target's")
    ends = target.folder / "generation_config.json"
    return [*found, *([ends] if ends.is_file() else [])]


def _write(file: Path, document: dict[str, Any]) -> None:
    file.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", encoding="utf-8")
