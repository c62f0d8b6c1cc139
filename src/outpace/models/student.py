"""A small causal language model to be trained: a new one with embeddings of its target, or one read from a folder.

Knows nothing of losses or texts. The module is transformers', in its Llama architecture where it is new, so that what
is trained is what engines serve.
"""

import warnings
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

from outpace.errors import UnsupportedError, UsageError, WeightsError
from outpace.models.ends import read_embeddings, read_head
from outpace.models.target import Target
from outpace.models.transformer import Transformer
from outpace.models.weights import load_tensors, read_config

EMBEDDINGS = ("copied", "random")
SPREAD = 0.02
"""The standard deviation of random matrices."""
NORM_EPS = 1e-5
_ROWS = 1 << 14


class Student(nn.Module):
    """A causal language model whose logits are ``rows`` times its last normed states; dropout is never on.

    Args:
        model: of transformers, of class ``...ForCausalLM``; trained in place.
        name: what messages call it.

    Raises:
        UnsupportedError: its logits are not those of its head's rows alone: scaled, capped or with a bias.
    """

    def __init__(self, model: Any, name: str = "student") -> None:
        super().__init__()
        self.model, self.name = model, name
        self.train()
        self.register_state_dict_post_hook(_leave_out)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_put_in)  # type: ignore[no-untyped-call]
        embedding = model.get_input_embeddings()
        if getattr(embedding, "padding_idx", None) is not None:
            embedding.padding_idx = None  # no id is filler here; often it is the one that ends a text
        self._require_plain()

    def train(self, mode: bool = True) -> "Student":
        """As for any module, but dropout stays off: a step must be what it was, whoever shares it."""
        super().train(mode)
        self.model.eval()
        return self

    @property
    def rows(self) -> Float[Tensor, "vocab width"]:
        """Of the head; the embeddings themselves where the two are tied."""
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight

    @property
    def vocab_size(self) -> int:
        """How many ids it can say, padding of its matrices included."""
        return self.rows.shape[0]

    @property
    def max_positions(self) -> int:
        """The longest text that it can read."""
        return int(self.model.config.max_position_embeddings)

    @property
    def num_parameters(self) -> int:
        """Numbers that are trained; tied ones count once."""
        return sum(weight.numel() for weight in self.parameters())

    @property
    def doubles(self) -> dict[str, str]:
        """Further names of tied weights, each with the first one; ``state_dict`` holds what is tied once."""
        first = {id(weight): name for name, weight in self.named_parameters()}
        every = {name: first[id(weight)] for name, weight in self.named_parameters(remove_duplicate=False)}
        return {name: own for name, own in every.items() if name != own}

    def forward(self, ids: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time width"]:
        """What the head reads after every token. Filler stands behind a text, where nothing of the text sees it."""
        states: Tensor = self.model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        return states

    @torch.no_grad()
    def _require_plain(self) -> None:
        ids = torch.arange(min(4, self.vocab_size), device=self.rows.device)[None]
        said = self.model(input_ids=ids, use_cache=False).logits
        biased = getattr(self.model.get_output_embeddings(), "bias", None) is not None
        if biased or not torch.allclose(self(ids) @ self.rows.mT, said, rtol=1e-3, atol=1e-3 * float(said.abs().max())):
            raise UnsupportedError(
                f"the logits of {self.name!r} are not its head times its last normed state; allowed: a plain head",
                hint="logits that are scaled, capped or have a bias cannot be taught from states alone",
            )


def _leave_out(student: Student, tensors: dict[str, Any], prefix: str, *_: Any) -> None:
    for name in student.doubles:
        tensors.pop(prefix + name, None)


def _put_in(student: Student, tensors: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, first in student.doubles.items():
        if prefix + first in tensors:
            tensors.setdefault(prefix + name, tensors[prefix + first])


# ---- a new one -------------------------------------------------------------------------------------------------------


def new_student(
    target: Target,
    *,
    depth: int,
    width: int,
    heads: int,
    kv_heads: int | None = None,
    feed_forward: int | None = None,
    tied: bool = True,
    embeddings: str = "copied",
    seed: int = 0,
) -> Student:
    """A model with the target's ids and context, random but for its embeddings; fp32.

    Args:
        target: whose law it is to learn.
        depth: layers, 1 or more.
        width: of its states; ``heads`` heads of equal, even width.
        heads: of queries.
        kv_heads: of keys and values, a divisor of ``heads``; None takes as many.
        feed_forward: the inner width of a layer; None takes 8/3 of ``width``, as a multiple of 64.
        tied: whether its head is its embeddings.
        embeddings: ``copied`` takes the target's rows, ``projected`` if it is narrower; a head that is not tied takes
            the rows of the target's head likewise. ``random`` takes none.
        seed: names the random weights.

    Warns:
        UserWarning: it is no smaller than its target.

    Raises:
        UsageError: an argument is out of range, or it is wider than the target whose rows it is to copy.
        WeightsError, UnsupportedError: as for ``read_embeddings`` and ``read_head``.
    """
    sizes = {"depth": depth, "width": width, "heads": heads, "kv_heads": kv_heads, "feed_forward": feed_forward}
    _require(sizes, embeddings)
    rows = [] if embeddings == "random" else [read_embeddings(target), *([] if tied else [read_head(target)])]
    if rows and width > rows[0].shape[1]:
        raise UsageError(
            f"the width is {width}, and the rows to be copied are {rows[0].shape[1]} wide; allowed: no more than that",
            hint='take embeddings = "random" for a wider one',
        )
    config = LlamaConfig(
        vocab_size=target.vocab_size,
        hidden_size=width,
        intermediate_size=feed_forward or -(-8 * width // (3 * 64)) * 64,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads or heads,
        max_position_embeddings=target.max_positions,
        rms_norm_eps=NORM_EPS,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": _theta(target)},
        pad_token_id=None,
        bos_token_id=None if target.folder is None else read_config(target.folder).get("bos_token_id"),
        eos_token_id=list(target.eos_ids) or None,
    )
    student = Student(_empty(config), f"student of {target.name}")
    _begin(student, rows, seed)
    tell_size(student, target)
    return student


@torch.no_grad()
def _begin(student: Student, rows: list[Tensor], seed: int) -> None:
    """Random matrices, but for the ends that there are rows for."""
    generator = torch.Generator().manual_seed(seed)
    for weight in student.parameters():
        if weight.dim() > 1:
            weight.copy_(SPREAD * torch.randn(weight.shape, generator=generator))
    ends = [student.model.get_input_embeddings().weight, student.rows]
    for end, found in zip(ends, rows, strict=False):  # of a tied one the head is the first end too
        width = end.shape[1]
        end.copy_(found if found.shape[1] == width else projected(found, width)[0])


def _require(sizes: dict[str, int | None], embeddings: str) -> None:
    if embeddings not in EMBEDDINGS:
        raise UsageError(f"embeddings is {embeddings!r}; allowed: {', '.join(EMBEDDINGS)}")
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise UsageError(f"{name} is {size}; allowed: 1 or more")
    width, heads = sizes["width"] or 0, sizes["heads"] or 1
    if width % (2 * heads):
        raise UsageError(f"the width is {width} and there are {heads} heads; allowed: heads of equal, even width")
    if heads % (sizes["kv_heads"] or heads):
        raise UsageError(f"kv_heads is {sizes['kv_heads']} and heads is {heads}; allowed: a divisor of heads")


def _theta(target: Target) -> float:
    """The target's rotary base, as the student is to reach as far; what a configuration means by silence elsewhere."""
    return float(target.shape.rotary["rope_theta"]) if isinstance(target, Transformer) else 10000.0


def _empty(config: Any) -> Any:
    """A module in fp32 whose weights are still to be set; the random state of others is left alone."""
    with torch.random.fork_rng(devices=[]):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


@torch.no_grad()
def projected(
    rows: Float[Tensor, "vocab hidden"], width: int
) -> tuple[Float[Tensor, "vocab width"], Float[Tensor, "width hidden"]]:
    """Narrower rows and a basis with ``rows ≈ narrow @ basis``: no pair of this width has a smaller squared error.

    The basis is orthonormal: the right singular vectors of the largest singular values, each with its largest entry
    positive; the narrow rows are ``rows @ basis.T``. Nothing is centred, as neither end of a model has a bias, and all
    ids weigh alike. The error is the sum of the squares of the singular values that are left out. Scalar products of
    rows, which tell which tokens are alike, are kept as well as so few numbers can keep them.

    Args:
        rows: of a target's embeddings or head.
        width: 1 to ``hidden``.

    Source: Eckart and Young 1936.
    """
    hidden = rows.shape[1]
    gram = torch.zeros(hidden, hidden, dtype=torch.float64)
    for part in torch.split(rows, _ROWS):
        exact = part.to(torch.promote_types(part.dtype, torch.float32)).cpu()
        gram += (exact.mT @ exact).double()
    basis = torch.linalg.eigh(gram).eigenvectors[:, -width:].flip(1).mT
    largest = basis.abs().argmax(1, keepdim=True)
    basis = (basis * basis.gather(1, largest).sign()).to(torch.promote_types(rows.dtype, torch.float32))
    return torch.cat([part.to(basis) @ basis.mT for part in torch.split(rows.cpu(), _ROWS)]), basis


def tell_size(student: Student, target: Target) -> None:
    """Warn of a student that cannot pay.

    Warns:
        UserWarning: it has no fewer parameters than its target.
    """
    own, theirs = student.num_parameters, _num_parameters(target)
    if theirs is not None and own >= theirs:
        warnings.warn(
            f"{student.name!r} has {own:,} parameters and the target {target.name!r} {theirs:,}: a drafted token "
            "costs what one of the target's own costs, so that it cannot make the target faster",
            stacklevel=3,
        )


def _num_parameters(target: Target) -> int | None:
    if isinstance(target, Transformer):
        shape = target.shape
        query, key = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
        layer = shape.hidden_size * (2 * query + 2 * key + 3 * shape.feed_forward + 2)
        ends = (1 if shape.tied_head else 2) * shape.vocab_size
        return shape.layers * layer + shape.hidden_size * (ends + 1)
    return None if target.folder is None else sum(tensor.numel() for tensor in load_tensors(target.folder).values())


# ---- one that stands already -----------------------------------------------------------------------------------------


def open_student(folder: Path, name: str = "student") -> Student:
    """A model's folder as a student; fp32.

    Args:
        folder: configuration and safetensors.
        name: what messages call it.

    Raises:
        WeightsError: a file is missing, or a tensor has another shape than the configuration says.
        UnsupportedError: the weights are quantised, a tensor is missing or bears another name in memory than in the
            file, or as for ``Student``.
    """
    said = read_config(folder)
    if quantised := said.get("quantization_config"):
        raise UnsupportedError(
            f"the weights are quantised ({quantised.get('quant_method')}); allowed: floating point",
            hint="use the checkpoint that these weights were quantised from",
        )
    model = _empty(AutoConfig.from_pretrained(str(folder)))
    prefix = f"{model.base_model_prefix}."
    held = {written.removeprefix(prefix): tensor for written, tensor in load_tensors(folder).items()}
    own = model.state_dict()
    if model.get_output_embeddings().weight is model.get_input_embeddings().weight:
        held = _tied(model, held, prefix)
    if missing := [one for one in own if one.removeprefix(prefix) not in held]:
        raise UnsupportedError(
            f"{folder} has no tensor {missing[0]!r}, as transformers names it in memory; allowed: a family whose names "
            "are the same in both",
            hint="is the download complete?",
        )
    for one, tensor in own.items():
        found = held[one.removeprefix(prefix)]
        if found.shape != tensor.shape:
            raise WeightsError(
                f"the tensor {one!r} has shape {tuple(found.shape)}; config.json says {tuple(tensor.shape)}"
            )
        tensor.copy_(found)
    return Student(model, name)


def _tied(model: Any, held: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors of a file that may hold either name of tied rows, under both."""
    shared = model.get_input_embeddings().weight.data_ptr()
    names = [one.removeprefix(prefix) for one, tensor in model.state_dict().items() if tensor.data_ptr() == shared]
    found = next((held[one] for one in names if one in held), None)
    return held if found is None else held | dict.fromkeys(names, found)
