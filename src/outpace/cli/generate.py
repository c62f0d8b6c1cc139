"""outpace generate: continue one prompt, streamed with accepted drafts coloured, or answer a file of prompts.

Knows nothing of decoding; parses, calls, prints.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from outpace.cli.pair import DRAFTERS, Models, chosen, parted
from outpace.cli.pull import progress_bar
from outpace.decoding.generate import Piece, Result, stream
from outpace.decoding.jobs import BATCH_SIZE, Outcome, answer, as_record, record, settings
from outpace.decoding.options import Options, check, costs_of
from outpace.decoding.plan import NONE, Choice, Plan
from outpace.decoding.prompts import Entry, in_category, read_prompts
from outpace.drafters.budget import TREES
from outpace.drafters.drafter import Drafter
from outpace.errors import UsageError
from outpace.models import weights
from outpace.models.target import Target

FORMAT_VERSION = 1
DRAFTED = "green"

# Flags whose help does not fit a line of the signature.
Spoken = Annotated[str | None, typer.Argument(help="What to say to the model; - reads it from standard input.")]
Model = Annotated[str, typer.Option(help="The model: a folder, a Hugging Face id, or the default.")]
Guesser = Annotated[str | None, typer.Option(help=f"Who drafts: {DRAFTERS}; or none, which decodes plainly.")]
Lane = Annotated[str, typer.Option(help="auto, fast (our own forward) or hosted (the model of transformers).")]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="Run Python files that came with the weights.")]
Drafts = Annotated[str | None, typer.Option(metavar="N|auto", help="Drafts a turn: a number, or auto, the default.")]
Tree = Annotated[str | None, typer.Option(metavar="SHAPE", help=f"How drafts branch: {TREES}.")]
Planned = Annotated[Path | None, typer.Option(help="A plan (TOML) that says who drafts, how much and how.")]
Depth = Annotated[int | None, typer.Option(help="The longest path of a tree; as its nodes allow by default.")]
Repetition = Annotated[
    float, typer.Option(help="Above 1: tokens of prompt and text become less probable; 1 changes nothing.")
]
Presence = Annotated[float, typer.Option(help="Taken once off the logit of a token that the text has.")]
Frequency = Annotated[float, typer.Option(help="Taken off the logit of a token each time the text has it.")]
Least = Annotated[int, typer.Option(help="No end of text before so many tokens.")]
Bias = Annotated[
    list[str] | None, typer.Option(metavar="ID=VALUE", help="Added to the logit of a token; may be repeated.")
]
Bad = Annotated[list[str] | None, typer.Option(metavar="WORD", help="A word that may not be said; may be repeated.")]
Stop = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="Ends the text before this string; may be repeated.")
]
Prompts = Annotated[Path | None, typer.Option(help="Answer a file instead: JSON lines with turns, prompt or messages.")]
Category = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Only these prompts of the file; may be repeated.")
]
Together = Annotated[int | None, typer.Option(help="How many prompts of the file are decoded at once; 8 by default.")]
Output = Annotated[Path | None, typer.Option(help="Append the answers here; what it has already is not asked again.")]


def generate(
    prompt: Spoken = None,
    target: Model = weights.DEFAULT,
    draft: Guesser = None,
    dtype: Annotated[str, typer.Option(help="auto (bf16 where it is native), bf16, fp32 or fp64.")] = "auto",
    device: Annotated[str, typer.Option(help="Where to compute; others than cpu are refused.")] = "cpu",
    lane: Lane = "auto",
    trust_remote_code: Trust = False,
    num_draft_tokens: Drafts = None,
    tree: Tree = None,
    depth: Depth = None,
    plan: Planned = None,
    rule: Annotated[str | None, typer.Option(help="An acceptance rule by name; the best that fits by default.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep this many most probable tokens; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the most probable tokens up to this mass; 1 keeps all.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Drop tokens below this share of the most probable; 0 keeps all.")] = 0.0,
    repetition_penalty: Repetition = 1.0,
    presence_penalty: Presence = 0.0,
    frequency_penalty: Frequency = 0.0,
    logit_bias: Bias = None,
    bad_word: Bad = None,
    min_new_tokens: Least = 0,
    seed: Annotated[int | None, typer.Option(help="Makes a sampled text reproducible.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="At most this many; -1 goes on to the end of the context.")] = 256,
    stop: Stop = None,
    raw: Annotated[bool, typer.Option("--raw", help="Plain text, not a user turn of the chat template.")] = False,
    prompts: Prompts = None,
    category: Category = None,
    batch_size: Together = None,
    output: Output = None,
    trace: Annotated[str | None, typer.Option(help="Write one record a turn to this file (JSON lines).")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Continue a prompt, or answer a file of prompts.

    Text is drafted, verified exactly, and streamed as it stands. Answers to a file go to --output, or as JSON lines to
    standard output; a prompt that does not fit the context is named and skipped, and the exit code is then 1.

    Example: outpace generate "Explain speculative decoding in two sentences."
    """
    law: Options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
    given = {"draft": draft, "num-draft-tokens": num_draft_tokens, "tree": tree, "depth": depth, "rule": rule}
    alone = batch_size or (1 if prompts is None else BATCH_SIZE)
    choice, planned = chosen(plan, given, category, alone, temperature)
    models = Models(target, dtype, device, lane, trust_remote_code)
    changes = _changes(repetition_penalty, presence_penalty, frequency_penalty, logit_bias, bad_word, min_new_tokens)
    limit = None if max_new_tokens == -1 else max_new_tokens
    length: Options = {"max_new_tokens": limit, "batch_size": batch_size, "stop": stop or (), "raw": raw}
    shared: Options = {**law, **changes, **length, "trace": trace}
    check({**shared, **choice.options})
    _check_source(prompt, prompts, {"category": category, "batch-size": batch_size, "output": output}, trace)
    if prompts is not None:
        entries = _entries(prompts, category)
        parts = [(choice, entries)] if planned is None else parted(planned, entries, alone, temperature)
        _all(*_jobs(models, planned, parts, shared), output, json_output)
    elif prompt is not None:
        model, [(drafter, _, options)], _ = _jobs(models, planned, [(choice, [])], shared)
        _one(model, drafter, sys.stdin.read() if prompt == "-" else prompt, options, json_output)


def _one(target: Target, drafter: Drafter | None, prompt: str, options: Options, json_output: bool) -> None:
    """Stream one answer to the screen, or print it as one document."""
    screen = Console(highlight=False, soft_wrap=True)
    result: Result | None = None
    for part in stream(target, drafter, prompt, **options):
        if isinstance(part, Piece):
            if not json_output:
                screen.print(Text(part.text, style=DRAFTED if part.drafted else ""), end="")
        elif isinstance(part, Result):
            result = part
    assert result is not None
    if json_output:
        _print(document(result))
    else:
        screen.print()
        Console(stderr=True, highlight=False, soft_wrap=True).print(Text(summary(result), style="dim"))


_Job = tuple[Drafter | None, list[Entry], Options]
"""Prompts that are decoded in one way."""


def _all(
    target: Target, jobs: Sequence[_Job], begun: dict[str, Any] | None, output: Path | None, json_output: bool
) -> None:
    """Answer a file: to the output file, or as lines on stdout; a prompt without an answer makes the exit code 1."""
    begin = time.perf_counter()
    ended: list[Outcome] = []
    lines = output is None and not json_output
    total = sum(len(entries) for _, entries, _ in jobs)
    with _bar(total, hidden=lines and sys.stdout.isatty()) as (console, step, told):
        for drafter, entries, options in jobs:
            for outcome in answer(target, drafter, entries, output=output, told=told, begun_with=begun, **options):
                ended.append(outcome)
                if outcome.reason is not None:
                    console.print(Text(f"outpace: {outcome.entry.called}: {outcome.reason}; {_fate(outcome)}"))
                elif lines:
                    sys.stdout.write(json.dumps(record(outcome), ensure_ascii=False) + "\n")
                    sys.stdout.flush()
                step()
    whole = job_document(ended, output, time.perf_counter() - begin)
    if json_output:
        _print(whole)
    else:
        Console(stderr=True, highlight=False, soft_wrap=True).print(Text(job_summary(whole), style="dim"))
    if whole["skipped"] or whole["failed"]:
        raise typer.Exit(1)


def document(result: Result) -> dict[str, Any]:
    """The JSON document of one result, as ``--json`` prints it."""
    return {"format_version": FORMAT_VERSION, **as_record(result)}


def job_document(ended: Sequence[Outcome], output: Path | None, seconds: float) -> dict[str, Any]:
    """The JSON document of a file of prompts; the answers are in it where there is no output file."""
    said = [result for outcome in ended for result in outcome.answers]
    tokens = sum(len(result.token_ids) for result in said)
    left = [
        [
            {"id": outcome.entry.key, "line": outcome.entry.line, "reason": outcome.reason}
            for outcome in ended
            if outcome.status == status
        ]
        for status in ("too long", "failed")
    ]
    whole: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "output": None if output is None else str(output),
        "answered": sum(outcome.status == "answered" for outcome in ended),
        "kept": sum(outcome.status == "kept" for outcome in ended),
        "skipped": left[0],
        "failed": left[1],
        "usage": {"prompt_tokens": sum(result.prompt_tokens for result in said), "completion_tokens": tokens},
        "timing": {"total_s": seconds, "tokens_per_second": tokens / seconds},
    }
    if output is None:
        whole["answers"] = [record(outcome) for outcome in ended if outcome.status == "answered"]
    return whole


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


def job_summary(whole: dict[str, Any]) -> str:
    """One line: what became of the prompts, tokens and rate."""
    counts = {name: whole[name] if isinstance(whole[name], int) else len(whole[name]) for name in COUNTED}
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count or name == "answered")
    timing = whole["timing"]
    tokens = whole["usage"]["completion_tokens"]
    return f"{said}; {tokens} tokens in {timing['total_s']:.1f} s, {timing['tokens_per_second']:.1f} tok/s"


COUNTED = ("answered", "kept", "skipped", "failed")


def _print(whole: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(whole, indent=2) + "\n")


@contextmanager
def _bar(total: int, *, hidden: bool) -> Iterator[tuple[Console, Callable[[], None], Callable[[int], None]]]:
    """A bar on stderr, where that is a terminal; a console for notes, and what to call for an entry and for tokens."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (
        TextColumn("answering"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[tokens]} tokens"),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns,
        console=console,
        transient=True,
        disable=hidden or not console.is_terminal,
        redirect_stdout=False,  # what goes to stdout may go to a file
    ) as bar:
        task, tokens = bar.add_task("", total=total, tokens=0), 0

        def told(count: int) -> None:
            nonlocal tokens
            tokens += count
            bar.update(task, tokens=tokens)

        yield console, lambda: bar.advance(task), told


def _fate(outcome: Outcome) -> str:
    return "skipped" if outcome.status == "too long" else "failed"


def _entries(path: Path, categories: list[str] | None) -> list[Entry]:
    entries = read_prompts(path)
    if not categories:
        return entries
    return [entry for category in dict.fromkeys(categories) for entry in in_category(entries, category)]


def _check_source(prompt: str | None, prompts: Path | None, of_files: dict[str, object], trace: str | None) -> None:
    """One prompt or a file of them, and with one prompt no flag that is for files."""
    if (prompt is None) == (prompts is None):
        given = "neither a prompt nor --prompts" if prompt is None else "a prompt and --prompts"
        raise UsageError(f"{given} was given; allowed: one of them", hint='outpace generate "…", or --prompts F.jsonl')
    if prompts is not None and trace is not None:
        raise UsageError("--trace was given with --prompts; allowed: a trace of one prompt")
    wrong = [name for name, value in of_files.items() if value is not None]
    if prompts is None and wrong:
        raise UsageError(f"--{wrong[0]} was given without --prompts; allowed: with a file of prompts")


def _changes(
    repetition: float, presence: float, frequency: float, bias: list[str] | None, bad: list[str] | None, least: int
) -> Options:
    """What changes the target's logits."""
    return {
        "repetition_penalty": repetition,
        "presence_penalty": presence,
        "frequency_penalty": frequency,
        "logit_bias": _biases(bias or ()),
        "bad_words": bad or (),
        "min_new_tokens": least,
    }


def _biases(given: Sequence[str]) -> dict[int, float] | None:
    biases: dict[int, float] = {}
    for text in given:
        token, _, value = text.partition("=")
        try:
            number, bias = int(token), float(value)
        except ValueError:
            raise UsageError(f"logit_bias is {text!r}; allowed: ID=VALUE, such as 5=-100 or 5=-inf") from None
        if number in biases:
            raise UsageError(f"logit_bias names token {number} twice; allowed: once")
        biases[number] = bias
    return biases or None


def _jobs(
    models: Models, plan: Plan | None, parts: Sequence[tuple[Choice, list[Entry]]], shared: Options
) -> tuple[Target, list[_Job], dict[str, Any] | None]:
    """The target, and each part with who drafts; behind one bar, what turns cost where drafts are chosen by that.

    Last, what the output file of a plan says of itself: all of its choices, as any of them may be asked for.
    """
    jobs: list[_Job] = []
    for choice, _ in parts:
        check({**shared, **choice.options})
    with progress_bar() as progress:
        model, opened = models.decider(progress, plan), dict[str, Drafter]()
        for choice, entries in parts:
            if choice.drafter != NONE and choice.drafter not in opened:
                opened[choice.drafter] = models.guesser(choice.drafter, model)
            drafter = opened.get(choice.drafter)
            options: Options = {**shared, **choice.options}
            if drafter is not None and choice.options["num_draft_tokens"] == "auto" and model.can_rewind:
                at_once = max(1, min(len(entries), shared.get("batch_size") or BATCH_SIZE))
                costs_of(model, drafter, options, at_once, progress)
            jobs.append((drafter, entries, options))
    if plan is None:
        return model, jobs, None
    choices = [{"category": one.category, "batch": one.batch, "temperature": one.temperature} for one in plan.choices]
    ways = [{"drafter": one.drafter, **one.options} for one in plan.choices]
    return model, jobs, settings(model, None, shared) | {"plan": [a | b for a, b in zip(choices, ways, strict=True)]}
