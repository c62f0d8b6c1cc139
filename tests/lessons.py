"""Tiny trainings that the tests of training share, in this process or in processes of their own.

Knows nothing of what is tested. Import it as ``lessons``: ``conftest.py`` puts this folder on the path. As a script it
trains in its own process:

    python tests/lessons.py FOLDER STEPS_UNTIL_KILLED SETTINGS_AS_JSON
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from outpace.drafters.head import Head
from outpace.models.ends import read_ends
from outpace.models.toy import tiny_config, tiny_tensors, tiny_transformer
from outpace.models.transformer import Transformer
from outpace.models.weights import save_tensors
from outpace.training.anatomy import new_head, shape_for
from outpace.training.batch import Batch
from outpace.training.eagle3 import Eagle3Lesson
from outpace.training.features import Features, online
from outpace.training.masks import Sample
from outpace.training.recipe import HeadSettings, TrainSettings
from outpace.training.teacher import Teacher
from outpace.training.trainer import Report, Trainer

PLAIN = {"norm_before_residual": False, "norm_before_fc": False, "fc_norm": False, "norm_output": False}
SPOKEN = 48
"""Ids that the tiny heads can say, of 64."""


@cache
def student() -> Transformer:
    """The target of all tiny trainings: the lively one of ``toys``."""
    return tiny_transformer(seed=3)


def settings_of(**changes: Any) -> TrainSettings:
    """A few steps of exact arithmetic."""
    said: dict[str, Any] = {
        "depth": 3,
        "epochs": 2,
        "tokens_per_batch": 30,
        "batches_per_step": 2,
        "learning_rate": 3e-3,
        "precision": "fp32",
    }
    return TrainSettings(**(said | changes))


@cache
def samples_of(count: int = 10, seed: int = 0) -> tuple[Sample, ...]:
    """Short prompts of several lengths, and the target's greedy text behind them."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for place in range(count):
        prompt = torch.randint(64, (2 + place % 3,), generator=generator).tolist()
        text = list(prompt)
        for _ in range(6 + place % 5):
            state = student().open(1, len(text))
            text.append(int(student().prefill(state, torch.tensor([text]), [len(text)]).logits[0, -1].argmax()))
        mask = torch.arange(len(text)) >= len(prompt)
        found.append(Sample(f"text {place}", torch.tensor(text, dtype=torch.int32), mask))
    return tuple(found)


def ids_said(samples: Sequence[Sample]) -> Tensor:
    """Draft ids: all that stands in these texts, filled up."""
    said = sorted({int(token) for sample in samples for token in sample.ids})
    rest = [token for token in range(64) if token not in said]
    return torch.tensor(sorted([*said, *rest][:SPOKEN]))


def trainer_of(
    folder: Path,
    *,
    samples: Sequence[Sample] | None = None,
    held_out: Sequence[Sample] = (),
    watch: Callable[[Report], None] | None = None,
    features: Features | None = None,
    head: Head | None = None,
    identity: dict[str, Any] | None = None,
    mute: Sequence[int] = (),
    accelerator: Accelerator | None = None,
    **changes: Any,
) -> Trainer:
    """A trainer of a tiny head on the tiny target; texts that are ``mute`` teach nothing."""
    target, samples = student(), samples_of() if samples is None else samples
    ids = ids_said(samples)
    shape = shape_for(target, HeadSettings(**PLAIN, draft_vocab_size=SPOKEN))
    ends = read_ends(target)
    features = online(target, samples, taps=shape.taps) if features is None else features
    head, settings = new_head(shape, ids, 0) if head is None else head, settings_of(**changes)
    return Trainer(
        Eagle3Lesson(head, Teacher.of(ends.embeddings, ends.head, ids), settings),
        muted(features, mute) if mute else features,
        online(target, held_out, taps=shape.taps) if held_out else None,
        settings,
        folder,
        identity={"data": "toys"} if identity is None else identity,
        accelerator=accelerator,
        watch=watch,
    )


def muted(features: Features, places: Sequence[int]) -> Features:
    """Features of which some texts have no answer any more."""

    def fetch(asked: Sequence[int]) -> Batch:
        batch = features.fetch(asked)
        kept = torch.tensor([place not in places for place in asked])
        return replace(batch, loss_mask=batch.loss_mask & kept[:, None])

    return replace(features, fetch=fetch)


def killed_after(step: int) -> Callable[[Report], None]:
    """A watcher that kills its own process; nothing can be saved any more."""

    def watch(report: Report) -> None:
        if report.place.step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return watch


def everything(trainer: Trainer) -> dict[str, Tensor]:
    """Weights and moments by name."""
    found = {f"head.{name}": weight.detach().clone() for name, weight in trainer.pupil.state_dict().items()}
    return found | {name: tensor.detach().clone() for name, tensor in trainer.optimiser.tensors().items()}


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    """Whether all of it is equal, to the bit."""
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def target_folder(folder: Path, *, vocab_size: int, eos_id: int, **changes: Any) -> Path:
    """A tiny target on disk; its tokenizer is somebody else's business."""
    config = tiny_config("llama", vocab_size=vocab_size, eos_token_id=eos_id, **changes)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["LlamaForCausalLM"]}), "utf-8")
    save_tensors(folder, tiny_tensors(config, seed=3))
    return folder


def start(folder: Path, kill_after: int, env: dict[str, str] | None = None, **changes: Any) -> subprocess.Popen[bytes]:
    """A training in a process of its own."""
    command = [sys.executable, __file__, str(folder), str(kill_after), json.dumps(changes)]
    return subprocess.Popen(command, env=os.environ | (env or {}))


def main() -> None:
    torch.set_num_threads(1)
    folder, step, changes = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    trainer = trainer_of(folder, watch=killed_after(step) if step else None, **changes)
    trainer.train()
    if trainer.accelerator.is_main_process:
        save_tensors(folder, everything(trainer), file="result.safetensors")
        (folder / "world.json").write_text(json.dumps(trainer.accelerator.num_processes), "utf-8")


if __name__ == "__main__":
    main()
