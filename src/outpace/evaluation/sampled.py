"""Whether sampled texts follow the target's plain law, token by token, and behind one prompt.

Knows nothing of how texts were drafted: it sees what was emitted, and reads the target plainly, one token a turn. Where
a token stands in its law, those come first which the drafter, asked anew at that prefix, favours most over the target:
a fault of drafting moves tokens towards these or away from them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outpace.decoding.loop import Request, decode
from outpace.drafters.budget import Budget
from outpace.drafters.drafter import Proposal
from outpace.evaluation.comparison import at_the_border
from outpace.evaluation.equality import own_drafts
from outpace.evaluation.laws import DraftPlaces
from outpace.evaluation.pair import Check, Pair, read
from outpace.evaluation.uniform import chi_square, chi_square_allowed, farthest, farthest_allowed, stand
from outpace.models.target import padded
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling, batch_probability_rows, probability_rows
from outpace.verification.tree import DraftTree

SAMPLINGS = (Sampling(0.5), Sampling(1.0, top_p=0.9), Sampling(1.5, top_k=40))


@dataclass(frozen=True)
class Sample:
    """Sampled texts: where every token stands in the target's plain law.

    ``strange`` counts tokens that the law cannot emit and no rounding at a filter's border explains.
    """

    places: Float[Tensor, "texts length"]
    strange: Int[Tensor, " texts"]


def draw_sample(
    pair: Pair,
    samplings: Sequence[Sampling],
    rows: int,
    length: int,
    rule: str | None,
    first: int = 0,
    observer: DraftPlaces | None = None,
) -> Sample:
    """Decode texts with the pair's own drafts, and read them plainly.

    Args:
        rows, length: of each sampling so many texts of so many tokens; an end of text does not end them.
        rule: None is the coupling, as every text has a seed.
        first: how many rows were drawn before: no two texts share coins, or they would not be independent.
    """
    prompts = pair.prompts
    numbers = count(first * len(samplings))
    requests = [
        Request(prompts[row % len(prompts)], sampling, length, (), seed=pair.seed, sample=next(numbers))
        for row in range(rows)
        for sampling in samplings
    ]
    texts: list[list[int]] = [[] for _ in requests]
    control = own_drafts(pair, pair.num_draft_tokens)
    for emission in decode(pair.target, pair.drafter, requests, control=control, rule=rule, observer=observer):
        if emission.error is not None:
            raise emission.error
        texts[emission.index] += emission.ids
    places, strange = _read_plainly(pair, requests, texts, first)
    return Sample(places, strange)


@torch.inference_mode()
def _read_plainly(
    pair: Pair, requests: list[Request], texts: list[list[int]], salt: int
) -> tuple[Float[Tensor, "texts length"], Int[Tensor, " texts"]]:
    """Feed the texts to target and drafter token by token, as plain decoding would have read them."""
    target, drafter, rows, length = pair.target, pair.drafter, len(texts), len(texts[0])
    prompts, samplings = [list(request.ids) for request in requests], [request.sampling for request in requests]
    room, lengths = max(map(len, prompts)) + length + 1, [len(prompt) for prompt in prompts]
    state, guess = target.open(rows, room), drafter.open(rows, room)
    generator = torch.Generator().manual_seed(pair.seed + salt)
    coins = torch.rand(rows, length, generator=generator, dtype=torch.float64)
    places, strange = torch.empty(rows, length, dtype=torch.float64), torch.zeros(rows, dtype=torch.int64)
    empty, none = DraftTree.empty(rows), torch.empty(rows, 0, dtype=torch.int64)
    budget = Budget([1] * rows, [1] * rows, pair.branching)
    said = torch.tensor(texts)
    scores = target.prefill(state, padded(prompts, 0), lengths, drafter.taps)
    features = scores.features
    read_so_far = None if features is None else [part[:n] for part, n in zip(features, lengths, strict=True)]
    drafter.admit(guess, prompts, read_so_far)
    gained = None if features is None else [part[:0] for part in features]
    favoured = None
    for step in range(length):
        logits = scores.logits[:, -1] if scores.logits.dtype == torch.float64 else scores.logits[:, -1].float()
        law = batch_probability_rows(logits[:, None], samplings)[:, 0]
        order = torch.zeros_like(law) if favoured is None else (favoured / law).where(law > 0, -1.0)
        places[:, step] = stand(law, order, said[:, step], coins[:, step])
        for row in places[:, step].isnan().nonzero()[:, 0].tolist():
            token = int(said[row, step])
            strange[row] += not at_the_border(logits[row].double(), token, samplings[row], pair.tolerance)
        drafter.commit(guess, said[:, step, None].tolist(), gained)
        if step + 1 < length:
            keys = Keys((pair.seed,) * rows, tuple(range(rows)), tuple(n + step + 1 for n in lengths), (False,) * rows)
            favoured = _favoured(drafter.propose(guess, budget, samplings, keys), law)
            scores = target.score(state, said[:, step], empty, drafter.taps)
            target.keep(state, none, [0] * rows)
            gained = None if scores.features is None else [part[:1] for part in scores.features]
    return places, strange


def _favoured(proposal: Proposal, like: Float[Tensor, "rows vocab"]) -> Float[Tensor, "rows vocab"]:
    """The law of the drafter's next token, one-hot for a deterministic draft, nothing where there is none."""
    tree = proposal.tree
    if not tree.tokens.shape[1]:
        return torch.zeros_like(like)
    if proposal.draft_probs is not None:
        law = proposal.draft_probs[:, 0].to(like.dtype)
    else:
        law = torch.zeros_like(like).scatter_(1, tree.tokens[:, :1].clamp(min=0), 1.0)
    return law * (tree.num_nodes > 0)[:, None]


def named(sampling: Sampling) -> str:
    """As its user would say it."""
    words = [f"temperature {sampling.temperature:g}"]
    words += [f"top-k {sampling.top_k}"] if sampling.top_k else []
    words += [f"top-p {sampling.top_p:g}"] if sampling.top_p < 1 else []
    return ", ".join(words)


def check_places(name: str, places: Float[Tensor, "texts length"], strange: int, alarm: float) -> Check:
    """Whether emitted tokens follow the plain law; one that the law cannot emit is wrong at once."""
    known = places.flatten()
    known = known[~known.isnan()]
    statistic, allowed = farthest(known) if len(known) else 0.0, farthest_allowed(len(known), alarm)
    words = f"{len(known)} tokens, distance of their places in the plain law from uniform"
    words += f"; {strange} tokens that this law cannot emit" if strange else ""
    return Check(name, "law", statistic <= allowed and not strange, statistic, allowed, alarm, words)


def check_emitted(pair: Pair, rule: str, samplings: Sequence[Sampling], *, seeded: bool) -> list[Check]:
    """Emitted tokens of every sampling, of all together and of the coupling where it is in force; drafts as claimed.

    Args:
        rule: judges the sampled texts.
        seeded: whether a seed couples, as it does where no rule was named.
    """
    size = pair.size
    observer = DraftPlaces(torch.Generator().manual_seed(pair.seed))
    rounds = [
        draw_sample(pair, samplings, size.rows, size.length, rule, size.rows * number, observer)
        for number in range(size.rounds)
    ]
    checks = []
    for index, sampling in enumerate(samplings):
        places = torch.cat([one.places[index :: len(samplings)] for one in rounds])
        strange = sum(int(one.strange[index :: len(samplings)].sum()) for one in rounds)
        checks.append(check_places(f"sampled tokens, {named(sampling)}", places, strange, pair.alarm))
    everything = torch.cat([one.places for one in rounds])
    strange = sum(int(one.strange.sum()) for one in rounds)
    checks.append(check_places("sampled tokens, all together", everything, strange, pair.alarm))
    if seeded:
        raced = draw_sample(pair, [Sampling(1.0, top_k=40)], 2 * size.rows, size.length, None)
        checks.append(check_places("seeded tokens", raced.places, int(raced.strange.sum()), pair.alarm))
    claimed = observer.check(pair.alarm)
    return checks if claimed is None else [claimed, *checks]


# ---- the first tokens behind one prompt ----------------------------------------------------------------------------

COUNTED = Sampling(0.6)
"""Warmer, and most outcomes are too rare to be counted one by one."""

HEADS, RARE = 6, 20.0
"""So many tokens of a row are outcomes of their own; those expected less often than this are counted together."""


def check_firsts(pair: Pair, rule: str) -> Check:
    """The first two tokens behind one prompt, many times over: the counts of every pair of likely tokens."""
    laws = [_first_law(pair, list(prompt)) for prompt in pair.prompts]
    least = RARE / pair.size.firsts
    best = max(range(len(laws)), key=lambda place: sum(chance >= least for chance in laws[place].values()))
    prompt, wanted = pair.prompts[best], laws[best]  # the one with most to count
    length = 2 + pair.num_draft_tokens  # room for whole drafts, of which two tokens are kept
    requests = [
        Request(prompt, COUNTED, length, (), pair.seed, sample, stops=(lambda new: len(new) >= 2,))
        for sample in range(pair.size.firsts)
    ]
    texts: list[list[int]] = [[] for _ in requests]
    control = own_drafts(pair, pair.num_draft_tokens)
    for emission in decode(pair.target, pair.drafter, requests, control=control, rule=rule, slots=96):
        if emission.error is not None:
            raise emission.error
        texts[emission.index] += emission.ids
    counts = dict.fromkeys(wanted, 0)
    for first, second in texts:
        cell = (first, second) if (first, second) in counts else (first, -1) if (first, -1) in counts else (-1, -1)
        counts[cell] += 1
    expected = [max(0.0, chance) * len(texts) for chance in wanted.values()]
    statistic, freedom = chi_square(expected, list(counts.values()), RARE)
    allowed = chi_square_allowed(freedom, pair.alarm) if freedom else 0.0
    passed = statistic <= allowed or not freedom
    words = f"{len(texts)} samples, chi-square with {freedom} degrees of freedom"
    return Check("first tokens behind one prompt", "law", passed, statistic, allowed, pair.alarm, words)


def _law(pair: Pair, texts: list[list[int]]) -> Float[Tensor, "texts vocab"]:
    """Of the token behind each text, read afresh."""
    return probability_rows(read(pair.target, texts).double(), COUNTED)


def _first_law(pair: Pair, prompt: list[int]) -> dict[tuple[int, int], float]:
    """The law of the first two tokens: likely pairs one by one, ``-1`` for all others together."""
    first = _law(pair, [prompt])[0]
    heads = first.topk(min(HEADS, len(first))).indices.tolist()
    law = {(-1, -1): float(1 - first[heads].sum())}
    rows = _law(pair, [[*prompt, head] for head in heads])
    for head, row in zip(heads, rows, strict=True):
        likely = row.topk(min(HEADS, len(row)))
        for token, chance in zip(likely.indices.tolist(), likely.values.tolist(), strict=True):
            law[head, token] = float(first[head]) * chance
        law[head, -1] = float(first[head] * (1 - likely.values.sum()))
    return law
