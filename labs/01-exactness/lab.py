"""Exercise 1: is the output law kept? Samples, the noise floor that any two samplers have, a test, and the exact law.

    python labs/01-exactness/lab.py                          # 10,000, 100,000 and 1,000,000 samples, on one core:
                                                             # a quarter of an hour
    python labs/01-exactness/lab.py --samples 10000 100000   # three minutes
    python labs/01-exactness/lab.py --small                  # does it run? seconds; what CI runs

Target and draft are tables over 8 tokens, so that every law is known. Each sampler writes four tokens behind the
prompt; the first is the prompt forward's own, the other three are drafted and judged. Counted are the first of these
three (8 cells), the first two (64), and all three (512).
"""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from chance import Counts, Law, distance, floor, needed, p_value, perfect  # noqa: E402
from common import arguments, finish, heading, table  # noqa: E402
from pictures import floors, verdicts  # noqa: E402
from wrong import SNIPPET, Liar, Sampler, breaks_down, lying, snippet_step  # noqa: E402

from outpace.decoding.generate import speculative_decode  # noqa: E402
from outpace.decoding.text import text_of  # noqa: E402
from outpace.models.load import load_target  # noqa: E402
from outpace.models.target import padded  # noqa: E402
from outpace.models.toy import random_table, table_target  # noqa: E402
from outpace.verification.oracle import Drafting, Table, count_prefixes, one_turn, sampled, total_variation  # noqa: E402
from outpace.verification.rules import RULES  # noqa: E402
from outpace.verification.verdict import Rule  # noqa: E402

VOCAB, WINDOW, K = 8, 3, 3
"""A chain is never longer than the tokens that are still to come, so K = 3 here is any K from 3 on."""
BOUND = 0.01
"""The lesson's: TV below it after 10,000 samples."""
LEVEL = 0.001
"""A p-value below it is called a difference: eight honest comparisons raise a false alarm in one run of 125."""
BATCH = 32768
SLOW = 100_000
"""The faults, which are found long before, and the coupling, which takes four times as long, stop here."""
PLAIN = "plain"
HONEST = ("rejection", "block", "seeded coupling")
FAULTS = ("lesson's snippet, as printed", "drafter misreports its law")
REAL_PROMPT = "Tell me a story about a lighthouse."


# ---- the samplers ----------------------------------------------------------------------------------------------------


def cells(rows: NDArray[np.int64]) -> Counts:
    """How often each of the texts of three tokens came."""
    return np.bincount(np.ravel_multi_index(tuple(rows.T), (VOCAB,) * WINDOW), minlength=VOCAB**WINDOW)


def by_library(target: Any, draft: Any, depth: int, rule: str | None, samples: int, seed: int) -> Counts:
    """What ``speculative_decode`` writes, in chunks with a seed each."""
    counts = np.zeros(VOCAB**WINDOW, np.int64)
    for start in range(0, samples, BATCH):
        rows = speculative_decode(
            target,
            draft,
            [0],
            depth,
            1.0,
            max_new_tokens=1 + WINDOW + 1,  # the last one is never drafted, and not counted
            seed=seed + start,
            num_samples=min(BATCH, samples - start),
            rule=rule,
            batch_size=BATCH,
        )
        counts += cells(rows[:, 1 : 1 + WINDOW].numpy())
    return counts


def by_snippet(target: NDArray[np.float64], draft: NDArray[np.float64], samples: int, seed: int) -> Counts:
    """What the lesson's snippet writes, step after step, behind a first token of the target's own."""
    rng, rows = np.random.default_rng(seed), []
    for _ in range(samples):
        text = [int(rng.choice(VOCAB, p=target[0]))]
        while len(text) <= WINDOW:
            text += snippet_step(target, draft, text[-1], K, rng)
        rows.append(text[1 : 1 + WINDOW])
    return cells(np.array(rows))


def samplers() -> tuple[dict[str, Sampler], list[Tensor]]:
    """Every sampler by name, and the laws of target and draft, a row for each last token."""
    logits = [random_table(VOCAB, seed=seed) for seed in (1, 2)]
    target, draft = (table_target(one, name=name) for one, name in zip(logits, ("target", "draft"), strict=True))
    laws = [one.softmax(-1) for one in logits]
    found: dict[str, Sampler] = {
        PLAIN: partial(by_library, target, draft, 0, "match"),
        "rejection": partial(by_library, target, draft, K, "rejection"),
        "block": partial(by_library, target, draft, K, "block"),
        "seeded coupling": partial(by_library, target, draft, K, None),
        FAULTS[0]: partial(by_snippet, laws[0].numpy(), laws[1].numpy()),
        FAULTS[1]: partial(by_library, target, Liar(draft, target), K, "rejection"),
    }
    return found, laws


# ---- the exact laws --------------------------------------------------------------------------------------------------


def every_prefix(rows: Tensor, first: int, length: int) -> Table:
    """A law by last token as a table of prefixes; the empty one is followed by what follows ``first``."""
    last = (torch.arange(1, count_prefixes(VOCAB, length)) - 1) % VOCAB
    return Table(torch.cat([rows[first][None], rows[last]]))


def exact(rule: Rule, laws: Sequence[Tensor], lies: bool = False) -> Tensor:
    """The law of the three tokens by enumeration: turn after turn is taken from every text that is still too short."""
    longest = WINDOW - 1 + K + 1
    whole = torch.zeros(VOCAB**WINDOW, dtype=torch.float64)
    for first, weight in enumerate(laws[0][0]):
        target, draft = (every_prefix(law, first, longest) for law in laws)
        drafting: Drafting = sampled(draft, range(-1, K - 1))
        drafting = lying(drafting) if lies else drafting
        short = target.rows.new_zeros(count_prefixes(VOCAB, longest))
        short[0] = 1
        for _ in range(WINDOW):
            after = one_turn(rule, target, drafting, short)
            border = count_prefixes(VOCAB, WINDOW - 1)  # from here on a text has all three tokens
            short = torch.where(torch.arange(len(after)) < border, after, 0)
            start = border
            for size in range(WINDOW, longest + 1):
                whole += weight * after[start : start + VOCAB**size].view(VOCAB**WINDOW, -1).sum(1)
                start += VOCAB**size
    return whole


def exact_laws(laws: Sequence[Tensor]) -> dict[str, Law]:
    """Of every sampler that has a law to be enumerated; the coupling is proven by equal tokens instead."""
    return {
        "rejection": exact(RULES["rejection"], laws).numpy(),
        "block": exact(RULES["block"], laws).numpy(),
        FAULTS[0]: exact(SNIPPET, laws).numpy(),
        FAULTS[1]: exact(RULES["rejection"], laws, lies=True).numpy(),
    }


def windows(values: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Of laws or counts of three tokens: those of the first, of the first two, and of all."""
    return {f"{VOCAB**size}": values.reshape(VOCAB**size, -1).sum(1) for size in range(1, WINDOW + 1)}


def joint(law: Tensor) -> Law:
    """The target's law of the three tokens, written out."""
    return torch.einsum("a,ab,bc,cd->bcd", law[0], law, law, law).flatten().numpy()


# ---- what is measured ------------------------------------------------------------------------------------------------


def real_law(name: str) -> tuple[str, Law]:
    """The default's law of one token in the middle of a story, over its whole vocabulary."""
    target = load_target(name)
    assert target.folder is not None
    ids = text_of(target.folder).encode(REAL_PROMPT) + text_of(target.folder).encode("Once upon a time", raw=True)
    scores = target.prefill(target.open(1, len(ids)), padded([ids], 0), [len(ids)])
    return f"{target.vocab_size:,}", scores.logits[0, 0].double().softmax(-1).numpy()


def chance_alone(laws: dict[str, Law], sizes: Sequence[int], pairs: int) -> list[dict[str, Any]]:
    """Two perfect samplers: their TV on average, and how often it is below the lesson's bound."""
    rng, found = np.random.default_rng(0), []
    for name, law in laws.items():
        for samples in sizes:
            drawn = perfect(law, samples, pairs if len(law) <= VOCAB**WINDOW else pairs // 100, rng)
            found.append(
                {
                    "cells": name,
                    "samples": samples,
                    "floor": floor(law, samples),
                    "below_bound": float((drawn < BOUND).mean()),
                    "samples_needed": needed(law, BOUND),
                }
            )
    return found


def compare(
    drawn: dict[str, Sampler], known: dict[str, Law], target: Law, sizes: Sequence[int], shuffles: int
) -> list[dict[str, Any]]:
    """Every sampler beside plain sampling, at every size."""
    rng, found = np.random.default_rng(1), []
    for samples in sizes:
        plain = drawn[PLAIN](samples, 1 << 40)
        for place, (name, sampler) in enumerate(list(drawn.items())[1:], 2):
            if samples > SLOW and name not in ("rejection", "block"):
                continue
            counts = sampler(samples, place << 40)  # seeds never meet: the two histograms are independent
            both = zip(windows(counts).items(), windows(plain).values(), strict=True)
            p = p_value(counts, plain, shuffles, rng)
            found.append(
                {
                    "sampler": name,
                    "samples": samples,
                    "tv": {cells: distance(one, other) for (cells, one), other in both},
                    "floor": floor(target, samples),
                    "p_value": p,
                    "differs": p < LEVEL,
                    "honest": name in HONEST,
                    "exact_tv": None if name not in known else tv_of(known[name], target),
                }
            )
            print(f"   {name}, {samples:,} samples: TV {found[-1]['tv']}, p {p:.4f}", file=sys.stderr)
    return found


def tv_of(law: Law, target: Law) -> float:
    return total_variation(torch.from_numpy(law), torch.from_numpy(target))


def summary(found: Mapping[str, Any]) -> str:
    """The tables of README.md."""
    lines = ["| cells | samples | TV of two perfect samplers | share of them below 0.01 | samples needed for 0.01 |"]
    lines += ["|---:|---:|---:|---:|---:|"]
    for one in found["chance"]:
        lines.append(
            f"| {one['cells']} | {one['samples']:,} | {one['floor']:.4f} | {one['below_bound']:.0%} | "
            f"{one['samples_needed']:,} |"
        )
    lines += ["", "| sampler | samples | TV, 8 cells | 64 | 512 | floor, 512 | p | verdict | exact TV |"]
    lines += ["|---|---:|---:|---:|---:|---:|---:|---|---:|"]
    for one in found["samplers"]:
        exactly = "equal tokens" if one["exact_tv"] is None else f"{one['exact_tv']:.2g}"
        tv = " | ".join(f"{value:.4f}" for value in one["tv"].values())
        lines.append(
            f"| {one['sampler']} | {one['samples']:,} | {tv} | {one['floor']:.4f} | {one['p_value']:.4f} | "
            f"{'differs' if one['differs'] else 'no difference'} | {exactly} |"
        )
    return "\n".join(lines)


@torch.no_grad()
def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__, __file__)
    parser.add_argument("--samples", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--target", default="smollm2", help="whose vocabulary is looked at too; none: nobody's")
    args = parser.parse_args(argv)
    pairs, shuffles = 10_000, 9_999
    if args.small:
        args.samples, args.target, pairs, shuffles = [500, 2_000], "none", 1_000, 1_999
    drawn, laws = samplers()
    known, target = exact_laws(laws), joint(laws[0])
    chance = chance_alone(windows(target), args.samples, pairs)
    if args.target != "none":
        chance += chance_alone(dict([real_law(args.target)]), args.samples, pairs)
    found = {
        "protocol": (
            f"table target and table draft over {VOCAB} tokens, temperature 1, chains of {K}; joint law of the three "
            f"tokens behind the first; beside as many plain samples; permutation test on TV, {shuffles:,} shuffles"
        ),
        "chance": chance,
        "samplers": compare(drawn, known, target, args.samples, shuffles),
        "snippet_breaks_down": float((laws[0][0] * breaks_down(*laws)).sum()),
    }
    heading("TV of two perfect samplers")
    table(list(chance[0]), [list(one.values()) for one in chance])
    heading("beside plain sampling")
    columns = ("sampler", "samples", "TV, 512 cells", "floor", "p", "exact TV")
    rows = [
        (one["sampler"], f"{one['samples']:,}", one["tv"]["512"], one["floor"], one["p_value"], one["exact_tv"] or 0.0)
        for one in found["samplers"]
    ]
    table(columns, rows)
    figures = {"noise-floor": partial(floors, found, windows(target)), "verdicts": partial(verdicts, found)}
    finish(args, found, figures, summary)
    return judge(found["samplers"], args.small)


def judge(rows: Sequence[dict[str, Any]], small: bool) -> int:
    """1 where an honest sampler differs, or a fault is not found with the most samples; a small run proves nothing."""
    most = {one["sampler"]: one["samples"] for one in rows}  # the sizes rise
    final = [one for one in rows if one["honest"] or one["samples"] == most[one["sampler"]]]
    wrong = [one for one in final if one["differs"] == one["honest"]]
    for one in wrong:
        print(f"unexpected: {one['sampler']}, {one['samples']:,} samples: p {one['p_value']:.4f}", file=sys.stderr)
    return int(bool(wrong) and not small)


if __name__ == "__main__":
    sys.exit(main())
