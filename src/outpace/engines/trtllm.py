"""TensorRT-LLM with its PyTorch backend: the YAML that its server reads.

Knows nothing of other engines. Its acceptance is ``match`` unless the ratio test is asked for. ``draft_len_schedule``
is not used: releases disagree whether its batch sizes begin a range or end it.
"""

from typing import Any

from outpace.engines.emission import Emission
from outpace.engines.guesser import Guesser
from outpace.engines.ready import refuse
from outpace.engines.schema import Schema, limits
from outpace.engines.wish import Level, Wish, chain_rule

NAME = "TensorRT-LLM"
FILE = "speculative.yaml"
"""What the command calls its file."""
TYPES = {"lookup": "NGram", "model": "Draft_Target", "eagle3": "Eagle3"}
MATCH = 4
"""Tokens that lookup compares at most; all shorter and longer patterns would fill its pool."""


def emit(wish: Wish, schema: Schema) -> Emission:
    """The command that serves, and its file.

    Raises:
        UnsupportedError: TensorRT-LLM has no drafter of this kind.
    """
    serve = ("trtllm-serve", wish.path, "--backend", "pytorch")
    wish, limit = _by_batch(wish.fixed(NAME))
    if (who := wish.who) is None:
        return Emission(schema.engine, schema.version, serve, notes=wish.notes, cannot=wish.cannot)
    if who.kind not in TYPES:
        raise refuse(NAME, who, "lookup, a smaller model, or an EAGLE-3 head")
    if who.kind != "eagle3":
        wish = wish.chains(NAME)
    level = wish.levels[0]
    said: dict[str, Any] = {"decoding_type": TYPES[who.kind], "max_draft_len": level.depth}
    said |= {"max_matching_ngram_size": MATCH} if who.kind == "lookup" else {"speculative_model": who.path}
    said |= limit
    wish = _shaped(wish, level, who, said)
    wish = _accept(wish, level, who, said)
    schema.check(said)
    config: dict[str, Any] = {"speculative_config": said}
    if who.kind != "eagle3":
        config = {"disable_overlap_scheduler": True, **config}
    notes = [
        *wish.notes,
        "taken from TensorRT-LLM's own definitions, and not run here: see what it says when it starts",
    ]
    if who.kind == "model":
        notes.append("a release that refuses decoding_type Draft_Target wants DraftTarget, as its documentation has it")
    return Emission(
        schema.engine,
        schema.version,
        (*serve, "--config", FILE),
        config,
        FILE,
        notes=tuple(notes),
        cannot=(*wish.cannot, *limits(schema.engine, who.kind)),
    )


def _by_batch(wish: Wish) -> tuple[Wish, dict[str, int]]:
    """One number of drafts up to the first batch size without any, and none above it: ``max_concurrency``."""
    first, *others = wish.levels
    end = next((level for level in others if not level.depth), None)
    if not first.depth or end is None:
        return wish.single(NAME), {}
    if lost := [level for level in others if level.depth]:
        words = "; ".join(f"{level.words} from batch {level.batch} on" for level in lost)
        wish = wish.without(
            f"drafts by batch size ({words}): {NAME} drafts alike up to max_concurrency", f"{first.words} up to there"
        )
    return wish.over([first]), {"max_concurrency": end.batch - 1}


def _shaped(wish: Wish, level: Level, who: Guesser, said: dict[str, Any]) -> Wish:
    """Where a head reads its target, and how its tree grows, written into ``said``."""
    if who.kind != "eagle3":
        return wish
    if who.card is not None:
        # A tap is the output of layer k counted from 1; TensorRT-LLM counts layers from 0.
        said["eagle3_layers_to_capture"] = [tap - 1 for tap in who.card.taps]
    if level.branching.is_chain:
        return wish
    width, nodes = level.width, min(level.nodes, level.width * level.depth)
    said |= {"use_dynamic_tree": True, "dynamic_tree_max_topK": width, "max_total_draft_tokens": nodes}
    if level.branching.kind != "top-k" or nodes < level.nodes:
        wish = wish.without(
            f"the tree {level.branching} ({level.words}): {NAME} grows trees of a fixed number of likeliest children, "
            "of at most that many nodes a step",
            f"top-k:{width} with {nodes} nodes, which was not measured",
        )
    return wish


def _accept(wish: Wish, level: Level, who: Guesser, said: dict[str, Any]) -> Wish:
    """How drafts are judged, written into ``said``."""
    rule = chain_rule(level)
    if rule == "match" or who.kind == "lookup":
        return wish
    if not level.branching.is_chain:
        return wish.without(f"the rule {level.rule} on a tree: what {NAME} does there is not known", "its own, match")
    said["use_rejection_sampling"] = True
    if rule == "block":
        wish = wish.without(f"the rule {level.rule}: {NAME} does not have block verification", "the rule rejection")
    return wish.noting("use_rejection_sampling is a prototype of TensorRT-LLM and needs FlashInfer")
