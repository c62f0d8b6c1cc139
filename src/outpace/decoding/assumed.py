"""Costs of a machine that is not at hand, computed from its bandwidth and its speed: labelled as assumed.

Knows nothing of how a cost is measured. A forward takes as long as the slower of two things: reading all weights and
caches once, or multiplying every row with every weight; and a launch besides. No machine is quite as good as that, so
that a table says what to expect at best, and says of itself that it was assumed.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from torch import Tensor, nn

from outpace.decoding.costs import CONTEXTS, SIZES, CostTable
from outpace.drafters.drafter import Drafter
from outpace.drafters.eagle import Eagle
from outpace.drafters.first_head import FirstHead, FirstShape
from outpace.drafters.lookup import Lookup
from outpace.drafters.medusa import Medusa
from outpace.drafters.medusa_heads import MedusaShape
from outpace.drafters.small import Small
from outpace.errors import UsageError
from outpace.models.target import Target
from outpace.models.transformer import Transformer
from outpace.verification.expectation import TurnCosts

BATCHES = (1, 2, 4, 8, 16, 32, 64)
EXAMPLE = "assumed:bandwidth=3.35e12,flops=9.9e14"


@dataclass(frozen=True)
class Machine:
    """A machine, and what it has to read.

    Args:
        bandwidth: bytes a second from memory, above 0.
        flops: multiplications and additions a second in the dtype of the weights, above 0.
        launch: seconds that every forward takes besides, 0 or more: the host's work and the starts of kernels. Half a
            millisecond is a guess at an engine with captured graphs.
        target_bytes, draft_bytes: the weights that a forward of the target and a step of the drafter read.
        cache_bytes: what the target's cache holds a token.
        width: bytes a weight.

    Raises:
        UsageError: a number outside of these.
    """

    bandwidth: float
    flops: float
    launch: float = 5e-4
    target_bytes: float = 0.0
    draft_bytes: float = 0.0
    cache_bytes: float = 0.0
    width: float = 2.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value, positive = getattr(self, field.name), field.name in ("bandwidth", "flops", "width")
            if not (0 < value < float("inf") or (value == 0 and not positive)):
                raise UsageError(f"{field.name} is {value:g}; allowed: {'above 0' if positive else '0 or more'}")

    @classmethod
    def parse(cls, text: str, target: Target, drafter: Drafter | None) -> "Machine":
        """Read ``assumed:name=number,...``; the bytes that are not given are those of the pair at hand.

        Raises:
            UsageError: a name is unknown, a value is no number, one without which there is no machine is missing, or
                bytes are not given and nobody can tell them.
        """
        given: dict[str, float] = {}
        names = [field.name for field in fields(cls)]
        for part in filter(None, text.removeprefix("assumed:").split(",")):
            name, _, value = part.partition("=")
            if name not in names:
                raise UsageError(f"costs name {name!r}; allowed: {', '.join(names)}, such as {EXAMPLE}")
            try:
                given[name] = float(value)
            except ValueError:
                raise UsageError(f"costs: {name} is {value!r}; allowed: a number, such as in {EXAMPLE}") from None
        for name in ("bandwidth", "flops"):
            if name not in given:
                raise UsageError(f"costs {text!r} have no {name}; allowed: both, such as {EXAMPLE}")
        width = given.get("width", float(target.dtype.itemsize))
        own = {
            "width": width,
            "target_bytes": given.get("target_bytes") or _weights("target", target) * width,
            "draft_bytes": given["draft_bytes"] if "draft_bytes" in given else _weights("draft", drafter) * width,
            "cache_bytes": _cached(target) * width,
        }
        return cls(**(own | given))

    def forward_ms(self, batch: int, context: int, rows: int) -> float:
        """One forward of the target over so many rows a sequence."""
        read = self.target_bytes + batch * context * self.cache_bytes
        return self._ms(read, self.target_bytes, batch * rows)

    def step_ms(self, batch: int) -> float:
        """One step of the drafter; a drafter without weights costs nothing."""
        return self._ms(self.draft_bytes, self.draft_bytes, batch) if self.draft_bytes else 0.0

    def _ms(self, read: float, weights: float, rows: int) -> float:
        computed = 2 * weights / self.width * rows / self.flops
        return 1e3 * (max(read / self.bandwidth, computed) + self.launch)


def assumed_table(machine: Machine, *, parallel: bool = False) -> CostTable:
    """The costs of a machine, by the roofline.

    Args:
        machine: its numbers, and those of the pair.
        parallel: whether the drafter guesses all depths in one step, as Medusa's heads do.

    Returns:
        A table whose ``assumed`` holds the numbers it was made of. Reading a prompt costs what its multiplications do.

    Source: Williams, Waterman and Patterson 2009, the roofline model.
    """
    cells = {
        (batch, context): TurnCosts(
            {rows: machine.forward_ms(batch, context, rows) for rows in SIZES},
            0.0 if parallel else machine.step_ms(batch),
            machine.step_ms(batch) if parallel else 0.0,
        )
        for batch in BATCHES
        for context in (*CONTEXTS, 8 * CONTEXTS[-1])
    }
    plainly = 2e3 * machine.target_bytes / machine.width / machine.flops
    drafting = plainly + 2e3 * machine.draft_bytes / machine.width / machine.flops
    return CostTable(cells, read=(plainly, drafting), assumed=asdict(machine))


def is_parallel(drafter: Drafter | None) -> bool:
    """Whether a drafter guesses all depths at once."""
    return isinstance(drafter, Medusa)


def said(assumed: Mapping[str, float]) -> str:
    """The numbers of an assumed table in words, to stand wherever it is used."""
    return "costs are assumed, not measured: " + ", ".join(f"{name} {value:.4g}" for name, value in assumed.items())


def _weights(role: str, model: Target | Drafter | None) -> int:
    """How many weights a forward reads; rows that are only looked up do not count."""
    match model:
        case None | Lookup():
            return 0
        case Transformer():
            return _of_shape(model)
        case Small():
            return _weights(role, model.model)
        case Eagle():
            head = model.walker.head
            return _of_module(head) + (_rows(head.shape) if isinstance(head, FirstHead) else 0)
        case Medusa():
            return _of_module(model.heads) + (_rows(model.shape) if model.shared is not None else 0)
    raise UsageError(
        f"nobody knows how many bytes a forward of {model.name!r} reads; allowed: {role}_bytes beside the others",
        hint=f"for instance {EXAMPLE},{role}_bytes=1.4e11",
    )


def _of_shape(model: Transformer) -> int:
    shape = model.shape
    attention = (2 * shape.heads + 2 * shape.kv_heads) * shape.head_width
    return shape.hidden_size * (shape.layers * (attention + 3 * shape.feed_forward) + shape.vocab_size)


def _rows(shape: FirstShape | MedusaShape) -> int:
    """Weights of the target's own head, which a drafter that has none speaks through: every step reads it."""
    return shape.vocab_size * shape.hidden_size


def _of_module(module: nn.Module) -> int:
    """Weights of all linear layers, packed ones too; what is looked up is none of them."""
    found = {id(weight): weight.numel() for part in module.modules() if (weight := _matrix(part)) is not None}
    return sum(found.values())


def _matrix(part: nn.Module) -> Tensor | None:
    weight: Tensor | None = getattr(part, "weight", None)
    return weight if weight is not None and weight.dim() == 2 and not isinstance(part, nn.Embedding) else None


def _cached(target: Target) -> int:
    if not isinstance(target, Transformer):
        return 0
    return 2 * target.shape.layers * target.shape.kv_heads * target.shape.head_width
