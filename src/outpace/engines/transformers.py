"""Hugging Face transformers: options of ``generate``, as a program.

Knows nothing of other engines. One sequence at a time, and chains. A smaller model's drafts are drawn and judged by the
ratio test, lookup's by ``match``. The number of drafts is read from the smaller model's own generation options.
"""

import json
from typing import Any

from outpace.engines.emission import Emission
from outpace.engines.ready import refuse
from outpace.engines.schema import Schema, limits
from outpace.engines.wish import LONGEST_MATCH, Wish, chain_rule

NAME = "transformers"


def emit(wish: Wish, schema: Schema) -> Emission:
    """The program that generates, and the options that it sets.

    Raises:
        UnsupportedError: transformers has no drafter of this kind.
    """
    wish = wish.single(NAME)
    who = wish.who
    if who is None:
        program = _program(wish, None, {})
        return Emission(schema.engine, schema.version, python=program, notes=wish.notes, cannot=wish.cannot)
    if who.kind not in ("lookup", "model"):
        raise refuse(NAME, who, "lookup, or a smaller model")
    wish = wish.chains(NAME)
    level = wish.levels[0]
    said: dict[str, Any]
    if who.kind == "lookup":
        wish = wish.fixed(NAME)
        said = {"prompt_lookup_num_tokens": level.depth, "max_matching_ngram_size": LONGEST_MATCH}
    elif level.most is not None:
        wish = wish.without(
            f"auto: {NAME} does not choose the number of drafts by what they cost",
            "its own heuristic: two more after a turn that accepted all, else one fewer; not measured",
        )
        said = {"num_assistant_tokens": level.depth, "num_assistant_tokens_schedule": "heuristic_transient"}
    else:
        said = {"num_assistant_tokens": level.depth, "num_assistant_tokens_schedule": "constant"}
        said["assistant_confidence_threshold"] = 0.0  # else drafts end at the first token below 0.4
    rule = chain_rule(level)
    if level.rule is not None and who.kind == "model" and rule != "rejection":
        wish = wish.without(f"the rule {rule}: {NAME} judges drawn drafts by the ratio test", "that rule, rejection")
    schema.check(said)
    return Emission(
        schema.engine,
        schema.version,
        config=said,
        python=_program(wish, who.path or None, said),
        notes=wish.notes,
        cannot=(*wish.cannot, *limits(schema.engine, who.kind)),
    )


def _program(wish: Wish, drafter: str | None, said: dict[str, Any]) -> str:
    """A program that runs as it stands."""
    lines = [
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f"name = {json.dumps(wish.path)}",
        "tokenizer = AutoTokenizer.from_pretrained(name)",
        'target = AutoModelForCausalLM.from_pretrained(name, dtype="auto")',
    ]
    options: dict[str, Any] = {"max_new_tokens": 64, "do_sample": wish.temperature > 0}
    options |= {"temperature": wish.temperature} if wish.temperature > 0 else {}
    if drafter is not None:
        lines.append(f'drafter = AutoModelForCausalLM.from_pretrained({json.dumps(drafter)}, dtype="auto")')
        lines += [f"drafter.generation_config.{name} = {value!r}" for name, value in said.items()]
    else:
        options |= said
    words = "".join(f", {name}={value!r}" for name, value in options.items())
    words += ", assistant_model=drafter" if drafter is not None else ""
    return "\n".join(
        [
            *lines,
            "",
            'inputs = tokenizer("The three primary colours are", return_tensors="pt").to(target.device)',
            f"ids = target.generate(**inputs, {words.removeprefix(', ')})",
            "print(tokenizer.decode(ids[0], skip_special_tokens=True))",
            "",
        ]
    )
