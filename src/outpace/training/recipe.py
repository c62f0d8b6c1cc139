"""A recipe: all that decides what a training makes, read from TOML under one strict schema for each method.

Knows nothing of how a setting is used. What every method needs stands in tables of its own; what is trained stands in
``[head]``, which is another table for each method.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from outpace.errors import UsageError
from outpace.training.losses import LOSSES
from outpace.training.ranges import FACTOR, HARD, MUON, RANGES
from outpace.training.strict import Ranges, check, known, plain, read_table, toml_lines

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Data:
    """What is trained on.

    Args:
        answers: files of answered prompts and dialogues, trained as they stand.
        prompts: files of prompts, which the target answers.
        most_prompts: at most so many of each file of prompts, the first ones; 0 takes all.
        invent: so many prompts the target makes up, and answers.
        avoid: files of prompts that none may be the same as.
        temperatures: each prompt is answered at one of these.
        max_new_tokens: the most tokens of an answer.
        limit: the most tokens of a sample; longer ones are left out and counted.
        held_out: the share of prompts that only measure.
        features: ``recorded`` keeps what the target shows on disk, ``online`` computes it at each use.
        batch_size: prompts that are invented or answered at once.
        seed: of inventions, answers and the share that is held out.
    """

    answers: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()
    most_prompts: int = 0
    invent: int = 0
    avoid: tuple[str, ...] = ()
    temperatures: tuple[float, ...] = (0.0,)
    max_new_tokens: int = 512
    limit: int = 2048
    held_out: float = 0.02
    features: str = "recorded"
    batch_size: int = 64
    seed: int = 0


@dataclass(frozen=True)
class HeadSettings:
    """What is trained of an EAGLE-3 head; what is None is the target's own.

    Args:
        norm_before_residual, norm_before_fc, fc_norm, norm_output: as in ``HeadShape``; never assumed.
        taps: where the target is read, as indices of ``hidden_states``; None takes ``anatomy.standard_taps``.
        draft_vocab_size: how many ids the head can say; None takes all.
        heads, kv_heads, head_width, feed_forward, max_positions: as in ``HeadShape``.
        warm_start: begin with the target's last layer and head; else at random.
        begin_with: a trained head, by folder or hub id, whose weights and vocabulary are gone on with instead.
    """

    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    taps: tuple[int, ...] | None = None
    draft_vocab_size: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_width: int | None = None
    feed_forward: int | None = None
    max_positions: int | None = None
    warm_start: bool = True
    begin_with: str | None = None


@dataclass(frozen=True)
class FirstSettings:
    """What is trained of an EAGLE-1 head; what is None is the target's own.

    Args:
        fc_bias: as in ``FirstShape``; never assumed.
        heads, kv_heads, head_width, feed_forward, max_positions: as in ``FirstShape``.
        pass_state: begin with a mixture that passes the state on beside its random weights; else with those alone.
            No layer of the target is begun with: they are made for states of another size.
        begin_with: a trained head, by folder or hub id, whose weights are gone on with instead.
    """

    fc_bias: bool
    heads: int | None = None
    kv_heads: int | None = None
    head_width: int | None = None
    feed_forward: int | None = None
    max_positions: int | None = None
    pass_state: bool = True
    begin_with: str | None = None


@dataclass(frozen=True)
class TrainSettings:
    """How it is trained. A method that needs more, or for which some of this means nothing, has a subclass.

    Args:
        depth: tokens ahead that are taught: steps of the training-time test.
        epochs: passes over the data.
        tokens_per_batch: rows times the longest of them, of one forward pass.
        batches_per_step: forward passes of one step of the optimiser, over all processes.
        learning_rate: the highest.
        warmup: the share of all steps in which it rises to that.
        schedule: how it falls from there on: ``cosine``, ``linear`` or ``constant``.
        final_rate: what it falls to, as a share of the highest.
        optimiser: ``adamw`` for all weights, or ``muon`` for the matrices inside and AdamW for the rest.
        muon_factor: the rate of Muon's matrices, as so many times the learning rate; AdamW has none.
        betas, weight_decay: of AdamW; only matrices decay, under Muon too.
        clip: the largest norm of a step's gradient.
        loss: one of ``LOSSES``.
        decay: how much less each step of the unrolled draft weighs than the one before.
        mask_outside: give no weight to places whose likeliest token the head cannot say.
        precision: of matrix products, ``bf16`` or ``fp32``; weights and moments are fp32 in either.
        seed: of the order of batches and of random weights.
        checkpoint_minutes: between two checkpoints; one more at the end of every epoch.
        max_bad_steps: so many steps in a row may be skipped for a loss that is no number.
    """

    untold: ClassVar[tuple[str, ...]] = ()

    depth: int = 4
    epochs: int = 2
    tokens_per_batch: int = 2048
    batches_per_step: int = 4
    learning_rate: float = 5e-4
    warmup: float = 0.03
    schedule: str = "cosine"
    final_rate: float = 0.05
    optimiser: str = "adamw"
    muon_factor: float = FACTOR
    betas: tuple[float, ...] = (0.9, 0.95)
    weight_decay: float = 0.0
    clip: float = 0.5
    loss: str = "cross-entropy"
    decay: float = 0.8
    mask_outside: bool = True
    precision: str = "bf16"
    seed: int = 0
    checkpoint_minutes: float = 10.0
    max_bad_steps: int = 10

    def __post_init__(self) -> None:
        if self.muon_factor != FACTOR and self.optimiser != MUON:
            raise UsageError(
                f"muon_factor is {self.muon_factor} and optimiser {self.optimiser!r}; allowed: muon_factor of {MUON!r}",
                hint="leave it out: only Muon has matrices with a rate of their own",
            )


@dataclass(frozen=True)
class WholeTraining(TrainSettings):
    """How what can say every id of its target is trained.

    Args:
        vocabulary: how many ids a batch's laws are compared on, see ``sampled``: most of a step's time goes with them.
            None takes all. What is measured on held-out texts is always of all.
    """

    vocabulary: int | None = None


@dataclass(frozen=True)
class FirstTraining(WholeTraining):
    """How an EAGLE-1 head is trained: one step behind every prefix, so that nothing is unrolled.

    Args:
        feature_weight: of the distance between the state that is guessed and the target's.
        token_weight: of the cross-entropy under the target's law.
        noise: the width of uniform noise on the states that are read, in texts of 512 tokens; in texts of T tokens it
            is 512/T times as wide.

    Source: EAGLE (Li et al., arXiv 2401.15077), section 4.2, and its published training code.
    """

    untold: ClassVar[tuple[str, ...]] = ("depth", "loss", "decay", "mask_outside")

    feature_weight: float = 1.0
    token_weight: float = 0.1
    noise: float = 0.2


@dataclass(frozen=True)
class MedusaSettings:
    """What is trained of Medusa heads.

    Args:
        heads: how many tokens are spoken of from one state, the first of them two places behind it.
        layers: residual blocks of each head; they begin by passing the state on.
        own_head: each head has rows of its own behind them, which begin as the target's; else all share the target's.
        begin_with: trained heads, by folder or hub id, whose weights are gone on with instead.
    """

    heads: int = 4
    layers: int = 1
    own_head: bool = False
    begin_with: str | None = None


@dataclass(frozen=True)
class MedusaTraining(WholeTraining):
    """How they are trained: a step is a head, and all ids can be said.

    Args:
        loss: one of ``LOSSES``, or ``hard``.
        decay: how much less each head weighs than the one before.
        places: the share of all places behind which a step teaches, drawn anew in each: its time is as much less.
    """

    untold: ClassVar[tuple[str, ...]] = ("depth", "mask_outside")
    ranges: ClassVar[Ranges] = {"loss": (f"one of {', '.join((*LOSSES, HARD))}", (*LOSSES, HARD).__contains__)}

    learning_rate: float = 1e-3
    places: float = 1.0


@dataclass(frozen=True)
class StudentSettings:
    """What is trained of a small model: a new one by its sizes, or one that is given, and then nothing else is said.

    Args:
        depth, width, heads, kv_heads, feed_forward, tied, embeddings: as for ``new_student``; the first three are
            needed of a new one.
        begin_with: a model with the target's tokenizer, by folder or hub id, whose weights are gone on with.
    """

    depth: int | None = None
    width: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    feed_forward: int | None = None
    tied: bool | None = None
    embeddings: str | None = None
    begin_with: str | None = None


@dataclass(frozen=True)
class StudentTraining(WholeTraining):
    """How it is trained: to say the next token alone, as the target does.

    Args:
        on_policy: the chance that an answer is replaced in a step by the student's own to the same prompt.
        temperature: these are drawn at; 0 is greedy.

    Source: DistillSpec (Zhou et al., arXiv 2310.08461).
    """

    untold: ClassVar[tuple[str, ...]] = ("depth", "decay", "mask_outside")

    loss: str = "forward-kl"
    on_policy: float = 0.0
    temperature: float = 1.0


@dataclass(frozen=True)
class WalkSettings:
    """What is measured at the end, on prompts that were held out.

    Args:
        prompts: how many; 0 measures nothing.
        new_tokens: of each.
        depth: tokens of a chain; None takes the depth that was trained, and 4 where that was one.
    """

    prompts: int = 32
    new_tokens: int = 128
    depth: int | None = None


@dataclass(frozen=True)
class Schema:
    """What recipes of one method say.

    Args:
        head: the dataclass of ``[head]``.
        train: that of ``[train]``.
    """

    head: type
    train: type[TrainSettings] = TrainSettings

    @property
    def tables(self) -> Mapping[str, type]:
        """The tables of a recipe by name."""
        return {"head": self.head, "data": Data, "train": self.train, "walk": WalkSettings}


METHODS: Mapping[str, Schema] = {
    "eagle3": Schema(HeadSettings),
    "eagle1": Schema(FirstSettings, FirstTraining),
    "medusa": Schema(MedusaSettings, MedusaTraining),
    "distil": Schema(StudentSettings, StudentTraining),
}
"""The methods that can be trained; what each does stands in ``methods.py``."""


@dataclass(frozen=True)
class Recipe:
    """A whole training.

    Args:
        head: what is trained, in the table of the method.
        method: one of ``METHODS``.
        target: a folder, a hub id, or the default.
        dtype: of the target.
        data, train, walk: see there.
    """

    head: Any
    method: str = "eagle3"
    target: str = "smollm2"
    dtype: str = "auto"
    data: Data = field(default_factory=Data)
    train: TrainSettings = field(default_factory=TrainSettings)
    walk: WalkSettings = field(default_factory=WalkSettings)

    @classmethod
    def read(cls, path: str | Path) -> "Recipe":
        """Read a recipe from a file; its own paths are relative to the folder where the command runs.

        Raises:
            UsageError: the file cannot be read, or as ``from_toml``.
        """
        try:
            text = Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UsageError(f"the recipe {path} cannot be read: {reason}") from error
        return cls.from_toml(text, f"the recipe {path}")

    @classmethod
    def from_toml(cls, text: str, source: str = "the recipe") -> "Recipe":
        """Read a recipe.

        Args:
            text: the document.
            source: what an error calls it.

        Raises:
            UsageError: it is no TOML, its version or method is another, or as ``read_table``.
        """
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{source} is not TOML: {error}") from error
        version = document.pop("format_version", None)
        if version != FORMAT_VERSION:
            raise UsageError(f"{source}: format_version is {version!r}; allowed: {FORMAT_VERSION}")
        method = document.get("method", "eagle3")
        if method not in [*METHODS]:
            raise UsageError(f"{source}: method is {method!r}; allowed: one of {', '.join(METHODS)}")
        recipe: Recipe = read_table(cls, document, source, RANGES, METHODS[method].tables)
        return recipe

    def with_changes(self, section: str, **changes: Any) -> "Recipe":
        """The recipe with other values in one of its tables, checked anew."""
        table = replace(getattr(self, section), **changes)
        check(table, f"[{section}]", RANGES)
        return replace(self, **{section: table})

    def to_dict(self) -> dict[str, Any]:
        """The recipe as JSON can hold it."""
        values = {name: getattr(self, name) for name in known(self)}
        said = {name: plain(value) if is_dataclass(value) else value for name, value in values.items()}
        return {"format_version": FORMAT_VERSION} | said

    def to_toml(self) -> str:
        """The recipe as text that ``from_toml`` reads as the same; what is None is left out."""
        said = self.to_dict()
        tables = {name: said.pop(name) for name in METHODS[self.method].tables}
        lines = toml_lines(said)
        for name, table in tables.items():
            lines += ["", f"[{name}]", *toml_lines(table)]
        return "\n".join(lines) + "\n"
