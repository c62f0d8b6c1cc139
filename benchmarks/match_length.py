"""How often a copy is right, by how much of the text's tail agrees with what stands before it.

    python benchmarks/match_length.py           # about 5 minutes on one core; times nothing, so other work may run
    python benchmarks/match_length.py --quick   # does it run? one minute

The target's plain greedy texts; at every position of them lookup is asked for a chain of 8, told of all tokens before.
Counted are the positions at which so many tokens agree, the copies whose first token is the text's, and the tokens that
are right before the first wrong one. ``drafters/lookup.py`` draws its grades from it, ``drafters/either.py`` the grade
from which on it copies.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from common import arguments, document, prompt_arguments, questions, ratio_of_sums, save, show

from outpace.decoding.generate import generate
from outpace.drafters.budget import Budget
from outpace.drafters.lookup import Lookup
from outpace.models.load import load_target
from outpace.models.target import Target
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling

DEPTH, LONGEST = 8, 16
"""Tokens of a copy; and matches of so many tokens or more are one group."""
PROTOCOL = (
    "specbench-dev, first turn, greedy texts of the target, EOS respected; lookup asked at every position, shares "
    "pooled over positions, 95 % bootstrap over prompts"
)


@dataclass(frozen=True)
class Copied:
    """One position of one text: how many tokens agreed, and how many of the copy were right."""

    match: int
    right: int


def copies(target: Target, prompt: Sequence[int], text: Sequence[int]) -> list[Copied]:
    """What lookup would have copied at every position behind the first."""
    drafter = Lookup(eos_ids=target.eos_ids)
    state = drafter.open(1, len(prompt) + len(text))
    drafter.admit(state, [list(prompt)], None)
    found = []
    for place, token in enumerate(text):
        if place:
            keys = Keys((0,), (0,), (len(prompt) + place,), (False,))
            [(draft, _)] = drafter.propose(state, Budget.chain([DEPTH]), [Sampling()], keys).tree.to_lists()
            agreed = [one == other for one, other in zip(draft, text[place:], strict=False)]
            right = agreed.index(False) if False in agreed else len(agreed)
            found.append(Copied(min(LONGEST, state.rows[0].longest()), right))
        drafter.commit(state, [[token]], None)
    return found


def summarise(texts: Sequence[Sequence[Copied]], match: int) -> dict[str, Any]:
    """One length of match: its share of all positions, and what copies there are worth."""
    here = [[one for one in text if one.match == match] for text in texts]
    counts = [len(one) for one in here]
    first = [sum(copy.right > 0 for copy in one) for one in here]
    run = [sum(copy.right for copy in one) for one in here]
    return {
        "match": match,
        "positions": sum(counts),
        "share": ratio_of_sums(counts, list(map(len, texts))),
        "first": ratio_of_sums(first, counts),
        "run": ratio_of_sums(run, counts),
    }


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    prompt_arguments(parser, per_category=10, tokens=128)
    args = parser.parse_args(argv)
    if args.quick:
        args.limit, args.max_new_tokens = 2, 24
    target = load_target(args.target)
    asked = questions(target.folder, args)
    said = generate(target, None, [one.ids for one in asked], max_new_tokens=args.max_new_tokens, batch_size=16)
    texts = [copies(target, one.ids, text.token_ids) for one, text in zip(asked, said, strict=True)]
    cells = [
        summarise(texts, match)
        for match in range(LONGEST + 1)
        if any(one.match == match for text in texts for one in text)
    ]
    keys = ("match", "positions", "share", "first", "run")
    columns = ("tokens that agree", "positions", "share", "first token right", "tokens right")
    show("copies by the length of the match", columns, [[cell[key] for key in keys] for cell in cells])
    save("match_length", args, document("match_length", args, PROTOCOL, results=cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
