"""What is accepted: by closed forms at every place of a text, and by counts of real decoding.

Knows nothing of clocks: these figures are the same on any machine.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from jaxtyping import Float
from pairs import LOOKUP, Setting, Way
from rich.console import Console
from rich.progress import track
from torch import Tensor

from outpace.decoding.generate import Result, generate
from outpace.decoding.options import Options
from outpace.drafters.budget import Budget
from outpace.drafters.drafter import Drafter
from outpace.evaluation.metrics import Estimate, pooled, ratio_of_sums
from outpace.models.target import Target, padded
from outpace.verification.coins import Keys
from outpace.verification.expectation import acceptance, acceptance_of_set
from outpace.verification.probabilities import Sampling
from outpace.verification.tree import DraftTree

TEMPERATURES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Of the closed forms; texts are said at those in ``SAID``."""
SAID = (0.5, 1.0, 1.5)
FIXED = 1.0
"""The temperature of the text on which all laws are compared."""
NOISE = 1.0
"""Spread of the noise on the target's own logits: a draft with a true law, and nothing else wrong with it."""
SEED = 5


def said(target: Target, prompt: list[int], temperature: float, tokens: int) -> list[int]:
    """A plain text of the target."""
    result: Result = generate(
        target, None, prompt, temperature=temperature, seed=SEED, max_new_tokens=tokens, eos_ids=None
    )
    return result.token_ids


def everything(scored: Any, count: int) -> list[Tensor] | None:
    return None if scored.features is None else [scored.features[0, :count]]


def places(
    target: Target, drafter: Drafter, prompt: list[int], text: Sequence[int]
) -> list[tuple[Float[Tensor, " vocab"], Float[Tensor, " vocab"] | int | None]]:
    """At every place of a text but the first: the target's raw logits, and what the drafter says of the same place.

    A model drafter gives its raw logits, lookup the token that it found, or None.
    """
    state, guesses = (one.open(1, len(prompt) + len(text) + 2) for one in (target, drafter))
    scores = target.prefill(state, padded([prompt], 0), [len(prompt)], drafter.taps)
    read = everything(scores, len(prompt))
    drafter.admit(guesses, [prompt], read)
    drafter.commit(guesses, [[text[0]]], None if read is None else [part[:0] for part in read])
    found: list[tuple[Tensor, Tensor | int | None]] = []
    for place in range(1, len(text)):
        keys = Keys((SEED,), (0,), (len(prompt) + place,), (False,))
        proposal = drafter.propose(guesses, Budget.chain([1]), [Sampling()], keys)
        scores = target.score(state, torch.tensor([text[place - 1]]), DraftTree.empty(1), drafter.taps)
        target.keep(state, torch.empty((1, 0), dtype=torch.int64), [0])
        drafter.commit(guesses, [[text[place]]], everything(scores, 1))
        shown, tokens = proposal.shown(target.vocab_size), proposal.tree.to_lists()[0][0]
        guess = shown[0, 0].float() if shown is not None else tokens[0] if tokens else None
        found.append((scores.logits[0, 0].float(), guess))
    return found


def forms(logits: Tensor, guess: Tensor | int | None, temperature: float) -> dict[str, float]:
    """The chance that one token is accepted, by every rule that this guess can be judged by."""
    law = (logits / temperature).softmax(-1)
    if guess is None:
        return {}
    if isinstance(guess, int):
        return {"match, the token found": float(law[guess])}
    draft = (guess / temperature).softmax(-1)
    return {
        "match, the likeliest token": float(law[guess.argmax()]),
        "match, the three likeliest": float(acceptance_of_set(law, guess.topk(3).indices)),
        "match, a drawn token": float((law * draft).sum()),
        "rejection, a drawn token": float(acceptance(law, draft)),
    }


def closed_forms(setting: Setting, tokens: int, temperatures: Sequence[float] = TEMPERATURES) -> list[dict[str, Any]]:
    """α by drafter, rule and temperature, on one text for all temperatures and on texts of their own temperature.

    Beside the drafters stands ``noise``: the target's own logits with a fixed row of Gaussian noise; and of the target
    itself the chance of its likeliest token, the most that any draft without siblings and without a law can have.
    """
    noise = NOISE * torch.randn(setting.target.vocab_size, generator=torch.Generator().manual_seed(SEED))
    sums: dict[tuple[str, str, str, float], list[list[float]]] = {}
    work = [(name, at, place) for name in setting.drafters for at in SAID for place in range(len(setting.asked))]
    for name, at, place in track(work, "reading texts", console=Console(stderr=True)):
        text = said(setting.target, setting.asked[place].ids, at, tokens)
        walked = places(setting.target, setting.drafters[name], setting.asked[place].ids, text)
        for texts, own in ((f"said at {FIXED:g}", temperatures if at == FIXED else ()), ("said at its own", (at,))):
            for temperature in own:
                cells: dict[tuple[str, str], list[float]] = {}
                for logits, guess in walked:
                    told = {(name, rule): chance for rule, chance in forms(logits, guess, temperature).items()}
                    if name == LOOKUP:  # once a text, whoever drafts
                        told |= {
                            ("noise", rule): one for rule, one in forms(logits, logits + noise, temperature).items()
                        }
                        told["target", "its likeliest token"] = float((logits / temperature).softmax(-1).max())
                    for key, chance in told.items():
                        cells.setdefault(key, []).append(chance)
                for (who, rule), chances in cells.items():
                    sums.setdefault((who, rule, texts, temperature), []).append([sum(chances), len(chances)])
    return [
        {
            "drafter": who,
            "rule": rule,
            "text": texts,
            "temperature": temperature,
            "alpha": ratio_of_sums(*_columns(rows)),
        }
        for (who, rule, texts, temperature), rows in sums.items()
    ]


def _columns(rows: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    return [row[0] for row in rows], [row[1] for row in rows]


# ---- counts ----------------------------------------------------------------------------------------------------------


def options_of(way: Way, temperature: float, tokens: int) -> Options:
    """What ``generate`` is told; a seed names the coins of a rule that is named, and of the controller's texts too."""
    found: Options = {"temperature": temperature, "max_new_tokens": tokens, "tree": way.tree}
    if temperature > 0:
        found |= {"rule": way.rule, "seed": SEED}
    if way.nodes is not None:
        found |= {"num_draft_tokens": way.nodes, "depth": way.depth}
    return found


def counts(setting: Setting, tokens: int, temperatures: Sequence[float]) -> list[dict[str, Any]]:
    """tau and acceptance of real decoding, pooled over prompts, by way and temperature."""
    cells = [(way, at) for way in setting.ways for at in temperatures if at > 0 or not way.drawn]
    found = []
    for way, at in track(cells, "decoding", console=Console(stderr=True)):
        drafter = setting.drafters[way.drafter]
        texts = [generate(setting.target, drafter, one.ids, **options_of(way, at, tokens)) for one in setting.asked]
        told = [text.stats.speculation for text in texts]
        whole = pooled(told)
        found.append(
            {
                "way": str(way),
                **asdict(way),
                "temperature": at,
                "tau": ratio_of_sums([one.emitted for one in told], [one.turns for one in told]),
                "acceptance": whole.acceptance,
                "acceptance_by_position": whole.acceptance_by_position,
                "first": first_position(told),
                "plain_turn_share": whole.plain_turn_share,
                "turns": whole.turns,
            }
        )
    return found


def first_position(told: Sequence[Any]) -> Estimate:
    """Acceptance of the first position, with its interval over prompts: what the closed forms speak of."""
    return ratio_of_sums([sum(one.passed[:1]) for one in told], [sum(one.tried[:1]) for one in told])
