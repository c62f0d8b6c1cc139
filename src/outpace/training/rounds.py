"""The rounds of a decoder, walked over the target's own text with what a training-time test sees there.

Knows nothing of a drafter's cache. As long as a greedy chain matches, it reads the text's own tokens: how many of its
tokens match behind every place of a text, one unrolled pass tells. A round begins behind the last one's accepted tokens
and the target's own next one, so that the walk has the turns that decoding has, and the same ``tau``.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from outpace.decoding.loop import Request
from outpace.decoding.stats import Tally
from outpace.drafters.budget import RANKS
from outpace.drafters.first_head import AnyHead, FirstHead
from outpace.models.target import Target
from outpace.training.batch import Batch
from outpace.training.buckets import order
from outpace.training.continuations import continuations
from outpace.training.masks import Sample
from outpace.training.reader import Reader
from outpace.training.shards import batch_of
from outpace.training.teacher import Teacher
from outpace.training.unroll import unroll

Ranks = list[list[list[int]]]
"""Of some texts: where the text's own token stands among those drafted, behind each place and at each step, from 1 on;
step 0 behind place t speaks of token t + 2, and 0 is a token that cannot be drafted."""


@dataclass(frozen=True)
class Walked:
    """What was accepted, as ``decoding/stats.py`` defines it, pooled over all texts.

    Args:
        turns: rounds, each a forward of the target.
        emitted: tokens behind the first one of each text.
        tau: tokens a turn; None without a turn.
        acceptance_by_position: of chains, each on the condition that those before were accepted.
        acceptance_by_rank: of all positions that a turn decided, those accepted and the first one refused, the share at
            which the text's token was the head's of rank 1, 2, ... A static tree is made for these rates: its paths
            consist of first children mostly, so that what its turns ask about is what a chain's turns reach, and the
            first rate is a chain's pooled ``acceptance``. All depths are one, as in Sequoia. Empty if none was decided.
        acceptance_by_depth_and_rank: the same, a list a depth, of the positions there; the first rate of each is that
            of ``acceptance_by_position``. It ends above the first depth that no turn decided.
    """

    turns: int
    emitted: int
    tau: float | None
    acceptance_by_position: tuple[float, ...]
    acceptance_by_rank: tuple[float, ...] = field(default=(), compare=False)  # a decoder does not count ranks
    acceptance_by_depth_and_rank: tuple[tuple[float, ...], ...] = field(default=(), compare=False)


def walked(
    head: AnyHead,
    target: Target,
    teacher: Teacher,
    prompts: Sequence[Sequence[int]],
    *,
    depth: int,
    max_new_tokens: int,
    batch_size: int = 32,
    tokens_per_batch: int = 4096,
) -> Walked:
    """Walk chains over the target's greedy answers to some prompts.

    Decoding these prompts greedily with this head, in chains of ``depth``, has the same figures: exactly in fp32, near
    ties of two kernels apart.

    Args:
        head: fp32; of EAGLE-1, with the target's head to speak through.
        target: who answers.
        teacher: the target's rows, for the head's ids.
        prompts: ids of each.
        depth: tokens of a chain, 1 or more.
        max_new_tokens: of each answer, 1 or more.
        batch_size: prompts that are answered at once.
        tokens_per_batch: of a pass of the head.

    Raises:
        UsageError, UnsupportedError, NumericsError: as for ``decode``, ``Reader`` and ``unroll``.
    """
    shape = head.shape
    return walked_by(
        lambda batch: _ranks(head, batch, teacher, depth),
        target,
        prompts,
        taps=[tap for tap in shape.taps if isinstance(tap, int)],  # the state before the head is read in any case
        positions=shape.max_positions,
        depth=depth,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        tokens_per_batch=tokens_per_batch,
    )


def walked_by(
    ranks: Callable[[Batch], Ranks],
    target: Target,
    prompts: Sequence[Sequence[int]],
    *,
    taps: Sequence[int],
    positions: int,
    depth: int,
    max_new_tokens: int,
    batch_size: int = 32,
    tokens_per_batch: int = 4096,
) -> Walked:
    """Walk chains of a drafter of any kind: as long as they match, they read the text's own tokens.

    Args:
        ranks: what it would draft in some texts, ``depth`` steps far.
        taps: where it reads the target, its state before the head apart.
        positions: what it has for texts and drafts, as ``max_positions`` of a head.
        target, prompts, depth, max_new_tokens, batch_size, tokens_per_batch: as for ``walked``.

    Raises:
        UsageError, UnsupportedError, NumericsError: as for ``decode`` and ``Reader``.
    """
    requests = [Request(prompt, max_new_tokens=max_new_tokens, eos_ids=target.eos_ids) for prompt in prompts]
    texts: dict[int, list[int]] = {one.index: one.ids for one in continuations(target, requests, batch_size)}
    # A text of one new token has no turn.
    places = [place for place in sorted(texts) if len(texts[place]) > 1]
    samples = [_sample(list(prompts[place]), texts[place]) for place in places]
    tally, reader, decided = Tally(), Reader(target, taps), [Counter[int]() for _ in range(depth)]
    lengths = [len(sample) for sample in samples]
    for group in order(lengths, 0, 0, max(tokens_per_batch, *lengths)) if samples else []:
        read = reader.read([samples[place] for place in group])
        batch = batch_of([read.row(place) for place in range(len(group))])
        for place, found in zip(group, ranks(batch), strict=True):
            own, start = places[place], len(prompts[places[place]])
            rooms = min(max_new_tokens, target.max_positions - start), positions - start + 2
            for turn in _walk(tally, found[start - 1 :], texts[own], depth, rooms, target.eos_ids):
                for step, rank in enumerate(turn):
                    decided[step][rank] += 1
    spoken, by_depth = tally.speculation("walked"), tuple(_shares(each) for each in decided if each)
    by_rank = _shares(sum(decided, Counter()))
    return Walked(tally.turns, tally.emitted, spoken.tau, spoken.acceptance_by_position, by_rank, by_depth)


def _shares(ranks: Counter[int]) -> tuple[float, ...]:
    """Of decided positions, the share of each rank; none where none was decided."""
    whole = ranks.total()
    return tuple(ranks[rank] / whole for rank in range(1, 1 + RANKS)) if whole else ()


def _sample(prompt: list[int], new: list[int]) -> Sample:
    """A text whose drafts may speak of what stands behind its first new token."""
    mask = torch.zeros(len(prompt) + len(new), dtype=torch.bool)
    mask[len(prompt) + 1 :] = True
    return Sample("a prompt", torch.tensor([*prompt, *new], dtype=torch.int32), mask)


@torch.no_grad()
def _ranks(head: AnyHead, batch: Batch, teacher: Teacher, depth: int) -> Ranks:
    """Where the text's own tokens stand among the drafted ones, by place and step; see ``Unrolled``."""
    said = torch.cat((batch.ids[:, 1:], batch.ids.new_full((len(batch.ids), 1), -1)), 1)
    shown = batch.by_last if isinstance(head, FirstHead) else batch
    ranks = unroll(head, replace(shown, argmax=said), teacher, steps=depth, ranked=True).ranks
    found: Ranks = [] if ranks is None else ranks.tolist()
    return found


def _walk(
    tally: Tally, ranks: list[list[int]], new: list[int], depth: int, rooms: tuple[int, int], eos_ids: Sequence[int]
) -> list[list[int]]:
    """Count the turns of one text, whose first new token came with the prompt; the ranks at what each of them decided.

    Args:
        ranks: behind each new token, those of the tokens that follow.
        rooms: the most new tokens, and the most positions that the head has for them and its drafts.
    """
    limit, most = rooms
    decided: list[list[int]] = []
    done = 1
    while done < len(new):
        room = max(0, min(depth, limit - done - 1, most - done))  # a text may go on where the head cannot
        asked = ranks[done - 1][:room]
        matched = next((step for step, rank in enumerate(asked) if rank != 1), len(asked))
        emitted = min(matched + 1, len(new) - done)
        ended = emitted == matched and new[-1] in eos_ids  # nothing is drafted behind an end of text
        drafted = matched if ended else room
        decided.append(asked[: min(matched + 1, drafted)])
        tally.add(rule="greedy", lossless=True, drafted=drafted, depth=drafted, matched=matched, emitted=emitted)
        done += emitted
    return decided
