"""Lets any other Hugging Face causal LM play Target: transformers computes, our cache holds keys and values.

Knows nothing of sampling, drafts judged or text. A model is handed our cache in place of its own, positions by depth
and a mask for every kind of layer, so that rows may differ in length and a tree is scored in one forward. What it says
is checked at load against what it says of whole texts; a model that cannot be used so is limited by name.
"""

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from outpace.errors import OutpaceError, UnsupportedError, WeightsError
from outpace.models.attention import Flight, attend, causal, mask_under_way
from outpace.models.cache import Cache, Room
from outpace.models.cached import Cached, tree_mask
from outpace.models.function import UNLIMITED
from outpace.models.lent import Lent, room_of
from outpace.models.one_by_one import OneByOne, cache_name
from outpace.models.packing import pack
from outpace.models.refine import refine
from outpace.models.selfcheck import Script, chain_fault, own_fault, plain_fault, tree_fault
from outpace.models.target import Scores, State, Tap, Target
from outpace.models.transformer import PREFILL_TOKENS
from outpace.models.watch import Watcher
from outpace.models.weights import read_config
from outpace.verification.tree import DraftTree

OURS = "outpace"
"""How our attention and our masks are called in the tables of transformers."""
AttentionInterface.register(OURS, attend)
AttentionMaskInterface.register(OURS, mask_under_way)

WINDOWS = ("sliding_window", "attention_chunk_size", "window_size")
"""What limits how far a layer sees; a model that makes masks of its own would count it by place, not by depth."""


# ---- the target ------------------------------------------------------------------------------------------------------


class Hosted(Cached):
    """A Target: a model of transformers over our cache.

    Args:
        model: a causal language model that takes positions; its attention is ours, or takes a mask of four axes.
        room: what its cache holds.
        vocab_size, max_positions, name, folder, eos_ids, fingerprint: what the Target protocol shows.
        packed: pack CPU weights; None measures whether that pays.
        bare_head: whether the model's logits are what its head gives, with nothing done to them: rounded ones are then
            ``refine``d, where the head's rows are at hand.
    """

    def __init__(
        self,
        model: Any,
        room: Room,
        *,
        vocab_size: int,
        max_positions: int,
        name: str,
        folder: Path | None,
        eos_ids: tuple[int, ...],
        fingerprint: str,
        packed: bool | None,
        bare_head: bool = False,
    ) -> None:
        self.model, self.room, self.vocab_size, self.max_positions = model, room, vocab_size, max_positions
        self.name, self.folder, self.eos_ids, self.fingerprint = name, folder, eos_ids, fingerprint
        self.device, self.dtype = model.device, model.dtype
        self.can_tree = True
        self.limited_by: str | None = None
        rows, tied = _head_rows(model) if bare_head else (None, False)
        self.packed = pack(model, packed=packed)
        self.head_rows = rows if tied or not self.packed else None
        text = model.config.get_text_config()
        self._asks_for_masks = text._attn_implementation == OURS
        self._cache_name = cache_name(model)
        stacks = (part for part in model.get_decoder().modules() if isinstance(part, nn.ModuleList))
        layers = next((stack for stack in stacks if len(stack) == text.num_hidden_layers), None)
        self._watcher = Watcher(model.get_output_embeddings(), layers)

    @torch.inference_mode()
    def prefill(
        self, state: State, ids: Int[Tensor, "new time"], lengths: list[int], taps: tuple[Tap, ...] = ()
    ) -> Scores:
        """Read right-padded prompts as new last rows, in chunks; one row a prompt and chunk reaches the head."""
        cache = self.cache_of(state)
        count, time = ids.shape
        cache.require([0] * count, time)
        rows = cache.admit(count)
        ends = torch.tensor(lengths, device=self.device) - 1
        last: Tensor | None = None
        features = []
        for start in range(0, time, max(1, PREFILL_TOKENS // count)):
            block = ids[:, start : start + max(1, PREFILL_TOKENS // count)].to(self.device)
            stop = start + block.shape[1]
            places = torch.arange(start, stop, device=self.device).expand(count, -1)
            triangle = places[:, :, None] >= torch.arange(stop, device=self.device)
            here = (ends - start).clamp(0, block.shape[1] - 1)
            scores = self._forward(cache, rows, [start] * count, block, places, triangle, taps, here)
            inside = ((start <= ends) & (ends < stop))[:, None, None]
            last = scores.logits if last is None else scores.logits.where(inside, last)
            features.append(scores.features)
        cache.lengths[rows.start :] = lengths
        assert last is not None, "a prompt has at least one token"
        return Scores(last, torch.cat([part for part in features if part is not None], 1) if taps else None)

    @torch.inference_mode()
    def score(self, state: State, last: Int[Tensor, " batch"], tree: DraftTree, taps: tuple[Tap, ...] = ()) -> Scores:
        """Score the last token and every node in one forward, each seeing the kept tokens and its own ancestors.

        Raises:
            UnsupportedError: the draft branches, and this model scores chains only.
        """
        if not self.can_tree and not tree.is_chain:
            raise UnsupportedError(
                f"the target {self.name!r} was given a tree to score; allowed: chains", hint=self.limited_by
            )
        cache = self.cache_of(state)
        lengths = cache.lengths
        ids = torch.cat((last[:, None], tree.tokens.where(tree.real, last[:, None])), 1).to(self.device)
        cache.require(lengths, ids.shape[1])
        starts = torch.tensor(lengths, device=self.device)
        visible = tree_mask(tree, starts, max(lengths) + ids.shape[1])
        return self._forward(cache, range(len(lengths)), lengths, ids, tree.positions(starts), visible, taps)

    def _forward(
        self,
        cache: Cache,
        rows: range,
        starts: list[int],
        ids: Int[Tensor, "batch time"],
        places: Int[Tensor, "batch time"],
        visible: Bool[Tensor, "batch time context"],
        taps: tuple[Tap, ...],
        only: Int[Tensor, " batch"] | None = None,
    ) -> Scores:
        """Run ``ids`` behind ``starts``; logits of every token, or of the one that ``only`` names in each row."""
        flight = Flight.behind(starts, places, visible)
        given: dict[str, Any] = {str(self._cache_name): Lent(cache, rows, starts, ids.shape[1])}
        if not self._asks_for_masks:
            given["attention_mask"] = flight.mask(causal, self.dtype)
        with flight.under_way(), self._watcher.watching(taps, only) as seen:
            logits = self.model(input_ids=ids, position_ids=places, use_cache=True, **given).logits
        if self.head_rows is not None:
            states = seen["last_normed"]
            if only is not None:
                states = states[torch.arange(len(only), device=only.device), only][:, None]
            logits = refine(logits, states, self.head_rows)
        return Scores(logits, torch.stack([seen[tap].to(self.dtype) for tap in taps], 2) if taps else None)


# ---- opening a model -------------------------------------------------------------------------------------------------


def load_hosted(
    folder: Path,
    *,
    dtype: torch.dtype,
    device: str,
    name: str,
    eos_ids: tuple[int, ...],
    fingerprint: str,
    trust_remote_code: bool = False,
) -> Target:
    """Open a folder with transformers and host the model.

    Args:
        folder: configuration and safetensors.
        dtype, device: of the weights.
        name, eos_ids, fingerprint: what the Target protocol shows.
        trust_remote_code: run Python files that came with the weights.

    Raises:
        UnsupportedError: transformers does not know the model type, the weights are quantised, code that the model
            brings is not trusted, or as in ``host``.
        WeightsError: the weights lack a tensor.
    """
    said = read_config(folder)
    if quantised := said.get("quantization_config"):
        raise UnsupportedError(
            f"the weights are quantised ({quantised.get('quant_method')}); allowed: floating point",
            hint="use the checkpoint that these weights were quantised from",
        )
    hint = "the model brings code of its own; read it, then allow trust_remote_code" if said.get("auto_map") else None
    hint = "code of a model is not fetched; clone its repository and name the folder" if trust_remote_code else hint
    with _quiet(), _worded(f"transformers cannot open a model of type {said.get('model_type')!r}", hint):
        config = AutoConfig.from_pretrained(str(folder), trust_remote_code=trust_remote_code)
        _refuse_encoder(config)
        model, report = AutoModelForCausalLM.from_pretrained(
            str(folder),
            config=config,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
        )
    if missing := sorted(report["missing_keys"]):
        raise WeightsError(f"the weights lack the tensor {missing[0]!r}", hint="is the download complete?")
    return host(model.to(device), name=name, folder=folder, eos_ids=eos_ids, fingerprint=fingerprint)


def host(
    model: Any,
    *,
    name: str = "hosted",
    folder: Path | None = None,
    eos_ids: tuple[int, ...] = (),
    fingerprint: str = "",
    packed: bool | None = None,
) -> Target:
    """Make a causal language model of transformers a Target, as far as it can be one.

    The model is changed: its attention becomes ours, and its linear layers are packed where that pays.

    Args:
        model: of class ``...ForCausalLM`` or the like, with its weights.
        name, folder, eos_ids, fingerprint: what the Target protocol shows.
        packed: pack CPU weights; None measures whether that pays.

    Returns:
        A ``Hosted``; with ``can_tree`` False and a notice where siblings would see each other. A ``OneByOne``, with
        ``can_rewind`` False and a notice, where only the model's own cache fits. ``limited_by`` says why.

    Raises:
        UnsupportedError: the model has an encoder or is not causal, its head is no module, its layers keep keys and
            values of different shapes, or it cannot even decode plainly.
    """
    _refuse_encoder(model.config)
    kind, head = model.config.model_type, model.eval().get_output_embeddings()
    if head is None:
        raise UnsupportedError(f"a model of type {kind!r} has no head of its own; allowed: causal language models")
    script = Script.drawn(head.weight.shape[0])
    with _quiet():
        model.set_attn_implementation("eager")  # the published arithmetic
        whole, bare = _read_whole(model, script.runs)
        if fault := own_fault(script, whole):
            raise UnsupportedError(f"a model of type {kind!r} is not causal: {fault}; allowed: causal language models")
        shown: dict[str, Any] = {
            "vocab_size": whole["ac"].shape[-1],
            "max_positions": _max_positions(model.config, name),
            "name": name,
            "folder": folder,
            "eos_ids": eos_ids,
            "fingerprint": fingerprint,
        }
        room = _fitted(model)
        reason = room if isinstance(room, str) else None
        if isinstance(room, Room):
            hosted = Hosted(model, room, packed=packed, bare_head=bare, **shown)
            if (reason := chain_fault(hosted, script, whole)) is None:
                hosted.limited_by = tree_fault(hosted, script, whole)
                hosted.can_tree = hosted.limited_by is None
                return _noticed(hosted)
        model.set_attn_implementation("eager")
        alone = OneByOne(model, limited_by=str(reason), **shown)
        if fault := plain_fault(alone, script, whole):
            raise UnsupportedError(f"a model of type {kind!r} cannot be hosted: {reason}; decoded plainly, {fault}")
    return _noticed(alone)


def _fitted(model: Any) -> Room | str:
    """What a cache of ours has to hold for a model, whose attention becomes ours; or why it needs one of its own."""
    if model._is_stateful:
        return "it keeps a recurrent state, which cannot be taken back"
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return "it counts positions by itself, alike in all rows"
    try:
        room = room_of(model)
    except OutpaceError:
        raise
    except Exception as error:  # whatever a model raises where a cache is not of its own kind
        return f"it asks more of a cache than keys and values ({type(error).__name__}: {error})"
    model.set_attn_implementation(OURS)
    text = model.config.get_text_config()
    if text._attn_implementation != OURS and any(getattr(text, limit, None) for limit in WINDOWS):
        return "its attention has a window and takes no mask from outside"
    return room


def _noticed(target: Hosted | OneByOne) -> Target:
    if target.limited_by is not None:
        allowed = "chains, no trees" if target.can_rewind else "plain decoding, no drafts"
        warnings.warn(f"the target {target.name!r} is limited to {allowed}: {target.limited_by}", stacklevel=3)
    return target


def _refuse_encoder(config: Any) -> None:
    if config.is_encoder_decoder:
        raise UnsupportedError(
            f"the model type is {config.model_type!r}, which has an encoder; allowed: decoder-only language models"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no advice from transformers: what matters here is an error or a notice of our own."""
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def _worded(what: str, hint: str | None) -> Iterator[None]:
    """Errors of transformers in our words, one line each."""
    try:
        yield
    except (ImportError, KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UnsupportedError(f"{what}: {reason}", hint=hint) from error


@torch.inference_mode()
def _read_whole(model: Any, runs: dict[str, list[int]]) -> tuple[dict[str, Float[Tensor, "time vocab"]], bool]:
    """The model's own logits after every token of every text, in one forward without a cache.

    Beside them, whether they are what its head gave, to the bit: some models scale or bend them.
    """
    given: list[Tensor] = []
    hook = model.get_output_embeddings().register_forward_hook(lambda *seen: given.append(seen[-1].clone()))
    texts = [torch.tensor(run, device=model.device) for run in runs.values()]
    try:
        ids = pad_sequence(texts, batch_first=True, padding_value=int(texts[0][0]))
        read = model(input_ids=ids, use_cache=False)
    finally:
        hook.remove()
    rows = {name: row[: len(run)] for (name, run), row in zip(runs.items(), read.logits, strict=True)}
    return rows, len(given) == 1 and torch.equal(given[0], read.logits)


def _head_rows(model: Any) -> tuple[Tensor | None, bool]:
    """The rows of a head that rounds and is a matrix alone, and whether they are the embeddings too; else None."""
    head = model.get_output_embeddings()
    bias = getattr(head, "bias", None)
    if type(head) is not nn.Linear or bias is not None or head.weight.dtype not in (torch.bfloat16, torch.float16):
        return None, False
    embeddings = model.get_input_embeddings().weight
    return head.weight.detach(), embeddings.data_ptr() == head.weight.data_ptr()


def _max_positions(config: Any, name: str) -> int:
    """How long a text may be: shorter, with a notice, where rotary frequencies change with the length of the text."""
    text = config.get_text_config()
    longest = int(getattr(text, "max_position_embeddings", None) or UNLIMITED)
    rope = getattr(text, "rope_parameters", None) or {}
    for one in (rope, *(part for part in rope.values() if isinstance(part, dict))):
        before = one.get("original_max_position_embeddings") if one.get("rope_type") == "longrope" else None
        if before is not None and before < longest:
            longest = int(before)
            warnings.warn(
                f"texts of the target {name!r} end at {longest} tokens: beyond, its rotary frequencies would depend on "
                "the drafts in flight",
                stacklevel=3,
            )
    return longest
