"""Turns until a stop rule, streamed: the public calls generate, stream and speculative_decode.

Knows nothing of rules or caches: it turns what users give into requests, and emissions into results.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard, Unpack, overload

import torch
from jaxtyping import Int
from torch import Tensor

from outpace.decoding.loop import Emission, FinishReason, Request, TokenLogprob, decode
from outpace.decoding.options import Options, check, control_of, processing, sampling_of, stop_strings
from outpace.decoding.stats import Speculation, Timing
from outpace.decoding.text import Message, Prompt, Text, TextStream, text_of
from outpace.decoding.trace import tracing
from outpace.drafters.drafter import Drafter
from outpace.drafters.small import Small
from outpace.errors import UsageError, WeightsError
from outpace.models.function import FunctionTarget, LogitsOf
from outpace.models.target import Target
from outpace.verification.probabilities import Sampling


@dataclass(frozen=True)
class Stats:
    """How a request was decoded: its drafting and its time."""

    speculation: Speculation
    timing: Timing


@dataclass(frozen=True)
class Result:
    """A continued text.

    Args:
        token_ids: the new ids, the end-of-text token included where there was one.
        text: their text without special tokens, cut before a stop string; empty for a target without a tokenizer.
        finish_reason: ``stop`` for an end-of-text token or a stop string, ``length`` for a limit, ``error`` in a batch
            where the target's logits were no distribution.
        prompt_tokens: how many ids the prompt had.
        stats: drafting and time.
        logprobs: one entry a token where asked for.
        error: what ended the text, for ``error``.
    """

    token_ids: list[int]
    text: str
    finish_reason: FinishReason
    prompt_tokens: int
    stats: Stats
    logprobs: list[TokenLogprob] | None = None
    error: str | None = None


@dataclass(frozen=True)
class Piece:
    """A part of a streamed text: its characters, its ids, and whether these ids were drafted.

    ``text`` may be empty while a character or a possible stop string is incomplete; the texts joined are the result's.
    ``index`` is the prompt's place in a batch. The last piece of each prompt of a batch carries its ``result``.
    """

    text: str
    ids: list[int]
    drafted: bool
    index: int = 0
    result: Result | None = None


SinglePrompt = str | list[int] | list[Message]
Batch = list[str] | list[list[int]] | list[list[Message]]


@overload
def generate(target: Target, drafter: Drafter | None, prompt: SinglePrompt, **options: Unpack[Options]) -> Result: ...


@overload
def generate(target: Target, drafter: Drafter | None, prompt: Batch, **options: Unpack[Options]) -> list[Result]: ...


def generate(
    target: Target, drafter: Drafter | None, prompt: SinglePrompt | Batch, **options: Unpack[Options]
) -> Result | list[Result]:
    """Continue a prompt, faster than the target alone and with the same law.

    At temperature 0, or with a seed, an fp32 target gives exactly the tokens of plain decoding; in bf16 they may differ
    where two tokens are nearly tied. At any other temperature the tokens follow the target's law.

    Args:
        target: who decides, from ``load_target``.
        drafter: who guesses, from ``load_drafter``; None decodes plainly.
        prompt: a string (one user turn through the chat template, where there is one), token ids, chat messages, or a
            list of any of these: a batch.
        options: see ``Options``.

    Returns:
        A ``Result``, or one a prompt for a batch.

    Raises:
        UsageError: an option is unknown or out of range, drafts are shaped and nobody drafts, or a prompt is empty or
            longer than the context.
        UnsupportedError: the target cannot verify such drafts, or a processor cannot follow them.
        WeightsError: a string is given and the target's tokenizer cannot be read.
        NumericsError: the target's logits are no distribution; in a batch that prompt's result says so instead.
    """
    *_, last = stream(target, drafter, prompt, **options)
    assert not isinstance(last, Piece)
    return last


def stream(
    target: Target, drafter: Drafter | None, prompt: SinglePrompt | Batch, **options: Unpack[Options]
) -> Iterator[Piece | Result | list[Result]]:
    """Continue a prompt and hand out every piece of text as it stands; last of all what ``generate`` returns.

    Args, Raises: as for ``generate``; bad arguments are refused by the call itself, before the first piece.
    """
    check(options, drafts=drafter is not None)
    batched = _is_batch(prompt)
    prompts: list[Prompt] = list(prompt) if batched else [prompt]  # type: ignore[arg-type, list-item]
    strings = stop_strings(options)
    words = [word for word in options.get("bad_words", ()) if isinstance(word, str)]
    needs_text = bool(strings or words) or any(not _is_ids(one) for one in prompts)
    text = _text(target.folder, needs_text)
    if text is None and needs_text:
        raise UsageError(f"the target {target.name!r} has no tokenizer; allowed: token ids, and no strings")
    requests = [_request(target, text, one, options, strings) for one in prompts]
    emissions = decode(
        target,
        drafter,
        requests,
        control=control_of(target, drafter, options, len(requests)),
        slots=options.get("batch_size"),
        rule=options.get("rule"),
        logprobs=options.get("logprobs"),
        observer=tracing(options.get("trace"), target, drafter, requests),
    )
    return _pieces(emissions, requests, text, strings, batched)


def _pieces(
    emissions: Iterator[Emission], requests: list[Request], text: Text | None, strings: Sequence[str], batched: bool
) -> Iterator[Piece | Result | list[Result]]:
    streams = [TextStream(text, strings) if text is not None else None for _ in requests]
    ids: list[list[int]] = [[] for _ in requests]
    texts = [""] * len(requests)
    listed: list[list[TokenLogprob]] = [[] for _ in requests]
    results: list[Result | None] = [None] * len(requests)
    for emission in emissions:
        index, characters = emission.index, streams[emission.index]
        ids[index] += emission.ids
        listed[index] += emission.logprobs or []
        for drafted in (True, False):  # the drafted tokens of a turn stand before the target's own
            part = [token for token, was in zip(emission.ids, emission.drafted, strict=True) if was == drafted]
            if part:
                spoken = [token for token in part if token not in requests[index].eos_ids]
                new = characters.push(spoken) if characters is not None else ""
                texts[index] += new
                yield Piece(new, part, drafted, index)
        if emission.finish is None or emission.speculation is None or emission.timing is None:
            continue
        if emission.error is not None and not batched:
            raise emission.error
        rest = characters.finish() if characters is not None else ""
        texts[index] += rest
        results[index] = Result(
            token_ids=ids[index],
            text=texts[index],
            finish_reason=emission.finish,
            prompt_tokens=len(requests[index].ids),
            stats=Stats(emission.speculation, emission.timing),
            logprobs=listed[index] if emission.logprobs is not None else None,
            error=None if emission.error is None else str(emission.error),
        )
        if batched or rest:
            yield Piece(rest, [], False, index, results[index] if batched else None)
    done = [result for result in results if result is not None]
    yield done if batched else done[0]


def _request(target: Target, text: Text | None, prompt: Prompt, options: Options, strings: Sequence[str]) -> Request:
    ids = list(prompt) if text is None else text.encode(prompt, raw=options.get("raw", False))
    eos = options.get("eos_ids", target.eos_ids)
    eos_ids = () if eos is None else eos
    return Request(
        ids=ids,  # type: ignore[arg-type]
        sampling=sampling_of(options),
        max_new_tokens=options.get("max_new_tokens", 256),
        eos_ids=eos_ids,
        seed=options.get("seed"),
        stops=[text.stop_rule(strings)] if text is not None and strings else (),
        processors=processing(
            options,
            prompt_length=len(ids),
            eos_ids=eos_ids,
            bad_words=_bad_words(text, options),
            vocab_size=target.vocab_size,
        ),
    )


def _bad_words(text: Text | None, options: Options) -> list[list[int]]:
    """The ids of every forbidden word: a string at the start of a line and behind a space."""
    words: list[list[int]] = []
    for word in options.get("bad_words", ()):
        if isinstance(word, str):
            assert text is not None
            words += text.spellings(word)
        else:
            words.append(list(word))
    return words


def _text(folder: Path | None, needed: bool) -> Text | None:
    """The tokenizer beside the weights; one that cannot be read is no matter where ids come in and ids go out."""
    if folder is None:
        return None
    try:
        return text_of(folder)
    except WeightsError:
        if needed:
            raise
        return None


def _is_ids(prompt: object) -> bool:
    return isinstance(prompt, list) and all(isinstance(part, int) for part in prompt)


def _is_batch(prompt: object) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(isinstance(part, str | list) for part in prompt)


def speculative_decode(
    target: Target | LogitsOf,
    draft: Target | Drafter | LogitsOf,
    prompt: list[int] | str | Int[Tensor, " time"],
    K: int,
    temperature: float,
    *,
    max_new_tokens: int = 64,
    seed: int | None = None,
    num_samples: int = 1,
    rule: str | None = None,
    batch_size: int = 4096,
) -> Int[Tensor, "samples new"]:
    """Sample continuations by drafting K tokens and verifying them in one target pass: the target's law, exactly.

    Args:
        target, draft: Targets, or any function from ids ``[batch, time]`` to logits ``[batch, time, vocab]``; the draft
            may also be a Drafter.
        prompt: token ids, or a string where the target has a tokenizer.
        K: tokens drafted a turn, 0 or more; 0 decodes plainly.
        temperature: 0 is greedy.
        max_new_tokens: tokens a sample.
        seed: makes the samples reproducible; without a named rule the shared-noise coupling is then in force.
        num_samples: rows of the result, ``batch_size`` of which are decoded at once.
        rule: a named acceptance rule; None takes ``block`` for sampled drafts without a seed.

    Returns:
        The new ids, the prompt excluded. A row that ended early is filled with its end-of-text id.

    Raises:
        UsageError: an argument is out of range, or the two vocabularies differ.
        NumericsError: the target's logits are no distribution.

    Source: Leviathan et al. 2211.17192, algorithm 1; Chen et al. 2302.01318, algorithm 2.
    """
    for name, value, least in (("K", K, 0), ("num_samples", num_samples, 1), ("batch_size", batch_size, 1)):
        if value < least:
            raise UsageError(f"{name} is {value}; allowed: {least} or more")
    ids = _plain_ids(target, prompt)
    verifier = _as_target(target, ids, "target")
    guesser = draft if _is_drafter(draft) else Small(_as_target(draft, ids, "draft"), verifier)
    request = [
        Request(ids, Sampling(temperature), max_new_tokens, verifier.eos_ids, seed, sample)
        for sample in range(num_samples)
    ]
    rows: list[list[int]] = [[] for _ in range(num_samples)]
    for emission in decode(
        verifier, guesser, request, num_draft_tokens=K, slots=min(batch_size, num_samples), rule=rule
    ):
        if emission.error is not None:
            raise emission.error
        rows[emission.index] += emission.ids
    width = max(map(len, rows))
    return torch.tensor([row + row[-1:] * (width - len(row)) for row in rows], dtype=torch.int64)


def _plain_ids(target: Target | LogitsOf, prompt: list[int] | str | Int[Tensor, " time"]) -> list[int]:
    if isinstance(prompt, Tensor):
        return [int(token) for token in prompt.tolist()]
    if isinstance(prompt, list):
        return prompt
    folder = getattr(target, "folder", None)
    if folder is None:
        raise UsageError("the prompt is a string and the target has no tokenizer; allowed: token ids")
    return text_of(folder).encode(prompt)


def _is_drafter(draft: object) -> TypeGuard[Drafter]:
    return hasattr(draft, "propose")


def _is_target(model: object) -> TypeGuard[Target]:
    return hasattr(model, "score")


def _as_target(model: object, ids: list[int], role: str) -> Target:
    """A Target as it is, or a function wrapped as one; a single call tells the width of its vocabulary."""
    if _is_target(model):
        return model
    if not callable(model):
        raise UsageError(f"the {role} is a {type(model).__name__}; allowed: a Target, or a function of ids")
    if not ids:
        raise UsageError("the prompt is empty; allowed: at least one token")
    logits = model(torch.tensor([ids]))
    return FunctionTarget(model, logits.shape[-1], name=role, dtype=logits.dtype)
