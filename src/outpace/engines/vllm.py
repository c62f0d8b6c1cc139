"""For vLLM: the JSON of ``--speculative-config``, with a schedule of drafts by batch size.

Knows nothing of other engines. vLLM drafts chains. Its acceptance is the ratio test; drafts that it does not draw but
takes greedily are a law of one token each, for which that test is ``match``.
"""

import json
from typing import Any

from outpace.engines.emission import Emission
from outpace.engines.ready import ready
from outpace.engines.schema import Schema, limits
from outpace.engines.wish import LONGEST_MATCH, Level, Wish, chain_rule

NAME = "vLLM"
METHODS = {"lookup": "ngram", "model": "draft_model", "eagle3": "eagle3", "eagle1": "eagle", "medusa": "medusa"}
LARGE = 1024
"""Where the last range of a schedule ends; vLLM holds it for larger batches too."""


def emit(wish: Wish, schema: Schema) -> Emission:
    """The command that serves, with its speculative configuration.

    Raises:
        UnsupportedError: this version has no drafter of this kind.
    """
    wish = wish.chains(NAME).fixed(NAME)
    if wish.drafter is not None and wish.drafter.kind == "medusa":
        wish = wish.single(f"{NAME} with Medusa heads")  # its schedule is not for them
    serve, who = ("vllm", "serve", wish.path), wish.who
    if who is None:
        return Emission(schema.engine, schema.version, serve, notes=wish.notes, cannot=wish.cannot)
    schema.require("method", METHODS[who.kind])
    place, prepare = ready(who, {"eagle1": "vllm", "medusa": "vllm"})
    config: dict[str, Any] = {"method": METHODS[who.kind]}
    if who.kind == "lookup":
        config |= {"prompt_lookup_min": 1, "prompt_lookup_max": LONGEST_MATCH}
    else:
        config["model"] = place
    config["num_speculative_tokens"] = wish.deepest
    if len(wish.levels) > 1:
        config["num_speculative_tokens_per_batch_size"] = schedule(wish.levels)
    wish = _accept(wish, who.kind, config)
    schema.check(config)
    return Emission(
        schema.engine,
        schema.version,
        (*serve, "--speculative-config", json.dumps(config)),
        config,
        prepare=prepare,
        notes=wish.notes,
        cannot=(*wish.cannot, *limits(schema.engine, who.kind)),
    )


def schedule(levels: tuple[Level, ...]) -> list[list[int]]:
    """Ranges of batch sizes, both ends included, and the number of drafts in each."""
    ends = [level.batch - 1 for level in levels[1:]] + [max(LARGE, levels[-1].batch)]
    return [[level.batch, end, level.depth] for level, end in zip(levels, ends, strict=True)]


def _accept(wish: Wish, kind: str, config: dict[str, Any]) -> Wish:
    """How drafts are drawn and judged, written into ``config``: one way at every batch size."""
    rule = chain_rule(next(level for level in wish.levels if level.depth))
    if rule == "match" or kind == "lookup":
        return wish
    if kind == "medusa":
        return wish.without(f"the rule {rule} for Medusa: vLLM drafts greedily with it", "greedy drafts, as with match")
    config["draft_sample_method"] = "probabilistic"
    if rule == "block":
        config["rejection_sample_method"] = "block"
        return wish.noting("block verification needs vLLM's model runner V2 (a GPU with Triton); V1 ignores it")
    return wish
