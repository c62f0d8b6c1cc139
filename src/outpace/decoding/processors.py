"""What changes the target's logits before a law is read off them: for every place of a draft, by its own path.

Knows nothing of drafters, which guess by their own law: a draft that a processor forbids is refused like any other, so
that the text stays exact. A processor is asked once for every depth of a draft, each path with its own prefix: the
prompt, what was emitted, and the path.
"""

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outpace.decoding.penalties import (
    BadWords,
    FrequencyPenalty,
    LogitBias,
    MinNewTokens,
    PresencePenalty,
    RepetitionPenalty,
)
from outpace.drafters.budget import Branching
from outpace.errors import NumericsError, UsageError
from outpace.verification.probabilities import unusable_rows
from outpace.verification.tree import DraftTree


@runtime_checkable
class Processor(Protocol):
    """Logits in, logits out, for several texts of one length: what transformers calls a LogitsProcessor.

    One that offers ``rewind(length)`` has a state and is for chains only. It is copied for every request, and before it
    is asked about a text that does not go on from the one it saw last, it is told how many ids it may remember. Every
    text but the first then goes on from what it remembers by exactly one id.
    """

    def __call__(
        self, prefix_ids: Int[Tensor, "paths length"], logits: Float[Tensor, "paths vocab"]
    ) -> Float[Tensor, "paths vocab"]:
        """The logits of what follows each prefix; -inf forbids a token."""
        ...


STATES_OF_THEIR_OWN = frozenset(
    {"SynthIDTextWatermarkLogitsProcessor", "UnbatchedClassifierFreeGuidanceLogitsProcessor"}
)
"""Processors of transformers that count their calls or keep a cache, and cannot take back what was not accepted."""


class UserProcessor:
    """A processor that the user brought: kept in step with the text, and never asked about what follows its end.

    Args:
        processor: a function of prefix ids and logits; one with a state is copied.
        prompt_length, eos_ids: where a text begins, and what ends it.

    Raises:
        UsageError: the processor cannot be called with two arguments, or has a state that cannot be kept in step.
    """

    def __init__(self, processor: object, prompt_length: int, eos_ids: Sequence[int]) -> None:
        self.name = _name(processor)
        self.processor = _callable_with_two(processor, self.name)
        self.prompt_length = prompt_length
        self.eos_ids = torch.tensor(eos_ids, dtype=torch.int64)
        self.seen = torch.empty(0, dtype=torch.int64)
        self.rewind = _rewind_of(self.processor)
        if self.rewind is not None:
            try:
                self.processor = copy.deepcopy(self.processor)
            except (TypeError, ValueError, RuntimeError, copy.Error) as error:
                raise UsageError(
                    f"the processor {self.name} has a state and cannot be copied: {error}; "
                    "allowed: one that copy.deepcopy copies, as every request needs its own"
                ) from error
            self.rewind = _rewind_of(self.processor)

    def __call__(
        self, prefix_ids: Int[Tensor, "paths length"], logits: Float[Tensor, "paths vocab"]
    ) -> Float[Tensor, "paths vocab"]:
        """What the processor makes of the logits of texts that go on; the others' are left as they are."""
        ended = torch.isin(prefix_ids[:, self.prompt_length :], self.eos_ids.to(prefix_ids.device)).any(1)
        if not bool(ended.any()):
            return self._ask(prefix_ids, logits)
        left, going = logits.clone(), ~ended
        if bool(going.any()):
            left[going] = self._ask(prefix_ids[going], logits[going])
        return left

    def _ask(
        self, prefix_ids: Int[Tensor, "paths length"], logits: Float[Tensor, "paths vocab"]
    ) -> Float[Tensor, "paths vocab"]:
        if self.rewind is not None:
            if len(prefix_ids) != 1:
                raise UsageError(
                    f"the processor {self.name} has a state and was asked about {len(prefix_ids)} paths at once; "
                    "allowed: a chain"
                )
            prefix, seen = prefix_ids[0], self.seen.to(prefix_ids.device)
            shared = min(len(seen), len(prefix) - 1)  # at least the last id is always news
            agreed = int((seen[:shared] == prefix[:shared]).cumprod(0).sum())
            if agreed < len(seen):
                self.rewind(agreed)
            self.seen = prefix
        return _of_shape(self.processor(prefix_ids, logits), logits, self, prefix_ids.shape[1])


def processors_of(
    *,
    prompt_length: int,
    eos_ids: Sequence[int],
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: Mapping[int, float] | None = None,
    bad_words: Sequence[Sequence[int]] = (),
    min_new_tokens: int = 0,
    processors: Sequence[object] = (),
    vocab_size: int | None = None,
) -> tuple[Processor, ...]:
    """The processors of one request, in transformers' order: bias, penalties, bans, minimum length, the user's own.

    Args:
        prompt_length, eos_ids: where the text begins, and what ends it.
        repetition_penalty: above 0; 1 is off, more makes tokens of prompt and text less probable.
        presence_penalty, frequency_penalty: what a token of the text loses once, and for every time; 0 is off, less
            than 0 rewards. The prompt does not count, as with OpenAI.
        logit_bias: added to the logits of these ids; finite, or -inf to forbid.
        bad_words: sequences of ids that may not be completed.
        min_new_tokens: no end of text before; 0 or more.
        processors: the user's own, see ``Processor``.
        vocab_size: where given, ids beyond it are refused.

    Returns:
        What is in force, and nothing for what is off.

    Raises:
        UsageError: a value is out of range, a bad word is empty or an end-of-text id, or a processor of the user's is
            no function of two arguments or keeps a state without ``rewind``.
    """
    _check_penalties(repetition_penalty, presence_penalty, frequency_penalty, min_new_tokens)
    biases = tuple((token, float(bias)) for token, bias in (logit_bias or {}).items())
    for token, bias in biases:
        _check_id("logit_bias", token, vocab_size)
        if math.isnan(bias) or bias == math.inf:
            raise UsageError(f"logit_bias of token {token} is {bias}; allowed: a finite number, or -inf to forbid it")
    for word in bad_words:
        _check_word(word, eos_ids, vocab_size)
    own: list[Processor] = []
    if biases:
        own.append(LogitBias(biases))
    if repetition_penalty != 1:
        own.append(RepetitionPenalty(repetition_penalty))
    if presence_penalty:
        own.append(PresencePenalty(presence_penalty, prompt_length))
    if frequency_penalty:
        own.append(FrequencyPenalty(frequency_penalty, prompt_length))
    if bad_words:
        own.append(BadWords(tuple(tuple(word) for word in bad_words)))
    if min_new_tokens and eos_ids:
        own.append(MinNewTokens(min_new_tokens, prompt_length, tuple(eos_ids)))
    return (*own, *(UserProcessor(processor, prompt_length, eos_ids) for processor in processors))


def is_stateful(processor: Processor) -> bool:
    """Whether it has a state that follows the text: it offers ``rewind``."""
    return _rewind_of(processor) is not None


def check_branching(processors: Sequence[Processor], branching: Branching) -> None:
    """Refuse a processor with a state where drafts branch: it follows one text, not several at once.

    Raises:
        UsageError: there is one, and the draft is no chain.
    """
    for processor in processors:
        if is_stateful(processor) and not branching.is_chain:
            raise UsageError(
                f"the processor {_name(processor)} has a state (it offers rewind) and tree is {branching}; "
                "allowed: chain",
                hint="leave --tree out, or write the processor as a function of the whole prefix, without rewind",
            )


def process(
    logits: Float[Tensor, "batch rows vocab"],
    tree: DraftTree,
    texts: list[list[int]],
    processors: list[tuple[Processor, ...]],
) -> Float[Tensor, "batch rows vocab"]:
    """The logits as the processors leave them: each row of a batch entry asked about its own text.

    Nodes below a token that the processed logits forbid are not asked about: no text goes there.

    Args:
        logits: the target's, every real row a distribution; row 0 follows the text, row 1 + i the path to node i.
        tree: the draft.
        texts: prompt and emitted tokens of each batch entry, the last one included.
        processors: those of each entry, in the order in which they apply; none leaves an entry as it is.

    Returns:
        ``logits`` itself where there is no processor at all, else a new tensor; filler rows are copied as they are.

    Raises:
        NumericsError: a processor returned another shape, or left a row that is no distribution; its class and the
            position are named.
    """
    if not any(processors):
        return logits
    processed = logits.clone()
    for row, (text, own, (tokens, parents)) in enumerate(zip(texts, processors, tree.to_lists(), strict=True)):
        if own:
            _process_entry(processed[row], text, own, tokens, parents)
    return processed


def _process_entry(
    logits: Float[Tensor, "rows vocab"],
    text: list[int],
    own: tuple[Processor, ...],
    tokens: list[int],
    parents: list[int],
) -> None:
    """One batch entry, in place, one depth after the other."""
    beginning = torch.tensor(text, dtype=torch.int64, device=logits.device)
    paths: dict[int, list[int]] = {-1: []}  # of the nodes at this depth
    while paths:
        rows = [node + 1 for node in paths]
        behind = torch.tensor(list(paths.values()), dtype=torch.int64, device=logits.device).view(len(rows), -1)
        prefix_ids = torch.cat((beginning.expand(len(rows), -1), behind), 1)
        logits[rows] = _asked(own, prefix_ids, logits[rows])
        children = [node for node, parent in enumerate(parents) if parent in paths]
        allowed = logits[[parents[node] + 1 for node in children], [tokens[node] for node in children]] > -math.inf
        paths = {
            node: [*paths[parents[node]], tokens[node]]
            for node, may in zip(children, allowed.tolist(), strict=True)
            if may
        }


def _asked(
    own: tuple[Processor, ...],
    prefix_ids: Int[Tensor, "paths length"],
    logits: Float[Tensor, "paths vocab"],
) -> Float[Tensor, "paths vocab"]:
    """What the processors, one after the other, make of logits."""
    position = prefix_ids.shape[1]
    for processor in own:
        logits = _of_shape(processor(prefix_ids, logits), logits, processor, position)
        if bool(unusable_rows(logits).any()):
            largest = logits.amax(-1)
            worst = float(largest[~largest.isfinite()][0])
            raise NumericsError(
                f"the processor {_name(processor)} left no distribution for position {position}: "
                f"the largest logit is {worst}",
                hint="-inf forbids a token; one must stay allowed" if worst == -math.inf else None,
            )
    return logits


def _of_shape(result: object, given: Tensor, processor: Processor, position: int) -> Tensor:
    """The result of a processor, if it can stand in the place of what it was given."""
    if isinstance(result, Tensor) and result.shape == given.shape and result.is_floating_point():
        return result
    kind = f"{result.dtype} {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
    raise NumericsError(
        f"the processor {_name(processor)} returned {kind} for position {position}; "
        f"allowed: logits of the shape {tuple(given.shape)} that it was given"
    )


def _name(processor: object) -> str:
    """What to call a processor: its class, or a function's own name."""
    if isinstance(processor, UserProcessor):
        return processor.name
    return getattr(processor, "__name__", None) or type(processor).__name__


def _rewind_of(processor: object) -> Callable[[int], object] | None:
    rewind = getattr(processor, "rewind", None)
    return rewind if callable(rewind) else None


def _callable_with_two(processor: object, name: str) -> Processor:
    """The processor, if it can be called with prefix ids and logits, and has no state that cannot be kept in step."""
    if isinstance(processor, type) or not isinstance(processor, Processor):
        what = f"the class {name}" if isinstance(processor, type) else f"{processor!r}"
        raise UsageError(f"a processor is {what}; allowed: a function of (prefix_ids, logits), or an object of such")
    if name in STATES_OF_THEIR_OWN:
        raise UsageError(
            f"the processor {name} keeps a state that cannot be rewound; allowed: one that reads the prefix alone",
            hint="one with a state has to offer rewind(length)",
        )
    try:
        inspect.signature(processor).bind(None, None)
    except TypeError as error:
        raise UsageError(
            f"the processor {name} does not take two arguments: {error}; allowed: a function of (prefix_ids, logits)"
        ) from error
    except ValueError:  # a built-in that does not say what it takes
        pass
    return processor


def _check_penalties(repetition: float, presence: float, frequency: float, least: int) -> None:
    if not (math.isfinite(repetition) and repetition > 0):
        raise UsageError(f"repetition_penalty is {repetition}; allowed: any number above 0, 1 is off")
    for name, penalty in (("presence_penalty", presence), ("frequency_penalty", frequency)):
        if not math.isfinite(penalty):
            raise UsageError(f"{name} is {penalty}; allowed: any finite number, 0 is off")
    if least < 0:
        raise UsageError(f"min_new_tokens is {least}; allowed: 0 or more")


def _check_id(option: str, token: int, vocab_size: int | None) -> None:
    if token < 0 or (vocab_size is not None and token >= vocab_size):
        most = "more" if vocab_size is None else str(vocab_size - 1)
        raise UsageError(f"{option} holds the id {token}; allowed: 0 {'or' if vocab_size is None else 'to'} {most}")


def _check_word(word: Sequence[int], eos_ids: Sequence[int], vocab_size: int | None) -> None:
    if not word:
        raise UsageError("a bad word is empty; allowed: one id or more")
    for token in word:
        _check_id("bad_words", token, vocab_size)
    if len(word) == 1 and word[0] in eos_ids:
        raise UsageError(
            f"the bad word [{word[0]}] is an end-of-text id; allowed: any other",
            hint="min_new_tokens forbids the end for a while, eos_ids None for good",
        )
