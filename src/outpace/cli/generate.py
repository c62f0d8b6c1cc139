"""outpace generate: continue one prompt, streamed, accepted drafts coloured, one line of statistics.

Knows nothing of decoding; parses, calls, prints.
"""

import json
import sys
from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.text import Text

from outpace.cli.pull import progress_bar
from outpace.decoding.generate import Options, Piece, Result, check, stream
from outpace.drafters.drafter import Drafter
from outpace.drafters.load import load_drafter
from outpace.errors import UsageError
from outpace.models import weights
from outpace.models.load import load_target
from outpace.models.target import Target

FORMAT_VERSION = 1
DRAFTED = "green"


def generate(
    prompt: Annotated[str, typer.Argument(help="What to say to the model; - reads it from standard input.")],
    target: Annotated[
        str, typer.Option(help="The model: a folder, a Hugging Face id, or the default.")
    ] = weights.DEFAULT,
    draft: Annotated[
        str, typer.Option(help="Who drafts: lookup, none (plain decoding), or a smaller model of the same family.")
    ] = "lookup",
    dtype: Annotated[str, typer.Option(help="auto (bf16 where it is native), bf16, fp32 or fp64.")] = "auto",
    device: Annotated[str, typer.Option(help="Where to compute; others than cpu are refused.")] = "cpu",
    num_draft_tokens: Annotated[str, typer.Option(help="Drafts a turn: a number, or auto.")] = "auto",
    rule: Annotated[str | None, typer.Option(help="An acceptance rule by name; the best that fits by default.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep this many most probable tokens; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the most probable tokens up to this mass; 1 keeps all.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Drop tokens below this share of the most probable; 0 keeps all.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Makes a sampled text reproducible.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="At most this many; -1 goes on to the end of the context.")] = 256,
    stop: Annotated[list[str] | None, typer.Option(help="Ends the text before this string; may be repeated.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Plain text, not a user turn of the chat template.")] = False,
    trace: Annotated[str | None, typer.Option(help="Write one record a turn to this file (JSON lines).")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Continue one prompt: drafted, verified exactly, streamed as it stands.

    Example: outpace generate "Explain speculative decoding in two sentences."
    """
    options: Options = {
        "num_draft_tokens": _draft_tokens(num_draft_tokens),
        "rule": rule,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": seed,
        "max_new_tokens": None if max_new_tokens == -1 else max_new_tokens,
        "stop": stop or (),
        "raw": raw,
        "trace": trace,
    }
    check(options)
    if prompt == "-":
        prompt = sys.stdin.read()
    model, drafter = _open(target, draft, dtype, device)
    screen = Console(highlight=False, soft_wrap=True)
    result: Result | None = None
    for part in stream(model, drafter, prompt, **options):
        if isinstance(part, Piece):
            if not json_output:
                screen.print(Text(part.text, style=DRAFTED if part.drafted else ""), end="")
        elif isinstance(part, Result):
            result = part
    assert result is not None
    if json_output:
        sys.stdout.write(json.dumps(document(result), indent=2) + "\n")
    else:
        screen.print()
        Console(stderr=True, highlight=False, soft_wrap=True).print(Text(summary(result), style="dim"))


def document(result: Result) -> dict[str, Any]:
    """The JSON document of one result, as ``--json`` prints it."""
    return {
        "format_version": FORMAT_VERSION,
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "usage": {"prompt_tokens": result.prompt_tokens, "completion_tokens": len(result.token_ids)},
        "speculation": asdict(result.stats.speculation),
        "timing": asdict(result.stats.timing),
    }


def summary(result: Result) -> str:
    """One line: tokens, rate, and what drafting brought."""
    drafting, timing = result.stats.speculation, result.stats.timing
    line = f"{len(result.token_ids)} tokens, {timing.tokens_per_second:.1f} tok/s"
    if drafting.method == "plain":
        return f"{line}, plain decoding"
    if drafting.tau is None:
        return f"{line}, no turn was needed"
    share = f", {drafting.accepted} of {drafting.drafted} drafts accepted ({drafting.rule})" if drafting.drafted else ""
    return f"{line}, {drafting.method}: {drafting.tau:.2f} tokens a forward{share}"


def _open(target: str, draft: str, dtype: str, device: str) -> tuple[Target, Drafter | None]:
    with progress_bar() as progress:
        model = load_target(target, dtype=dtype, device=device, progress=progress)
        drafter = None if draft == "none" else load_drafter(draft, model, dtype=dtype)
    return model, drafter


def _draft_tokens(given: str) -> int | Literal["auto"]:
    if given == "auto":
        return "auto"
    try:
        return int(given)
    except ValueError:
        raise UsageError(f"num_draft_tokens is {given!r}; allowed: auto, or a number from 0 on") from None
