"""Let the default model answer prompts in large batches, one JSON line an answer, resumable at any moment.

    python examples/answer_prompts.py questions.jsonl answers.jsonl --temperature 1 --seed 1 --batch-size 64

Each input line holds one of ``prompt``, ``question`` (strings, one user turn), ``turns`` (a list, of which the first
is asked) or ``messages`` (chat messages; may be gzipped: ``.jsonl.gz``). Each output line holds ``user``,
``answer_ids`` (the end-of-text id included where the answer came to its end) and ``temperature``, and ``messages``
where the input had them. Answers are appended as they end, not in the order of the prompts. Started again with the
same files, it drops a last line that was torn and skips every prompt whose answer stands there.

Decoding is plain unless ``--draft lookup``: with many rows the processor has no idle time that drafts could use.
"""

import argparse
import gzip
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from outpace.decoding.loop import Request, decode
from outpace.decoding.text import Prompt, text_of
from outpace.drafters.drafter import Drafter
from outpace.drafters.lookup import Lookup
from outpace.errors import OutpaceError
from outpace.models.load import load_target
from outpace.models.target import Target
from outpace.verification.probabilities import Sampling


@dataclass(frozen=True)
class Asked:
    """One prompt: how an answer to it is named, what goes through the chat template, and which line it came from."""

    key: str
    prompt: Prompt
    line: int

    def record(self, answer_ids: list[int], temperature: float) -> dict[str, Any]:
        """The output line."""
        if isinstance(self.prompt, str):
            return {"user": self.prompt, "answer_ids": answer_ids, "temperature": temperature}
        asked = [message["content"] for message in json.loads(self.key) if message["role"] == "user"]
        user = asked[-1] if asked else ""
        return {"user": user, "answer_ids": answer_ids, "temperature": temperature, "messages": json.loads(self.key)}


def read_prompts(path: Path) -> Iterator[Asked]:
    """The prompts of an input file; a line without one ends the run, named."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        for line, text in enumerate(file):
            if not text.strip():
                continue
            record = json.loads(text)
            if "messages" in record:
                yield Asked(json.dumps(record["messages"]), record["messages"], line)
                continue
            found = record.get("prompt", record.get("question", (record.get("turns") or [None])[0]))
            if not isinstance(found, str):
                sys.exit(f"line {line + 1} of {path} has none of prompt, question, turns, messages")
            yield Asked(found, found, line)


def finished(path: Path) -> Counter[str]:
    """How often each prompt stands answered in the output; a torn last line is cut off the file."""
    done: Counter[str] = Counter()
    if not path.is_file():
        return done
    whole = 0
    with path.open("rb") as file:
        for text in file:
            if not text.endswith(b"\n"):
                break
            record = json.loads(text)
            done[json.dumps(record["messages"]) if "messages" in record else record["user"]] += 1
            whole += len(text)
    with path.open("r+b") as file:
        file.truncate(whole)
    return done


def unanswered(asked: Iterator[Asked], done: Counter[str], limit: int | None) -> list[Asked]:
    """The first ``limit`` prompts less those that stand answered; a prompt asked twice is answered twice."""
    left = done.copy()
    waiting = []
    for place, one in enumerate(asked):
        if place == limit:
            break
        if left[one.key] > 0:
            left[one.key] -= 1
        else:
            waiting.append(one)
    return waiting


def requests_of(target: Target, waiting: list[Asked], args: argparse.Namespace) -> tuple[list[Asked], list[Request]]:
    """What to decode. Prompts that leave no room for an answer are named and left out."""
    assert target.folder is not None
    text, sampling = text_of(target.folder), Sampling(args.temperature, top_p=args.top_p)
    kept, requests = [], []
    for one in waiting:
        ids = text.encode(one.prompt)
        if len(ids) >= target.max_positions:
            print(f"line {one.line + 1}: {len(ids)} tokens do not fit the context; skipped", file=sys.stderr)
            continue
        kept.append(one)
        # The line is the sample: an answer is the same whatever was answered before it, or in another run.
        requests.append(Request(ids, sampling, args.max_new_tokens, target.eos_ids, args.seed, one.line))
    # Prompts that are read together are padded to the longest of them: neighbours are to be of one length.
    order = sorted(range(len(kept)), key=lambda place: len(requests[place].ids))
    return [kept[place] for place in order], [requests[place] for place in order]


def answer(
    target: Target, drafter: Drafter | None, kept: list[Asked], requests: list[Request], args: argparse.Namespace
) -> None:
    """Decode, refilling the batch as rows finish, and append every answer when it is whole."""
    answers: list[list[int]] = [[] for _ in kept]
    columns = (
        TextColumn("answering"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:.0f} tok/s"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    begin, tokens = time.perf_counter(), 0
    emissions = decode(
        target, drafter, requests, num_draft_tokens=args.num_draft_tokens, slots=args.batch_size, rule=args.rule
    )
    with args.output.open("a", encoding="utf-8") as file, Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=len(kept), rate=0.0)
        for emission in emissions:
            answers[emission.index] += emission.ids
            tokens += len(emission.ids)
            if emission.finish is None:
                continue
            one = kept[emission.index]
            if emission.error is None:
                record = one.record(answers[emission.index], args.temperature)
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
                file.flush()
            else:
                progress.console.print(f"line {one.line + 1}: {emission.error.message}; left out", markup=False)
            progress.update(bar, advance=1, rate=tokens / (time.perf_counter() - begin))
    print(f"{tokens} tokens in {time.perf_counter() - begin:.1f} s", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--target", default="smollm2", help="a folder, a Hugging Face id, or the default")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--draft", choices=("none", "lookup"), default="none")
    parser.add_argument("--num-draft-tokens", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="answers decoded at once")
    parser.add_argument("--max-new-tokens", type=int, default=320)
    parser.add_argument("--temperature", type=float, default=1.0, help="0 is greedy")
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, help="makes the answers reproducible")
    parser.add_argument("--rule", default="match", help="the acceptance rule; match needs the least work")
    parser.add_argument("--limit", type=int, help="only the first prompts of the input")
    args = parser.parse_args(argv)
    try:
        waiting = unanswered(read_prompts(args.input), finished(args.output), args.limit)
        if not waiting:
            print("every prompt stands answered", file=sys.stderr)
            return 0
        target = load_target(args.target, dtype=args.dtype)
        drafter = Lookup(eos_ids=target.eos_ids) if args.draft == "lookup" else None
        answer(target, drafter, *requests_of(target, waiting, args), args)
    except KeyboardInterrupt:
        print("interrupted; the answers so far are kept, start again to go on", file=sys.stderr)
        return 130
    except (OutpaceError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
