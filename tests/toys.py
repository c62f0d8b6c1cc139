"""Small models, scripted drafters and short tokenizers that the tests of decoding share, and the plain reference.

Knows nothing of what is tested. Import it as ``toys``: ``conftest.py`` puts this folder on the path.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.decoding.loop import Request, decode
from outpace.drafters.budget import Budget, Kind
from outpace.drafters.drafter import Drafter, Features, Proposal, chains
from outpace.models.function import FunctionTarget
from outpace.models.matmul import Matmul
from outpace.models.target import Scores, State, Tap, Target
from outpace.models.toy import tiny_transformer
from outpace.models.transformer import Transformer
from outpace.verification.coins import Keys
from outpace.verification.matching import candidates, race
from outpace.verification.probabilities import Sampling, probability_rows
from outpace.verification.tree import DraftTree
from outpace.verification.verdict import Rule

VOCAB = 64
LIVELY = 8
"""A reference with fewer different tokens than this would let most faults pass unseen."""


@cache
def _lively(family: str, seed: int, changes: tuple[tuple[str, Any], ...]) -> Transformer:
    model = tiny_transformer(family, seed=seed, **{name: list(v) if isinstance(v, tuple) else v for name, v in changes})
    text = reference(model, (1, 2, 3), min(40, model.max_positions - 3))
    assert len(set(text)) >= min(LIVELY, len(text) // 2), "this toy repeats itself: take another seed"
    return model


def lively(family: str = "llama", *, seed: int = 3, **changes: Any) -> Transformer:
    """A tiny transformer whose greedy text is no loop; the same object for the same words."""
    frozen = {name: tuple(value) if isinstance(value, list) else value for name, value in changes.items()}
    return _lively(family, seed, tuple(sorted(frozen.items())))


def next_logits(target: Target, text: Sequence[int]) -> Tensor:
    """Logits after a text, read afresh: nothing that was cached before."""
    if isinstance(target, Transformer):
        return dense_logits(target, text)[-1]
    return target.prefill(target.open(1, len(text)), torch.tensor([list(text)]), [len(text)]).logits[0, -1]


@torch.inference_mode()
def dense_logits(model: Transformer, text: Sequence[int]) -> Tensor:
    """The model written out once more, without cache, batch, fusion of heads or fast kernels: ``[time, vocab]``."""
    shape, time = model.shape, len(text)
    places = torch.arange(time)
    angles = (places[:, None] * model.rotary.inverse).repeat(1, 2)
    cos, sin = angles.cos() * model.rotary.scale, angles.sin() * model.rotary.scale
    back = places[:, None] - places
    sizes = [shape.heads * shape.head_width, *[shape.kv_heads * shape.head_width] * 2]

    def norm(states: Tensor, weight: Tensor | None) -> Tensor:
        if weight is None:
            return states
        return states * (states.pow(2).mean(-1, keepdim=True) + shape.norm_eps).rsqrt() * weight

    def turn(states: Tensor) -> Tensor:
        left, right = states.chunk(2, -1)
        return states * cos + torch.cat((-right, left), -1) * sin

    def heads(states: Tensor) -> Tensor:
        return states.view(time, -1, shape.head_width).transpose(0, 1)

    def linear(matmul: Matmul, states: Tensor) -> Tensor:
        return torch.nn.functional.linear(states, matmul.weight, matmul.bias)

    hidden = model.embeddings[torch.tensor(list(text))]
    for layer, window in zip(model.blocks, shape.windows, strict=True):
        query, key, value = map(
            heads, linear(layer.query_key_value, norm(hidden, layer.attention_norm)).split(sizes, -1)
        )
        query, key = turn(norm(query, layer.query_norm)), turn(norm(key, layer.key_norm))
        key, value = (part.repeat_interleave(shape.heads // shape.kv_heads, 0) for part in (key, value))
        seen = (back >= 0) & (back < (window or time))
        weights = (query @ key.mT / shape.head_width**0.5).masked_fill(~seen, -torch.inf).softmax(-1)
        hidden = hidden + linear(layer.output, (weights @ value).transpose(0, 1).reshape(time, -1))
        gate, up = linear(layer.gate_up, norm(hidden, layer.feed_forward_norm)).chunk(2, -1)
        hidden = hidden + linear(layer.down, torch.nn.functional.silu(gate) * up)
    return linear(model.head, norm(hidden, model.last_norm))


@cache
def _read_so_far(target: Target, prompt: tuple[int, ...]) -> list[int]:
    return list(prompt)


def reference(target: Target, prompt: tuple[int, ...], new: int, eos: tuple[int, ...] = ()) -> list[int]:
    """Plain greedy decoding: the whole text anew for every token, no cache, torch's own argmax."""
    text = _read_so_far(target, prompt)
    while len(text) < len(prompt) + new:
        text.append(int(next_logits(target, text).argmax()))
    said = text[len(prompt) : len(prompt) + new]
    ends = [place for place, token in enumerate(said) if token in eos]
    return said[: ends[0] + 1] if ends else said


@cache
def seeded_reference(target: Target, prompt: tuple[int, ...], new: int, sampling: Sampling, seed: int) -> list[int]:
    """Plain seeded decoding by definition: one race a position, its noise keyed by seed and position."""
    text = list(prompt)
    for position in range(len(prompt), len(prompt) + new):
        probs = probability_rows(next_logits(target, text), sampling)[None, None]
        ids = candidates(probs)
        noise = Keys((seed,), (0,), (position,), (True,)).noise(torch.zeros(1, 1, dtype=torch.int64), ids)
        text.append(int(race(probs, ids, noise.times, noise.tail_times, noise.tail_coins)))
    return text[len(prompt) :]


def must_fail() -> Any:
    """The check inside has to notice the planted fault."""
    # A case that merely hangs has noticed nothing: pytest-timeout fails it with this word.
    return pytest.raises((AssertionError, pytest.fail.Exception), match=r"^(?!Timeout)")


@dataclass
class Ended:
    """What became of one request."""

    ids: list[int] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    finish: str | None = None
    stats: Any = None


def run(target: Target, drafter: Drafter | None, requests: Sequence[Request], **options: Any) -> list[Ended]:
    """Decode requests to their ends."""
    ended = [Ended() for _ in requests]
    for emission in decode(target, drafter, requests, **options):
        if emission.error is not None:
            raise emission.error
        one = ended[emission.index]
        assert one.finish is None, "tokens behind the finish"
        one.ids += emission.ids
        one.drafted += emission.drafted
        one.logprobs += emission.logprobs or []
        one.finish, one.stats = emission.finish, emission.speculation
    return ended


# ---- laws ----------------------------------------------------------------------------------------------------------


def first_token_law(rule: Rule, target: Tensor, drawn: Tensor, claimed: Tensor | None) -> tuple[Tensor, float]:
    """The exact law of a turn's first token when one token is drafted, and how often the draft is accepted.

    Args:
        target: the target's row, before and after the drafted token.
        drawn: the law that the drafted token is drawn from.
        claimed: the law that the proposal says it was drawn from, None for a deterministic child.
    """
    vocab = len(target)
    tree = DraftTree.chain(torch.arange(vocab)[:, None])
    law = rule.law(target.expand(vocab, 2, -1), tree, None if claimed is None else claimed.expand(vocab, 2, -1))
    accepted = law[:, 1].sum(-1)
    return drawn @ (law[:, 0] + accepted.diag()), float(drawn @ accepted)


@dataclass(frozen=True)
class Given(Keys):
    """Keys whose coins are given: one a row, for every purpose and place."""

    given: Any = field(default=None)

    def coins(self, purpose: Any, count: int, device: Any = None) -> Tensor:
        return self.given[:, None].expand(-1, count)


def given_coins(coins: Tensor, coupled: bool = False) -> Given:
    rows = len(coins)
    return Given((0,) * rows, (0,) * rows, (1,) * rows, (coupled,) * rows, given=coins)


def grid(count: int) -> Given:
    """Coins that stand for all coins: the middles of so many equal parts of [0, 1)."""
    return given_coins((torch.arange(count).double() + 0.5) / count)


def total_variation(left: Tensor, right: Tensor) -> float:
    return float((left.double() - right.double()).abs().sum() / 2)


# ---- drafters ------------------------------------------------------------------------------------------------------


@dataclass
class ScriptRow:
    """One row of a scripted drafter: its text so far, and how many turns it has drafted."""

    prompt: list[int]
    known: list[int]
    turns: int = 0
    features: list[Tensor] = field(default_factory=list)


Script = Callable[[ScriptRow, int], list[int]]
"""``(row, limit) -> draft``; what is longer than the limit is cut."""


class Scripted:
    """A drafter that drafts what a script says.

    Args:
        script: what to draft.
        laws: the draft law that is claimed: None, ``one-hot``, or ``soft`` (every token possible, half of it on the
            drafted one; a lie about how it was drawn, so for greedy only).
        taps: features to ask for; each row collects what it is given.
    """

    def __init__(self, script: Script, *, laws: str | None = None, taps: tuple[Tap, ...] = (), vocab: int = VOCAB):
        self.script, self.laws, self.taps, self.vocab = script, laws, taps, vocab
        self.name = "scripted"
        self.branchings: frozenset[Kind] = frozenset({"chain"})
        self.drafts: list[tuple[ScriptRow, int, list[int]]] = []
        self.rows: list[ScriptRow] = []

    def open(self, slots: int, positions: int) -> list[ScriptRow]:
        return []

    def admit(self, state: list[ScriptRow], prompts: list[list[int]], features: list[Features] | None) -> None:
        for place, prompt in enumerate(prompts):
            row = ScriptRow(list(prompt), list(prompt))
            row.features += [features[place]] if features else []
            state.append(row)
            self.rows.append(row)

    def propose(self, state: list[ScriptRow], budget: Budget, sampling: list[Sampling], keys: Keys) -> Proposal:
        drafts = []
        for row, limit in zip(state, budget.depths, strict=True):
            drafts.append(self.script(row, limit)[:limit])
            self.drafts.append((row, limit, drafts[-1]))
            row.turns += 1
        tree = chains(drafts)
        return Proposal(tree, self._laws(tree))

    def _laws(self, tree: DraftTree) -> Tensor | None:
        if self.laws is None:
            return None
        batch, nodes = tree.tokens.shape
        rows = torch.zeros(batch, 1 + nodes, self.vocab)
        rows[:, :nodes].scatter_(2, tree.tokens.clamp(min=0)[..., None], 1.0)
        rows[:, nodes] = 1 / self.vocab
        return rows if self.laws == "one-hot" else 0.5 * rows + 0.5 / self.vocab

    def commit(self, state: list[ScriptRow], emitted: list[list[int]], features: list[Features] | None) -> None:
        for place, (row, tokens) in enumerate(zip(state, emitted, strict=True)):
            row.known += tokens
            row.features += [features[place]] if features else []

    def select(self, state: list[ScriptRow], rows: list[int]) -> None:
        state[:] = [state[row] for row in rows]


def right_then_wrong(
    texts: Sequence[Sequence[int]], counts: Sequence[Sequence[int]] | Sequence[int], vocab: int = VOCAB
) -> Script:
    """Draft the reference text, right for a number of tokens, then wrong ones up to the limit; the numbers cycle.

    Args:
        texts: prompts with their continuations; a row has the first text that begins with its prompt.
        counts: the numbers, one list for all texts or one list a text.
    """

    def script(row: ScriptRow, limit: int) -> list[int]:
        index = next(i for i, text in enumerate(texts) if list(text[: len(row.prompt)]) == row.prompt)
        own: Any = counts[index] if isinstance(counts[0], Sequence) else counts
        right, place = own[row.turns % len(own)], len(row.known)
        coming = [*texts[index][place : place + limit], *[0] * limit][:limit]
        return [token if step < right else (token + 1) % vocab for step, token in enumerate(coming)]

    return script


# ---- targets -------------------------------------------------------------------------------------------------------


class Watched:
    """A target that notes every forward: how many there were, and the furthest position that was read."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.name, self.folder, self.fingerprint = target.name, target.folder, target.fingerprint
        self.vocab_size, self.max_positions, self.eos_ids = target.vocab_size, target.max_positions, target.eos_ids
        self.can_tree, self.can_rewind = target.can_tree, target.can_rewind
        self.device, self.dtype = target.device, target.dtype
        self.prefills: list[list[int]] = []
        self.scored: list[list[int]] = []
        self.furthest = -1

    def open(self, slots: int, positions: int) -> State:
        return self.target.open(slots, positions)

    def prefill(self, state: State, ids: Tensor, lengths: list[int], taps: tuple[Tap, ...] = ()) -> Scores:
        self.prefills.append(lengths)
        return self.target.prefill(state, ids, lengths, taps)

    def score(self, state: State, last: Tensor, tree: DraftTree, taps: tuple[Tap, ...] = ()) -> Scores:
        self.scored.append(tree.num_nodes.tolist())
        self.furthest = max(self.furthest, int(tree.positions(torch.tensor(state.lengths)).max()))
        return self.target.score(state, last, tree, taps)

    def keep(self, state: State, path: Tensor, num_accepted: list[int]) -> None:
        self.target.keep(state, path, num_accepted)

    def rewind(self, state: State, lengths: list[int]) -> None:
        self.target.rewind(state, lengths)

    def select(self, state: State, rows: list[int]) -> None:
        self.target.select(state, rows)


def spelling(script: Sequence[int], prompt: int, vocab: int, **shown: Any) -> FunctionTarget:
    """A target that says a fixed text behind a prompt of ``prompt`` tokens, whatever it reads; then its last token."""
    said = torch.tensor(script)

    def logits_of(ids: Tensor) -> Tensor:
        place = (torch.arange(ids.shape[1]) + 1 - prompt).clamp(0, len(said) - 1)
        return 9.0 * torch.nn.functional.one_hot(said[place], vocab).float().expand(len(ids), -1, -1)

    folder: Path | None = shown.pop("folder", None)
    target = FunctionTarget(logits_of, vocab, **shown)
    target.folder = folder
    return target


# ---- tokenizers ----------------------------------------------------------------------------------------------------

LETTERS = "abcdefghijklmnopqrstuvwxyz ENDSTOP.!\n[]:"
LETTER_VOCAB = len(set(LETTERS)) + 2
BYTE_VOCAB = 257
CHAT = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def _save(tokenizer: Any, folder: Path, eos: str, chat_template: str | None) -> Path:
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos)
    if chat_template is not None:
        fast.chat_template = chat_template
    fast.save_pretrained(str(folder))
    return folder


def character_tokenizer(folder: Path, chat_template: str | None = None) -> Path:
    """One token a character of ``LETTERS``, in order of first appearance; then ``<eos>`` and ``<unk>``."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    letters = dict.fromkeys(LETTERS)
    vocabulary = {letter: number for number, letter in enumerate([*letters, "<eos>", "<unk>"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<eos>", "<unk>"])
    return _save(tokenizer, folder, "<eos>", chat_template)


def byte_tokenizer(folder: Path) -> Path:
    """One token a byte, so that a character beyond ASCII takes two to four; id 256 ends a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    return _save(tokenizer, folder, "<eos>", None)
