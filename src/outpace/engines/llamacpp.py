"""For llama.cpp: flags of ``llama-server``, whose names changed between releases, and conversions to GGUF.

Knows nothing of other engines. llama.cpp drafts chains and accepts by ``match``: its own sampler draws at every place,
and a draft stays where it is what was drawn.
"""

import re
from pathlib import Path
from typing import Any

from outpace.engines.emission import Emission
from outpace.engines.guesser import Guesser
from outpace.engines.ready import Commands, ready, refuse, require_apart
from outpace.engines.schema import Schema, limits
from outpace.engines.sglang import flags
from outpace.engines.wish import Wish, chain_rule
from outpace.errors import UnsupportedError

NAME = "llama.cpp"
TYPES = {"lookup": "ngram-simple", "model": "draft-simple", "eagle3": "draft-eagle3"}
NGRAM = 3
"""Tokens that must agree before something is copied: llama.cpp compares runs of one length."""
CONVERT = ("python", "convert_hf_to_gguf.py")
"""A script in llama.cpp's own folder."""


def emit(wish: Wish, schema: Schema) -> Emission:
    """The command that serves.

    Raises:
        UnsupportedError: llama.cpp, or this version of it, has no drafter of this kind.
    """
    wish = wish.single(NAME).fixed(NAME)
    folder, prepare = local(wish.path)
    target, made = gguf(folder)
    prepare = (*prepare, *made)
    serve = ("llama-server", "-m", target)
    if (who := wish.who) is None:
        return Emission(schema.engine, schema.version, serve, prepare=prepare, notes=wish.notes, cannot=wish.cannot)
    if who.kind not in TYPES:
        raise refuse(NAME, who, "lookup, a smaller model, or an EAGLE-3 head")
    wish = wish.chains(NAME)
    said, more = _said(who, folder, wish.deepest, schema)
    require_apart(target, str(said.get("-md", "")))
    if who.kind == "lookup":
        wish = wish.without(
            f"lookup of the longest match: {NAME} compares runs of one length",
            f"ngram-simple with runs of {NGRAM}, which was not measured",
        )
    if (rule := chain_rule(wish.levels[0])) != "match" and who.kind != "lookup":
        wish = wish.without(
            f"the rule {rule}: {NAME} accepts a draft where its own sampler draws the same", "that rule, match"
        )
    schema.check(said)
    return Emission(
        schema.engine,
        schema.version,
        (*serve, *flags(said)),
        prepare=(*prepare, *more),
        notes=wish.notes,
        cannot=(*wish.cannot, *limits(schema.engine, who.kind)),
    )


def local(path: str) -> tuple[str, Commands]:
    """The folder of a model, and the command that fetches it where the path is an id of the hub."""
    if path.endswith(".gguf") or not re.fullmatch(r"[\w.-]+/[\w.-]+", path) or Path(path).is_dir():
        return path, ()
    folder = path.rpartition("/")[2]
    return folder, (("hf", "download", path, "--local-dir", folder),)


def gguf(path: str, *more: str) -> tuple[str, Commands]:
    """The GGUF file of a model, and the command that makes it where the path is no such file."""
    if path.endswith(".gguf"):
        return path, ()
    made = f"{Path(path).name}.gguf"
    return made, ((*CONVERT, path, *more, "--outfile", made),)


def _said(who: Guesser, target: str, depth: int, schema: Schema) -> tuple[dict[str, Any], Commands]:
    """Flags by name in this version, and the conversions of the drafter."""
    newer = schema.takes("--spec-draft-n-max")
    if who.kind == "lookup":
        size = "--spec-ngram-simple-size" if newer else "--spec-ngram-size"
        return {"--spec-type": TYPES["lookup"], f"{size}-n": NGRAM, f"{size}-m": depth}, ()
    if not newer and who.kind == "eagle3":
        raise UnsupportedError(
            f"{NAME} {schema.version} does not draft with {who.words}; allowed: lookup, or a smaller model",
            hint="--engine-version 0c1e57098 does",
        )
    place, made = ready(who, {"eagle3": "sglang"})
    folder, fetch = (place, ()) if made else local(place)
    if who.kind == "eagle3":
        head, more = gguf(folder, "--target-model-dir", target)
    else:
        head, more = gguf(folder)
    made = (*made, *fetch, *more)
    if newer:
        return {"--spec-type": TYPES[who.kind], "-md": head, "--spec-draft-n-max": depth}, made
    # The older default ends a draft at the first token that the drafter is not sure of.
    return {"-md": head, "--draft-max": depth, "--draft-min": 0, "--draft-p-min": 0.0}, made
