"""The loop of training: windows of batches in a fixed order, one step of the optimiser each, on one device or many.

Knows nothing of what is taught, where texts come from or where a pupil goes. A step is made of the same batches in the
same order however many processes share them, and what is gone on with becomes what it would have become, to the bit.
"""

import json
import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import Tensor, nn

from outpace.errors import NumericsError
from outpace.models.staging import sole
from outpace.models.weights import save_tensors
from outpace.training.batch import Batch
from outpace.training.checkpoint import Checkpoint, Place, newest, require_same, save_checkpoint, saving
from outpace.training.counts import StepCounts
from outpace.training.features import Features
from outpace.training.ledger import LOG, Ledger
from outpace.training.lesson import Lesson
from outpace.training.optimiser import Optimiser
from outpace.training.processes import processes, require_whole
from outpace.training.recipe import TrainSettings
from outpace.training.schedule import rate
from outpace.training.strict import plain

BEST = "best"
SMOOTHED = 10
FREE = {"checkpoint_minutes", "max_bad_steps"}
"""Settings that may change when a training is gone on with."""


@dataclass(frozen=True)
class Report:
    """What a watcher is told after every step.

    Args:
        place: where the training stands.
        steps, epochs: of the whole.
        counts: of the steps since the last few, smoothed for showing.
        tokens_per_second: of this step's texts.
        seconds_left: at this speed.
    """

    place: Place
    steps: int
    epochs: int
    counts: StepCounts
    tokens_per_second: float
    seconds_left: float


Watch = Callable[[Report], None]


@dataclass(frozen=True)
class Trained:
    """How a training ended.

    Args:
        pupil: the best one by the prompts that were held out; the last where none were.
        place: where it stands.
        validation: what the best one showed on held-out prompts; None where none were.
    """

    pupil: nn.Module
    place: Place
    validation: StepCounts | None


class Trainer:
    """Trains one pupil.

    Args:
        lesson: it, and what it is taught; the pupil is trained in place.
        features: what is trained on.
        held_out: what only measures; None measures nothing.
        settings: how.
        folder: of checkpoints and the log.
        identity: what else must be the same for a training to be gone on with: target, data, pupil.
        accelerator: the devices; one of its own by default.
        watch: told after every step.

    Raises:
        UsageError: as for ``require_whole``.
    """

    def __init__(
        self,
        lesson: Lesson,
        features: Features,
        held_out: Features | None,
        settings: TrainSettings,
        folder: Path,
        *,
        identity: Mapping[str, Any],
        accelerator: Accelerator | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.accelerator = processes() if accelerator is None else accelerator
        require_whole(self.accelerator)
        self.device = self.accelerator.device
        self.given, self.pupil = lesson.on(self.device), lesson.pupil
        self.features, self.held_out, self.settings = features, held_out, settings
        self.folder, self.watch = folder, watch
        self.given.train()
        chosen = {name: value for name, value in plain(settings).items() if name not in FREE}
        self.identity = json.loads(json.dumps({**identity, **chosen}))  # as it will be read back
        self.lesson: Any = self.accelerator.prepare_model(self.given)
        self.optimiser = Optimiser(self.pupil, settings)
        self.epochs = [
            features.order(settings.seed, epoch, settings.tokens_per_batch) for epoch in range(settings.epochs)
        ]
        self.steps = sum(math.ceil(len(order) / settings.batches_per_step) for order in self.epochs)
        self.place = Place()
        self.ledger = Ledger(folder / LOG, self.accelerator.is_main_process)
        self.recent: list[StepCounts] = []

    # ---- the whole ---------------------------------------------------------------------------------------------------

    def train(self, *, resume: bool = False) -> Trained:
        """Train to the end, from the beginning or from the last checkpoint.

        Raises:
            UsageError: resumed with other settings than it was begun with, or another process trains in the folder.
            WeightsError: a checkpoint cannot be written, or none is whole.
            NumericsError: too many steps in a row had a loss that is no number.
            KeyboardInterrupt: an interrupt; the step was finished and a checkpoint written.
        """
        with sole(self.folder, "training") if self.accelerator.is_main_process else nullcontext():
            return self._train(resume)

    def _train(self, resume: bool) -> Trained:
        if resume and (found := newest(self.folder)) is not None:
            require_same(found.settings, self.identity, self.folder)
            self._restore(found)
        self.ledger.begin(self.place.step, self.identity)
        saved = time.monotonic()
        with interrupts() as interrupted:
            while self.place.epoch < self.settings.epochs:
                stop = self._step(interrupted())
                if self.place.window == 0:
                    self._validate()
                elif not stop and time.monotonic() - saved < 60 * self.settings.checkpoint_minutes:
                    continue
                self._save()
                saved = time.monotonic()
                if stop:
                    raise KeyboardInterrupt
        return self._best()

    def _best(self) -> Trained:
        """The pupil that validation liked best."""
        self.accelerator.wait_for_everyone()
        best = self.folder / BEST / "head.safetensors"
        if self.place.best_epoch is not None:
            self.pupil.load_state_dict(load_file(best))
        validation = self.validate() if self.held_out is not None else None
        return Trained(self.pupil, self.place, validation)

    # ---- a step ------------------------------------------------------------------------------------------------------

    def _step(self, interrupted: bool) -> bool:
        """One step of the optimiser; whether any process was interrupted."""
        start, place = time.perf_counter(), self.place
        size = self.settings.batches_per_step
        order = self.epochs[place.epoch]
        window = order[place.window * size :][:size]
        batches = self._share(window)
        self.given.begin(place.step)
        weights = sum(map(self.given.weights, batches), torch.zeros(self.given.steps, dtype=torch.float64))
        *summed, stop = self._summed(
            torch.cat((weights, torch.tensor([float(interrupted)], dtype=torch.float64)))
        ).tolist()
        began = time.perf_counter()
        learning_rate = rate(self.settings, place.step, self.steps)
        counts, norm = StepCounts.none(self.given.steps), 0.0
        if any(summed):
            counts, norm = self._learn(batches, torch.tensor(summed, dtype=torch.float64), learning_rate)
        else:
            place.empty += 1
        busy = time.perf_counter() - began
        place.step += 1
        place.window += 1
        if place.window * size >= len(order):
            place.epoch, place.window = place.epoch + 1, 0
        samples = self.features.samples
        tokens = sum(len(samples[index]) for batch in window for index in batch)
        place.tokens += tokens
        place.answer_tokens += int(counts.places[0])
        seconds = time.perf_counter() - start
        place.seconds, place.busy = place.seconds + seconds, place.busy + busy
        self._tell(counts, norm, learning_rate, tokens / seconds)
        return bool(stop)

    def _share(self, window: Sequence[Sequence[int]]) -> list[Batch]:
        """This process' batches of a window; where it has none, one that counts nothing: every process takes part."""
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        mine = [self.features.fetch(places) for places in window[rank::world]]
        if not mine:
            spare = self.features.fetch(window[0])
            mine = [replace(spare, loss_mask=torch.zeros_like(spare.loss_mask))]
        return mine

    def _learn(self, batches: list[Batch], weights: Tensor, learning_rate: float) -> tuple[StepCounts, float]:
        """Gradients of all batches, and a step unless one of them is no number."""
        counts = StepCounts.none(self.given.steps)
        for number, batch in enumerate(batches, 1):
            last = number == len(batches)
            with nullcontext() if last else self.accelerator.no_sync(self.lesson):
                objective, found = self.lesson(batch.to(self.device), weights.to(self.device))
                # What wraps the module takes the mean over processes; the weights are those of all of them already.
                self.accelerator.backward(objective * self.accelerator.num_processes)
            counts = counts + found
        norm = float(nn.utils.clip_grad_norm_(self.pupil.parameters(), self.settings.clip))
        counts = StepCounts(*self._summed(torch.stack(list(vars(counts).values()))))
        if math.isfinite(norm) and bool(counts.losses.isfinite().all()):
            self.optimiser.step(learning_rate)
            self.place.bad_in_row = 0
        else:
            self._skip(norm, counts)
            counts = StepCounts.none(self.given.steps)
        self.optimiser.forget()
        return counts, norm

    def _skip(self, norm: float, counts: StepCounts) -> None:
        place = self.place
        place.bad, place.bad_in_row = place.bad + 1, place.bad_in_row + 1
        what = f"step {place.step + 1} has losses {counts.losses.tolist()} and a gradient of norm {norm}"
        if place.bad_in_row > self.settings.max_bad_steps:
            raise NumericsError(
                f"{what}; allowed: numbers, with up to {self.settings.max_bad_steps} steps in a row that are skipped",
                hint='a lower learning_rate or precision = "fp32" may help; the last checkpoint is from before',
            )
        warnings.warn(f"{what}; it is skipped", stacklevel=4)

    def _summed(self, tensor: Tensor) -> Tensor:
        """A sum over all processes, on the CPU."""
        if self.accelerator.num_processes == 1:
            return tensor
        summed: Tensor = self.accelerator.reduce(tensor.to(self.device), "sum").cpu()
        return summed

    # ---- what is told and kept ---------------------------------------------------------------------------------------

    def _tell(self, counts: StepCounts, norm: float, learning_rate: float, speed: float) -> None:
        place = self.place
        line = {
            "step": place.step,
            "epoch": place.epoch,
            "tokens": place.tokens,
            "answer_tokens": place.answer_tokens,
            **figures(counts),
            "learning_rate": learning_rate,
            "gradient_norm": norm if math.isfinite(norm) else str(norm),
            "tokens_per_second": speed,
            "seconds": place.seconds,
            "busy": place.busy,
            "bad": place.bad,
            "empty": place.empty,
        }
        self.ledger.write(line)
        self.recent = [*self.recent, counts][-SMOOTHED:]
        if self.watch is not None:
            left = place.seconds / place.step * (self.steps - place.step)
            shown = sum(self.recent[1:], self.recent[0])
            self.watch(Report(replace(place), self.steps, self.settings.epochs, shown, speed, left))

    def validate(self) -> StepCounts:
        """What the pupil shows on the texts that were held out."""
        counts = StepCounts.none(self.given.steps)
        if self.held_out is not None:
            rank, world = self.accelerator.process_index, self.accelerator.num_processes
            self.given.eval()
            with torch.no_grad():
                for batch in self.held_out.batches(0, 0, self.settings.tokens_per_batch, start=rank, step=world):
                    counts = counts + self.given(batch.to(self.device))[1]
            self.given.train()
        return StepCounts(*self._summed(torch.stack(list(vars(counts).values()))))

    def _validate(self) -> None:
        """Measure on held-out texts, and keep the pupil if it is the best so far."""
        if self.held_out is None:
            return
        counts, place = self.validate(), self.place
        tau = counts.tau or 0.0
        self.ledger.write({"step": place.step, "epoch": place.epoch, "validation": figures(counts)})
        if place.best_tau is None or tau > place.best_tau:
            place.best_tau, place.best_epoch = tau, place.epoch
            if self.accelerator.is_main_process:
                with saving(self.folder):
                    save_tensors(self.folder / BEST, self.pupil.state_dict(), file="head.safetensors")

    def _save(self) -> None:
        if not self.accelerator.is_main_process:
            return
        tensors = {f"head.{name}": tensor for name, tensor in self.pupil.state_dict().items()}
        tensors |= {f"optimiser.{name}": tensor for name, tensor in self.optimiser.tensors().items()}
        tensors["random"] = torch.get_rng_state()
        save_checkpoint(self.folder, self.place, self.identity, tensors)

    def _restore(self, found: Checkpoint) -> None:
        """Take over weights, moments and place."""
        self.place = found.place
        held = found.tensors
        self.pupil.load_state_dict(
            {name.removeprefix("head."): t for name, t in held.items() if name.startswith("head.")}
        )
        prefix = "optimiser."
        self.optimiser.restore({name.removeprefix(prefix): t for name, t in held.items() if name.startswith(prefix)})
        torch.set_rng_state(held["random"])


def figures(counts: StepCounts) -> dict[str, Any]:
    """The figures of some steps, as JSON can hold them."""
    return {
        "loss": counts.loss,
        "accuracy": counts.accuracy,
        "conditional": counts.conditional,
        "acceptance": counts.acceptance,
        "tau": counts.tau,
    }


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Whether an interrupt came in the block: the first one only raises a flag, a second one stops at once."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def note(number: int, frame: Any) -> None:
        seen.append(number)
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
