"""OpenVINO GenAI: options of its generation, as a program, and the exports that it opens.

Knows nothing of other engines. Greedy drafts are exact, and so is lookup at any temperature; trees are of EAGLE-3 heads
in versions that have them.
"""

import json
from pathlib import Path
from typing import Any

from outpace.engines.emission import Emission
from outpace.engines.ready import Commands, ready, refuse, require_apart
from outpace.engines.schema import Schema, limits
from outpace.engines.wish import LONGEST_MATCH, Level, Wish, chain_rule

NAME = "OpenVINO GenAI"


def emit(wish: Wish, schema: Schema) -> Emission:
    """The program that generates, the options that it sets, and the exports before it.

    Raises:
        UnsupportedError: OpenVINO GenAI has no drafter of this kind.
    """
    wish = wish.single(NAME).fixed(NAME)
    target, prepare = exported(wish.path)
    if (who := wish.who) is None:
        program = _program(target, None, False, {}, wish.temperature)
        return Emission(
            schema.engine, schema.version, python=program, prepare=prepare, notes=wish.notes, cannot=wish.cannot
        )
    if who.kind not in ("lookup", "model", "eagle3"):
        raise refuse(NAME, who, "lookup, a smaller model, or an EAGLE-3 head")
    if who.kind != "eagle3" or not schema.takes("tree_depth"):
        wish = wish.chains(f"{NAME} {schema.version}")
    level = wish.levels[0]
    said: dict[str, Any] = {"num_assistant_tokens": level.depth}
    drafter: str | None = None
    if who.kind == "lookup":
        said["max_ngram_size"] = LONGEST_MATCH
    else:
        place, made = ready(who, {"eagle3": "safeailab"})
        drafter, more = exported(place, "--trust-remote-code") if who.kind == "eagle3" else exported(place)
        require_apart(target, drafter)
        prepare = (*prepare, *made, *more)
    if not level.branching.is_chain:
        wish = _grown(wish, level, said)
    if who.kind != "lookup" and (wish.temperature > 0 or chain_rule(level) != "match"):
        drawn = f"temperature {wish.temperature:g}" if chain_rule(level) == "match" else f"the rule {level.rule}"
        wish = wish.without(f"{drawn}: {NAME} has no exact acceptance of drawn drafts", "do_sample=False")
    schema.check(said)
    return Emission(
        schema.engine,
        schema.version,
        config=said,
        python=_program(target, drafter, who.kind == "lookup", said, 0.0 if drafter else wish.temperature),
        prepare=prepare,
        notes=wish.notes,
        cannot=(*wish.cannot, *limits(schema.engine, who.kind)),
    )


def exported(path: str, *more: str) -> tuple[str, Commands]:
    """The folder of a model in OpenVINO's form, and the command that makes it."""
    made = f"{Path(path).name}-openvino"
    return made, (("optimum-cli", "export", "openvino", "--model", path, *more, made),)


def _grown(wish: Wish, level: Level, said: dict[str, Any]) -> Wish:
    """A tree of likeliest children, written into ``said``."""
    width = level.width
    nodes = min(level.nodes, width**2 * (level.depth - 1) + width)
    said |= {"branching_factor": width, "tree_depth": level.depth, "num_assistant_tokens": nodes}
    wish = wish.without(f"do_sample with a tree: {NAME} refuses it", "do_sample=False")
    if level.branching.kind == "top-k":
        return wish
    return wish.without(
        f"the tree {level.branching}: {NAME} grows trees of a fixed number of likeliest children",
        f"top-k:{width} with {nodes} nodes, which was not measured",
    )


def _program(target: str, drafter: str | None, lookup: bool, said: dict[str, Any], temperature: float) -> str:
    """A program that runs as it stands, on a processor."""
    opening = [json.dumps(target), '"CPU"']
    lines = ["import openvino_genai", ""]
    if drafter is not None:
        lines.append(f'drafter = openvino_genai.draft_model({json.dumps(drafter)}, "CPU")')
        opening.append("draft_model=drafter")
    if lookup:
        opening.append("prompt_lookup=True")
    lines += [
        f"pipeline = openvino_genai.LLMPipeline({', '.join(opening)})",
        "options = openvino_genai.GenerationConfig()",
        "options.max_new_tokens = 64",
        f"options.do_sample = {temperature > 0}",
        *([f"options.temperature = {temperature!r}"] if temperature > 0 else []),
        *(f"options.{name} = {value!r}" for name, value in said.items()),
        'print(pipeline.generate("The three primary colours are", options))',
        "",
    ]
    return "\n".join(lines)
