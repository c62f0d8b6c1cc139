"""Plain decoding with changed logits, by definition; drafts, faults and a grammar: what tests of processors share.

Knows nothing of what is tested: what a processor should do is written out here once more, token by token.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from outpace.decoding.processors import Processor, _asked, process, processors_of
from outpace.models.target import Target
from outpace.verification.coins import Keys
from outpace.verification.matching import candidates, race
from outpace.verification.probabilities import Sampling, probability_rows
from outpace.verification.tree import DraftTree
from toys import next_logits

Change = Callable[[list[int], Tensor], Tensor]
"""``(text so far, logits) -> logits``: the prompt is part of the text."""


def changed_reference(
    target: Target,
    prompt: Sequence[int],
    new: int,
    change: Change,
    *,
    eos: Sequence[int] = (),
    sampling: Sampling | None = None,
    seed: int = 0,
) -> list[int]:
    """Greedy, or with a sampling the seeded race of plain decoding; the whole text anew for every token."""
    text = list(prompt)
    while len(text) < len(prompt) + new and not (len(text) > len(prompt) and text[-1] in eos):
        logits = change(text, next_logits(target, text).clone())
        text.append(int(logits.argmax()) if sampling is None else _raced(logits, sampling, seed, len(text)))
    return text[len(prompt) :]


def _raced(logits: Tensor, sampling: Sampling, seed: int, position: int) -> int:
    probs = probability_rows(logits, sampling)[None, None]
    ids = candidates(probs)
    noise = Keys((seed,), (0,), (position,), (True,)).noise(torch.zeros(1, 1, dtype=torch.int64), ids)
    return int(race(probs, ids, noise.times, noise.tail_times, noise.tail_coins))


def penalising(prompt: int, repetition: float = 1.0, presence: float = 0.0, frequency: float = 0.0) -> Change:
    """The three penalties, behind a prompt of so many tokens."""

    def change(text: list[int], logits: Tensor) -> Tensor:
        said = text[prompt:]
        for token in set(text):
            logits[token] = logits[token] * repetition if logits[token] < 0 else logits[token] / repetition
        for token in set(said):
            logits[token] = (logits[token] - presence) - frequency * said.count(token)
        return logits

    return change


def adding(biases: dict[int, float]) -> Change:
    """A number for each of some tokens."""

    def change(text: list[int], logits: Tensor) -> Tensor:
        for token, bias in biases.items():
            logits[token] += bias
        return logits

    return change


# ---- rows, a draft, and processors of one text ---------------------------------------------------------------------

WIDTH = 12
TEXT = [3, 7, 7, 1]
#        root ─┬─ 5 ─┬─ 7
#              │     └─ 2 ── 5
#              └─ 1 ──── 1
BUSH = ([5, 1, 7, 2, 1, 5], [-1, -1, 0, 0, 1, 3])
PATHS: list[list[int]] = [[], [5], [1], [5, 7], [5, 2], [1, 1], [5, 2, 5]]


def rows_of(seed: int, rows: int = 7, batch: int = 1, vocab: int = WIDTH) -> Tensor:
    """Random logits, float64."""
    return 3 * torch.randn(batch, rows, vocab, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def processed(logits: Tensor, own: Sequence[Processor], text: list[int] = TEXT, draft: Any = BUSH) -> Tensor:
    """The rows of a single text."""
    return process(logits, DraftTree.from_lists([draft]), [text], [tuple(own)])[0]


def made(**options: Any) -> tuple[Processor, ...]:
    """Processors of a text behind two tokens of prompt that 0 and 9 end."""
    return processors_of(**({"prompt_length": 2, "eos_ids": [0, 9]} | options))


class Spy:
    """Notes what it is asked, and writes the prefix's length and its sum into the logits."""

    def __init__(self) -> None:
        self.asked: list[list[list[int]]] = []

    def __call__(self, prefix_ids: Tensor, logits: Tensor) -> Tensor:
        self.asked.append(prefix_ids.tolist())
        changed = logits.clone()
        changed[:, 0] = prefix_ids.shape[1]
        changed[:, 1] = (prefix_ids * torch.arange(1, 1 + prefix_ids.shape[1])).sum(1).to(logits.dtype)
        return changed


# ---- faults that more than one case plants, in the place of ``processors._process_entry`` ---------------------------


def root_only(logits: Tensor, text: list[int], own: Any, tokens: list[int], parents: list[int]) -> None:
    """Drafted places are judged by the target's bare logits."""
    logits[:1] = _asked(own, torch.tensor([text]), logits[:1])


def last_row_only(logits: Tensor, text: list[int], own: Any, tokens: list[int], parents: list[int]) -> None:
    """Only the token behind a draft that was wholly accepted is processed."""
    logits[-1:] = _asked(own, torch.tensor([text + tokens]), logits[-1:])


def one_text_for_all(logits: Tensor, text: list[int], own: Any, tokens: list[int], parents: list[int]) -> None:
    """Every place of a draft is asked about the text before it."""
    logits[:] = _asked(own, torch.tensor([text]).expand(len(logits), -1), logits)


# ---- a grammar ------------------------------------------------------------------------------------------------------


@dataclass
class Grammar:
    """A state machine over ids: reads the text behind the prompt, fails on what it forbids, and after its end.

    Args:
        steps: for every state the ids that it allows, and the state that each leads to; a state without any is the end.
        prompt: how many ids the prompt has.
        read: the ids read, of which ``advanced`` were read in all, those counted that were taken back.
    """

    steps: dict[str, dict[int, str]]
    prompt: int
    read: list[int] = field(default_factory=list)
    states: list[str] = field(default_factory=lambda: ["start"])
    advanced: int = 0
    rewinds: list[int] = field(default_factory=list)

    def advance(self, token: int) -> None:
        allowed = self.steps[self.states[-1]]
        if token not in allowed:
            raise RuntimeError(f"cannot advance by {token} behind {self.read}")
        self.states.append(allowed[token])
        self.read.append(token)
        self.advanced += 1

    def rewind(self, length: int) -> None:
        kept = max(0, length - self.prompt)
        self.rewinds.append(len(self.read) - kept)
        del self.read[kept:], self.states[kept + 1 :]

    def __call__(self, prefix_ids: Tensor, logits: Tensor) -> Tensor:
        new = prefix_ids[0, self.prompt :].tolist()
        if self.read != new[: len(self.read)]:
            raise RuntimeError("out of step with the text")
        for token in new[len(self.read) :]:
            self.advance(token)
        allowed = self.steps[self.states[-1]]
        if not allowed:
            raise RuntimeError("asked for more behind the end")
        return logits.masked_fill(torch.tensor([token not in allowed for token in range(logits.shape[1])]), -math.inf)


def parses(grammar: Grammar, said: Iterable[int]) -> bool:
    """Whether a whole text is one of the grammar's, from the first id to the end."""
    fresh = Grammar(grammar.steps, 0)
    try:
        for token in said:
            fresh.advance(token)
    except RuntimeError:
        return False
    return not fresh.steps[fresh.states[-1]]
