"""Drafted texts beside plain ones: greedy, with stops, with penalties, seeded; and where tokens tie.

Knows nothing of laws: wherever the text is determined, it has to be the plain text. A first difference is excused only
where rounding explains it, and is counted.
"""

import math

import torch

from outpace.decoding.control import Control, Fixed
from outpace.decoding.loop import Request
from outpace.decoding.processors import processors_of
from outpace.drafters.budget import CHAIN, Branching
from outpace.evaluation.comparison import NOTHING, Compared, compare, spoken
from outpace.evaluation.pair import Check, Pair
from outpace.evaluation.rehearsed import Rehearsed
from outpace.models.toy import random_table, table_target
from outpace.verification.probabilities import Sampling

DEEPEST = 8


def greedy_requests(pair: Pair) -> list[Request]:
    """One request a prompt."""
    return [Request(prompt, max_new_tokens=pair.size.new, eos_ids=pair.target.eos_ids) for prompt in pair.prompts]


def plain_texts(pair: Pair) -> tuple[tuple[int, ...], ...]:
    """The plain greedy texts, one request at a time."""
    return tuple(map(tuple, spoken(pair.target, None, greedy_requests(pair), slots=1)))


def _slots(pair: Pair) -> int:
    """Fewer than there are prompts, so that slots are refilled while other rows go on."""
    return max(1, 2 * len(pair.prompts) // 3)


def own_drafts(pair: Pair, nodes: int) -> Control:
    """Drafts of that many nodes, branching as the user asked."""
    return Fixed(pair.branching, nodes if pair.branching.is_chain else min(nodes, DEEPEST), nodes)


def rehearsed_drafts(pair: Pair) -> Control:
    """Trees where the target can score them, else chains."""
    return Fixed(Branching("top-k", 2.0), 4, 8) if pair.target.can_tree else Fixed(CHAIN, 6, 6)


def _check(name: str, found: Compared) -> Check:
    return Check(name, "equality", found.wrong == 0, float(found.wrong), 0.0, 0.0, found.words)


OWN, REHEARSED = "greedy text, own drafts", "greedy text, right and wrong drafts"


def _own_drafts(pair: Pair) -> Compared:
    """Greedy texts with the drafter's own drafts, of three sizes."""
    requests, found = greedy_requests(pair), NOTHING
    for nodes in sorted({1, pair.num_draft_tokens, 2 * pair.num_draft_tokens}):
        drafted = spoken(pair.target, pair.drafter, requests, own_drafts(pair, nodes), _slots(pair))
        found += compare(pair, requests, pair.plain, drafted)
    return found


def _rehearsed(pair: Pair) -> Compared:
    """Greedy texts with drafts that are the plain texts, right and wrong: the target as its own drafter."""
    requests = greedy_requests(pair)
    guesser = Rehearsed(pair.plain, pair.target.vocab_size)
    drafted = spoken(pair.target, guesser, requests, rehearsed_drafts(pair), _slots(pair))
    return compare(pair, requests, pair.plain, drafted)


def check_rehearsed(pair: Pair) -> Check:
    """Drafts that are accepted and refused at every depth change no greedy text."""
    return _check(REHEARSED, _rehearsed(pair))


def check_greedy(pair: Pair) -> list[Check]:
    """Nor do the drafter's own; and below fp32 near-ties flip no more often than with the plain text as the draft.

    Where both are equally frequent, the count of the one is binomial, given the sum.
    """
    own, control = _own_drafts(pair), _rehearsed(pair)
    checks = [_check(OWN, own), _check(REHEARSED, control)]
    if pair.target.dtype in (torch.float32, torch.float64):
        return checks
    total, share = own.near_ties + control.near_ties, own.tokens / (own.tokens + control.tokens)
    most, beyond = total, 0.0  # the most that the control explains, and how probably there are more
    while (
        most > 0 and beyond + (one := math.comb(total, most) * share**most * (1 - share) ** (total - most)) < pair.alarm
    ):
        most, beyond = most - 1, beyond + one
    rates = [f"{1000 * one.near_ties / one.tokens:.1f}" for one in (own, control)]
    words = f"{rates[0]} in 1,000 tokens, and {rates[1]} with the plain text as the draft"
    return [
        *checks,
        Check("near-ties", "equality", own.near_ties <= most, float(own.near_ties), float(most), beyond, words),
    ]


def check_stops(pair: Pair) -> Check:
    """An end-of-text token within a draft ends the text there."""
    requests, texts, plain = [], [], []
    for prompt, text in zip(pair.prompts, pair.plain, strict=True):
        firsts = [place for place, token in enumerate(text[: max(1, 3 * len(text) // 4)]) if token not in text[:place]]
        requests.append(Request(prompt, max_new_tokens=pair.size.new, eos_ids=(text[firsts[-1]],)))
        texts.append(text)
        plain.append(text[: firsts[-1] + 1])
    guesser = Rehearsed(texts, pair.target.vocab_size, rights=(9, 9, 9, 4))
    drafted = spoken(pair.target, guesser, requests, Fixed(CHAIN, 6, 6), _slots(pair))
    return _check("end of text within a draft", compare(pair, requests, plain, drafted))


def check_processors(pair: Pair) -> Check:
    """Penalties see the text before each drafted token, and change the drafted text as they do the plain one."""
    requests = [
        Request(
            prompt,
            max_new_tokens=pair.size.new,
            eos_ids=pair.target.eos_ids,
            processors=processors_of(
                prompt_length=len(prompt),
                eos_ids=pair.target.eos_ids,
                repetition_penalty=1.3,
                frequency_penalty=0.5,
                min_new_tokens=pair.size.new // 2,
            ),
        )
        for prompt in pair.prompts
    ]
    plain = spoken(pair.target, None, requests)
    guesser = Rehearsed(plain, pair.target.vocab_size)
    drafted = spoken(pair.target, guesser, requests, rehearsed_drafts(pair), _slots(pair))
    return _check("greedy text with penalties", compare(pair, requests, plain, drafted))


SEEDED = (Sampling(1.0, top_k=40), Sampling(0.7, top_k=50, top_p=0.9))
"""No more tokens than have clocks of their own: among others one coin chooses, and rounding moves all its limits."""


def check_seeded(pair: Pair) -> Check:
    """A seed gives the plain seeded text, whatever drafts and whatever else is in the batch."""
    requests = [
        Request(prompt, sampling, pair.size.new, pair.target.eos_ids, seed=pair.seed + index)
        for index, prompt in enumerate(pair.prompts)
        for sampling in SEEDED
    ]
    plain = spoken(pair.target, None, requests)
    found = NOTHING
    for guesser, control in (
        (pair.drafter, own_drafts(pair, pair.num_draft_tokens)),
        (Rehearsed(plain, pair.target.vocab_size), rehearsed_drafts(pair)),
    ):
        found += compare(pair, requests, plain, spoken(pair.target, guesser, requests, control, 2 * _slots(pair)))
    return _check("seeded text", found)


def check_ties(pair: Pair) -> Check:
    """Of equal logits the lowest id wins, drafts or none: on a table made of ties, where nothing is excused."""
    vocab, length, prompts = 8, 24, range(8)
    table = random_table(vocab, seed=pair.seed)
    best = table.argmax(1)
    table[torch.arange(vocab), (best + 3) % vocab] = table.amax(1)
    wanted = []
    for prompt in prompts:
        text = [prompt]
        while len(text) <= length:
            text.append(int((table[text[-1]] == table[text[-1]].max()).nonzero()[0]))
        wanted.append(text[1:])
    requests = [Request([prompt], max_new_tokens=length) for prompt in prompts]
    drafted = spoken(table_target(table), Rehearsed(wanted, vocab), requests, Fixed(CHAIN, 4, 4))
    wrong = sum(text != other for text, other in zip(wanted, drafted, strict=True))
    words = f"{len(wanted)} texts of {length} tokens on a table of ties"
    return Check("equal logits", "equality", wrong == 0, float(wrong), 0.0, 0.0, words)
