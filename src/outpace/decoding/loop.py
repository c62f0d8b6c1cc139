"""Turns until a stop rule, for many requests at once: slots are filled, emptied and refilled.

Knows nothing of text. A request is ids, a sampling and stop rules over ids; what comes out are emissions, in order.
Plain decoding is the same loop without a drafter.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from outpace.decoding.control import Control, Fixed
from outpace.decoding.judging import check_rule
from outpace.decoding.processors import Processor, check_branching
from outpace.decoding.stats import Speculation, Tally, Timing, timing
from outpace.decoding.turn import Batch, Turn, first_turn, take_turn
from outpace.drafters.budget import CHAIN, Branching
from outpace.drafters.drafter import Drafter, grades_of, rates_of
from outpace.errors import NumericsError, UnsupportedError, UsageError
from outpace.models.target import Target
from outpace.verification.probabilities import Sampling
from outpace.verification.rules import CHAIN_ONLY

StopRule = Callable[[Sequence[int]], bool]
"""Whether the new ids so far, the prompt excluded, end here. Asked after every single token."""

FinishReason = Literal["stop", "length", "error"]


@dataclass(frozen=True)
class Request:
    """One text to be continued.

    Args:
        ids: the prompt, at least one token.
        sampling: the law of every token.
        max_new_tokens: at most this many; None goes on to the end of the context.
        eos_ids: any of these ends the text, and stands as its last id.
        seed: None draws a fresh one. With a seed and no named rule, the shared-noise coupling is in force.
        sample: which of several samples of the same prompt and seed.
        stops: further stop rules.
        processors: change the target's logits before the law is read off them, in this order.
    """

    ids: Sequence[int]
    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int | None = None
    eos_ids: Sequence[int] = ()
    seed: int | None = None
    sample: int = 0
    stops: Sequence[StopRule] = ()
    processors: tuple[Processor, ...] = ()


@dataclass(frozen=True)
class TokenLogprob:
    """The log-probability of an emitted token under the target's unprocessed logits, in nats, fp32.

    ``top`` are the most probable tokens there, best first, the emitted one always among them.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Emission:
    """Tokens that one request has just gained.

    Args:
        index: which request, in the order given.
        ids: the new tokens, cut at the stop.
        drafted: whether each was drafted (and accepted) rather than the target's own.
        logprobs: one entry a token, where asked for.
        finish: why the request ended, on its last emission; ``error`` where its logits were no distribution.
        error: what was wrong then.
        speculation, timing: the figures of the whole request, on its last emission.
    """

    index: int
    ids: list[int]
    drafted: list[bool]
    logprobs: list[TokenLogprob] | None = None
    finish: FinishReason | None = None
    speculation: Speculation | None = None
    timing: Timing | None = None
    error: NumericsError | None = None


@dataclass
class _Row:
    """A request in flight."""

    index: int
    request: Request
    limit: int
    eos: frozenset[int]
    new: list[int] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    prefill_s: float = 0.0
    begun: float = 0.0
    finish: FinishReason | None = None
    error: NumericsError | None = None

    def take(self, tokens: list[int]) -> int:
        """Add tokens one by one until a rule ends the text; how many stand."""
        for count, token in enumerate(tokens, 1):
            self.new.append(token)
            if token in self.eos or any(stop(self.new) for stop in self.request.stops):
                self.finish = "stop"
            elif len(self.new) >= self.limit:
                self.finish = "length"
            if self.finish is not None:
                return count
        return len(tokens)


Observer = Callable[[Turn, list[int]], None]
"""Told of every turn and of the request index of each of its rows; what traces are made of."""


def decode(
    target: Target,
    drafter: Drafter | None,
    requests: Sequence[Request],
    *,
    num_draft_tokens: int = 4,
    control: Control | None = None,
    slots: int | None = None,
    rule: str | None = None,
    logprobs: int | None = None,
    observer: Observer | None = None,
) -> Iterator[Emission]:
    """Continue every request; emissions of one request come in order, its last one carries the finish.

    Args:
        target, drafter: who verifies and who guesses; None decodes plainly.
        requests: what to continue.
        num_draft_tokens: the length of every chain, 0 or more; less where the request or the context has less room.
        control: chooses what each turn drafts, in place of ``num_draft_tokens``; it belongs to this call alone.
        slots: how many requests are decoded at once; None takes all of them.
        rule: a named acceptance rule, or None for the best one that fits.
        logprobs: how many alternatives to list beside each token's log-probability; None lists nothing.
        observer: called after every turn.

    Raises:
        UsageError: a request is empty or does not fit the context, or an option is out of range; before any work.
        UnsupportedError: the target cannot verify such drafts, or a processor cannot follow them; before any work.

    A request whose logits are no distribution ends with an error and leaves the others alone.
    """
    if num_draft_tokens < 0:
        raise UsageError(f"num_draft_tokens is {num_draft_tokens}; allowed: 0 (plain decoding) or more")
    control = control or Fixed(CHAIN, num_draft_tokens, num_draft_tokens)
    _check(target, requests, slots, rule)
    if drafter is not None and control.max_depth:
        _check_drafts(target, drafter, control.branching, requests, rule)
    else:
        drafter = None
    return _decode(target, drafter, requests, control, slots, rule, logprobs, observer)


def _decode(
    target: Target,
    drafter: Drafter | None,
    requests: Sequence[Request],
    control: Control,
    slots: int | None,
    rule: str | None,
    logprobs: int | None,
    observer: Observer | None,
) -> Iterator[Emission]:
    waiting = deque(
        _Row(index, request, _limit(target, request), frozenset(request.eos_ids))
        for index, request in enumerate(requests)
    )
    for row in [row for row in waiting if row.limit == 0]:
        waiting.remove(row)
        yield _last(row, [], [], None if logprobs is None else [], drafter, rule)
    if not waiting:
        return
    slots = min(slots or len(waiting), len(waiting))
    in_flight = control.max_nodes if drafter is not None else 0
    if control.branching.is_chain:
        in_flight = min(in_flight, max(row.limit for row in waiting))  # a longer one is never drafted
    positions = max(len(row.request.ids) + row.limit for row in waiting) + in_flight
    batch = Batch(
        target=target,
        state=target.open(slots, positions),
        drafter=drafter,
        draft_state=drafter.open(slots, positions) if drafter is not None else None,
        rule=rule,
    )
    rows: list[_Row] = []
    while waiting or rows:
        fresh = [waiting.popleft() for _ in range(min(len(waiting), slots - len(rows)))]
        if fresh:
            control.admit(len(fresh))  # before the clock runs: it may have to measure what turns cost
            turn = _admit(batch, fresh)
            rows += fresh
            yield from _emit(turn, fresh, drafter, rule, logprobs, observer)
        else:
            rooms, grades = [_room(row) for row in rows], grades_of(drafter, batch.draft_state)
            turn = take_turn(batch, control.budget(rooms, batch.state.lengths, grades))
            control.learn(turn)
            yield from _emit(turn, rows, drafter, rule, logprobs, observer)
        if any(row.finish for row in rows):
            going = [place for place, row in enumerate(rows) if row.finish is None]
            batch.select(going)
            control.select(going)
            rows = [rows[place] for place in going]


def _admit(batch: Batch, fresh: list[_Row]) -> Turn:
    """Prefill new requests together and note when each began."""
    for row in fresh:
        batch.processors.append(row.request.processors)
        batch.samplings.append(row.request.sampling)
        batch.coupled.append(row.request.seed is not None and batch.rule is None and not row.request.sampling.greedy)
        batch.seeds.append(secrets.randbits(63) if row.request.seed is None else row.request.seed)
        batch.samples.append(row.request.sample)
    turn = first_turn(batch, [list(row.request.ids) for row in fresh])
    for row in fresh:
        row.prefill_s, row.begun = turn.total_s, time.perf_counter()
    return turn


def _emit(
    turn: Turn,
    rows: list[_Row],
    drafter: Drafter | None,
    rule: str | None,
    logprobs: int | None,
    observer: Observer | None,
) -> Iterator[Emission]:
    """Cut what each row emitted at its stop, count it, and pass it on."""
    if observer is not None:
        observer(turn, [row.index for row in rows])
    deepest = turn.proposal.tree.heights()
    counts = turn.proposal.tree.num_nodes.tolist()
    for place, row in enumerate(rows):
        if turn.errors[place] is not None:
            row.finish, row.error = "error", turn.errors[place]
            yield _last(row, [], [], None if logprobs is None else [], drafter, rule)
            continue
        first = not row.new
        tokens = turn.emitted[place]
        kept = row.take(tokens)
        path = turn.paths[place]
        drafted = [step < len(path) for step in range(kept)]
        listed = None
        if logprobs is not None:
            chosen = turn.scores.logits[place, [0, *(node + 1 for node in path)]][:kept]
            listed = _logprobs(chosen, tokens[:kept], logprobs)
        if not first:
            row.tally.add(
                rule=turn.rules[place],
                lossless=turn.lossless[place],
                drafted=counts[place],
                depth=deepest[place],
                matched=len(path),
                emitted=kept,
            )
        if row.finish is None:
            yield Emission(row.index, tokens[:kept], drafted, listed)
        else:
            yield _last(row, tokens[:kept], drafted, listed, drafter, turn.rules[place])


def _last(
    row: _Row,
    ids: list[int],
    drafted: list[bool],
    listed: list[TokenLogprob] | None,
    drafter: Drafter | None,
    rule: str | None,
) -> Emission:
    spent = time.perf_counter() - row.begun if row.begun else 0.0
    method = "plain" if drafter is None else drafter.name
    if not row.tally.rules and rule is not None:
        row.tally.rules.add(rule)
    return Emission(
        row.index,
        ids,
        drafted,
        listed,
        row.finish or "length",
        row.tally.speculation(method),
        timing(row.prefill_s, spent, len(row.new)),
        row.error,
    )


def _logprobs(logits: Tensor, tokens: list[int], alternatives: int) -> list[TokenLogprob]:
    rows = torch.log_softmax(logits.float(), -1)
    own = rows.gather(1, torch.tensor(tokens, device=rows.device)[:, None])[:, 0].tolist()
    best = rows.topk(min(alternatives, rows.shape[1]), -1)
    listed = []
    for token, value, ids, values in zip(tokens, own, best.indices.tolist(), best.values.tolist(), strict=True):
        top = tuple(zip(ids, values, strict=True))
        if token not in ids:
            top = (*top[:-1], (token, value)) if top else ()
        listed.append(TokenLogprob(token, value, top))
    return listed


def _limit(target: Target, request: Request) -> int:
    """How many new tokens fit: what was asked for, within the context."""
    room = target.max_positions - len(request.ids)
    return room if request.max_new_tokens is None else min(request.max_new_tokens, room)


def _room(row: _Row) -> int:
    """Drafts that can still be used: the turn emits one token of its own. The limit lies within the context already."""
    return max(0, row.limit - len(row.new) - 1)


def _check_drafts(
    target: Target, drafter: Drafter, branching: Branching, requests: Sequence[Request], rule: str | None
) -> None:
    """Refuse drafts that the drafter cannot make, the target cannot verify or a rule or processor cannot judge."""
    if not target.can_rewind:
        raise UnsupportedError(
            f"the target {target.name!r} cannot rewind, so it cannot verify the drafts of {drafter.name!r}; "
            "allowed: plain decoding",
            hint="leave the drafter out",
        )
    if branching.kind not in drafter.branchings:
        raise UsageError(
            f"tree is {branching}, and the drafter {drafter.name!r} cannot draft that; "
            f"allowed: {', '.join(sorted(drafter.branchings))}"
        )
    if branching.kind == "static":
        rates_of(branching, drafter)  # refuses where there are none
    if branching.is_chain:
        return
    if not target.can_tree:
        raise UnsupportedError(
            f"tree is {branching}, and the target {target.name!r} cannot score a tree in one pass; allowed: chain"
        )
    if rule in CHAIN_ONLY:
        raise UsageError(
            f"rule is {rule!r} and tree is {branching}; allowed: a chain, or another rule",
            hint="greedy, match, tree-rejection and traversal judge trees",
        )
    for request in requests:
        check_branching(request.processors, branching)


def _check(target: Target, requests: Sequence[Request], slots: int | None, rule: str | None) -> None:
    if slots is not None and slots < 1:
        raise UsageError(f"slots is {slots}; allowed: 1 or more requests at a time")
    check_rule(rule, [request.sampling for request in requests])
    for index, request in enumerate(requests):
        if not request.ids:
            raise UsageError(f"prompt {index} is empty; allowed: at least one token")
        wrong = [token for token in request.ids if not 0 <= token < target.vocab_size]
        if wrong:
            raise UsageError(f"prompt {index} holds the id {wrong[0]}; allowed: 0 to {target.vocab_size - 1}")
        if request.max_new_tokens is not None and request.max_new_tokens < 0:
            raise UsageError(f"max_new_tokens is {request.max_new_tokens}; allowed: 0 or more, or None for no limit")
        if len(request.ids) > target.max_positions or (
            len(request.ids) == target.max_positions and request.max_new_tokens != 0
        ):
            raise UsageError(
                f"prompt {index} has {len(request.ids)} tokens; the context of {target.name!r} holds "
                f"{target.max_positions}, new ones included",
                hint="shorten the prompt",
            )
