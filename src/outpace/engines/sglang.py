"""SGLang: flags of the server, three numbers or none, and a file where drafts go by batch size.

Knows nothing of other engines. SGLang counts the root among a draft's tokens. Its acceptance holds the target's own
probabilities against coins, which is ``match`` for a chain and exact for fixed trees; drawn drafts are a flag.
"""

from typing import Any

from outpace.engines.emission import Emission
from outpace.engines.ready import ready, refuse
from outpace.engines.schema import Schema, limits
from outpace.engines.wish import Level, Wish, chain_rule

NAME = "SGLang"
FILE = "speculative.json"
"""What the command calls the file of its batch sizes."""
ALGORITHMS = {"lookup": "NGRAM", "model": "STANDALONE", "eagle3": "EAGLE3", "eagle1": "EAGLE"}
ADAPTIVE = ("eagle3", "eagle1")
"""Who can change the number of drafts while serving."""
STEPS = (0, 1, 2, 4)
"""What a controller chooses among, beside the most: every number costs SGLang a set of recorded graphs."""


def emit(wish: Wish, schema: Schema) -> Emission:
    """The command that serves, and the file of its batch sizes where it needs one.

    Raises:
        UnsupportedError: SGLang has no drafter of this kind.
    """
    serve = ("python", "-m", "sglang.launch_server", "--model-path", wish.path)
    config: dict[str, Any] | None = None
    if wish.who is not None and wish.who.kind in ADAPTIVE and _chains_by_batch(wish):
        config = steps_by_batch(wish.levels)
        if any(level.most is not None for level in wish.levels):
            wish = wish.without(
                "auto: SGLang does not choose the number of drafts by what they cost",
                "its --speculative-adaptive, by acceptance alone among the steps of the file; not measured",
            )
    else:
        wish = wish.single(NAME).fixed(NAME)
    if (who := wish.who) is None:
        return Emission(schema.engine, schema.version, serve, notes=wish.notes, cannot=wish.cannot)
    if who.kind not in ALGORITHMS:
        raise refuse(NAME, who, "lookup, a smaller model, or an EAGLE head")
    place, prepare = ready(who, {"eagle3": "sglang", "eagle1": "safeailab"})
    said: dict[str, Any] = {"--speculative-algorithm": ALGORITHMS[who.kind]}
    if who.kind != "lookup":
        said["--speculative-draft-model-path"] = place
    level = max(wish.levels, key=lambda one: one.depth)
    if not level.branching.is_chain and level.branching.kind != "top-k":
        wish = wish.without(
            f"the tree {level.branching}: SGLang grows trees of a fixed number of likeliest children",
            f"top-k:{level.width} with as many nodes and as deep, which was not measured",
        )
    said |= _numbers(level, who.kind)
    wish = _accept(wish, level, schema, said)
    if config is not None:
        said |= {"--speculative-adaptive": True, "--speculative-adaptive-config": FILE}
    schema.check(said)
    wish = wish.noting("it serves at most 48 requests at once while it speculates, unless --max-running-requests says")
    return Emission(
        schema.engine,
        schema.version,
        (*serve, *flags(said)),
        config,
        FILE if config is not None else None,
        prepare=prepare,
        notes=wish.notes,
        cannot=(*wish.cannot, *limits(schema.engine, who.kind)),
    )


def flags(said: dict[str, Any]) -> list[str]:
    """Flags with their values, and switches alone."""
    return [word for name, value in said.items() for word in ((name,) if value is True else (name, str(value)))]


def steps_by_batch(levels: tuple[Level, ...]) -> dict[str, Any]:
    """The file of ``--speculative-adaptive-config``: the numbers of drafts to choose among, from each batch size on."""
    return {str(level.batch): {"candidate_steps": _candidates(level)} for level in levels}


def _candidates(level: Level) -> list[int]:
    if level.most is None:
        return [level.depth]
    return sorted({*(step for step in STEPS if step <= level.most), level.depth, level.most})


def _chains_by_batch(wish: Wish) -> bool:
    """Whether the number of drafts changes, and all drafts are chains."""
    changes = len(wish.levels) > 1 or wish.levels[0].most is not None
    return changes and all(level.branching.is_chain for level in wish.levels)


def _numbers(level: Level, kind: str) -> dict[str, int]:
    """The numbers of one level; drafts count the root."""
    if kind == "lookup":
        return {"--speculative-num-draft-tokens": level.depth + 1, "--speculative-ngram-max-bfs-breadth": 1}
    width = level.width
    nodes = level.depth if width == 1 else min(level.nodes, width + (level.depth - 1) * width**2)
    return {
        "--speculative-num-steps": level.depth,
        "--speculative-eagle-topk": width,
        "--speculative-num-draft-tokens": nodes + 1,
    }


def _accept(wish: Wish, level: Level, schema: Schema, said: dict[str, Any]) -> Wish:
    """How drafts are drawn and judged, written into ``said``."""
    who, rule = wish.drafter, chain_rule(level)
    if who is None or rule == "match" or who.kind == "lookup":
        return wish
    if not level.branching.is_chain:
        return wish.without(
            f"the rule {level.rule} on a tree: SGLang judges trees by the target's probabilities alone",
            "that rule, which is exact for its trees",
        )
    why = None
    if who.kind not in ADAPTIVE:
        why = "SGLang draws drafts of EAGLE heads alone"
    elif who.reduced:
        why = "SGLang cannot draw from a head that says a part of the vocabulary"
    if why is not None:
        return wish.without(f"the rule {rule}: {why}", "match, with greedy drafts: exact, and accepts no less of those")
    if who.reduced is None:
        wish = wish.noting(
            "leave --speculative-use-rejection-sampling out if the head says only a part of the target's vocabulary"
        )
    said["--speculative-use-rejection-sampling"] = True
    if rule != "block":
        return wish
    name = "--speculative-use-block-verification"
    if not schema.takes(name):
        return wish.without(f"the rule block: SGLang {schema.version} does not have it", "the rule rejection")
    said[name] = True
    return wish.noting("block verification runs on CUDA and ROCm")
