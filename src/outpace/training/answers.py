"""Answers of the target to prompts: many at once, one line each, gone on with where they were interrupted.

Knows nothing of masks or features. What a line holds says ``corpus.py``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outpace.decoding.loop import Request
from outpace.decoding.prompts import Entry
from outpace.decoding.text import Message, Prompt, Text
from outpace.errors import UsageError
from outpace.models.staging import Progress, silent
from outpace.models.target import Target
from outpace.training.continuations import Continuation, continuations, seed_of
from outpace.training.corpus import Answer, line_of
from outpace.training.endpoint import Endpoint
from outpace.training.journal import Journal
from outpace.verification.probabilities import Sampling

MAX_NEW_TOKENS = 512
BATCH_SIZE = 64


@dataclass
class Report:
    """What became of prompts; a prompt of several turns counts once for each that was come to.

    Args:
        answered: how many were answered now.
        kept: how many the file held already.
        new_tokens: of those answered now.
        too_long: the names of those that leave no room for an answer.
        failed: why those failed whose logits were no distribution, by name.
    """

    answered: int = 0
    kept: int = 0
    new_tokens: int = 0
    too_long: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass
class _Asked:
    """A prompt on its way: what has been said so far, and what the user says behind each answer to come."""

    entry: Entry
    turn: int
    said: list[Message]
    coming: list[list[Message]]
    prompt: Prompt
    ids: list[int]

    @property
    def key(self) -> str:
        return self.entry.key if self.turn == 1 else f"{self.entry.key} turn {self.turn}"


@dataclass(frozen=True)
class _Settings:
    """What answers depend on besides the prompts."""

    temperatures: tuple[float, ...]
    max_new_tokens: int
    limit: int
    seed: int

    def temperature(self, key: str) -> float:
        return self.temperatures[seed_of(self.seed, key, "temperature") % len(self.temperatures)]


def answer(
    target: Target | Endpoint,
    text: Text,
    entries: Sequence[Entry],
    path: Path,
    *,
    temperatures: Sequence[float] = (0.0,),
    max_new_tokens: int = MAX_NEW_TOKENS,
    limit: int | None = None,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
    progress: Progress = silent,
) -> Report:
    """Let the target answer every prompt, and write each answer to a file as soon as it stands.

    A prompt of several turns, or of messages with answers of someone else, becomes a dialogue with answers of the
    target's own, one line a turn. What the file holds already is kept. A sampled answer is drawn by a seed of its own,
    so that what is gone on with becomes, in fp32, what it would have become.

    Args:
        target: who answers: a model in this process, or behind an endpoint.
        text: the target's tokenizer and chat template.
        entries: what to ask, each under a name of its own.
        path: the file; made, or gone on with.
        temperatures: every prompt is answered at one of these, chosen by its name; 0 is greedy.
        max_new_tokens: the most tokens of an answer, 1 or more.
        limit: the most tokens of prompt and answer together; the context's by default.
        batch_size: the most prompts at once, 1 or more.
        seed: names the draws.
        progress: told how many answers stand.

    Raises:
        UsageError: an argument is out of range, two entries share a name, an entry cannot be encoded, the file is no
            such file, was begun with other settings (``batch_size`` may change) or has a name with another prompt; all
            before any work. Later: the endpoint cannot be reached or answers nonsense.
    """
    longest = target.max_positions if limit is None else min(limit, target.max_positions)
    settings = _Settings(tuple(temperatures), max_new_tokens, longest, seed)
    _check(entries, settings, batch_size)
    going = [_begun(text, entry) for entry in entries]
    journal = Journal(path, _described(target, settings), "answers")
    stand = {line["id"]: line for _, line in journal.lines if isinstance(line.get("id"), str)}
    report = Report()
    while going:
        asked, going = _kept(text, going, stand, path, report)
        asked, refused = _fitting(asked, longest)
        report.too_long += refused
        done, total = report.kept + report.answered, report.kept + report.answered + len(asked)
        progress(done, total, "answering prompts")
        for one, found in _answers(target, text, asked, settings, batch_size):
            if found.reason is not None:
                report.failed[one.key] = found.reason
                continue
            journal.append(_line(one, found, settings))
            report.answered += 1
            report.new_tokens += len(found.ids)
            progress(report.kept + report.answered, total, "answering prompts")
            going += _next_turn(text, one, found.ids)
    return report


def _check(entries: Sequence[Entry], settings: _Settings, batch_size: int) -> None:
    if not settings.temperatures:
        raise UsageError("no temperature is given; allowed: one or more, 0 for greedy answers")
    for temperature in settings.temperatures:
        Sampling(temperature)
    for name, value in (
        ("max_new_tokens", settings.max_new_tokens),
        ("limit", settings.limit),
        ("batch_size", batch_size),
    ):
        if value < 1:
            raise UsageError(f"{name} is {value}; allowed: 1 or more")
    seen: set[str] = set()
    for entry in entries:
        if entry.key in seen:
            raise UsageError(f"two prompts are named {entry.key!r}; allowed: a name of its own for each")
        seen.add(entry.key)


def _described(target: Target | Endpoint, settings: _Settings) -> dict[str, Any]:
    if isinstance(target, Endpoint):
        who = {"endpoint": target.url, "model": target.model}
    else:
        who = {"target": target.fingerprint, "dtype": str(target.dtype).removeprefix("torch.")}
    return who | {
        "temperatures": list(settings.temperatures),
        "max_new_tokens": settings.max_new_tokens,
        "limit": settings.limit,
        "seed": settings.seed,
    }


# ---- dialogues -------------------------------------------------------------------------------------------------------


def _begun(text: Text, entry: Entry) -> _Asked:
    """An entry's first prompt, and what is said behind its answers."""
    first = entry.turns[0]
    if isinstance(first, list) and all(isinstance(part, int) for part in first):
        ids = [part for part in first if isinstance(part, int)]
        return _Asked(entry, 1, [], [], ids, ids)
    parts: list[list[Message]] = [[]]
    for turn in entry.turns:
        messages: list[Message] = [{"role": "user", "content": turn}] if isinstance(turn, str) else list(turn)  # type: ignore[arg-type]
        for message in messages:
            if message["role"] == "assistant":
                parts.append([])
            else:
                parts[-1].append(message)
        if isinstance(turn, str):
            parts.append([])
    parts = [part for part in parts if part]
    if not parts:
        raise UsageError(f"{entry.called}: nobody asks anything; allowed: a turn of the user or more")
    return _asked(text, entry, 1, parts[0], parts[1:])


def _asked(text: Text, entry: Entry, turn: int, said: list[Message], coming: list[list[Message]]) -> _Asked:
    prompt: Prompt = said
    if len(said) == 1 and said[0]["role"] == "user":
        prompt = said[0]["content"]
    elif not text.tokenizer.chat_template and all(isinstance(one, str) for one in entry.turns):
        prompt = "\n".join(message["content"] for message in said)
    try:
        ids = text.encode(prompt)
    except UsageError as error:
        raise UsageError(f"{entry.called}: {error.message}", hint=error.hint) from error
    return _Asked(entry, turn, said, coming, prompt, ids)


def _next_turn(text: Text, one: _Asked, answer_ids: Sequence[int]) -> list[_Asked]:
    """What is asked behind an answer, if anything."""
    if not one.coming:
        return []
    said = [*one.said, {"role": "assistant", "content": text.decode(answer_ids)}, *one.coming[0]]
    return [_asked(text, one.entry, one.turn + 1, said, one.coming[1:])]


def _kept(
    text: Text, going: list[_Asked], stand: dict[str, dict[str, Any]], path: Path, report: Report
) -> tuple[list[_Asked], list[_Asked]]:
    """Those that the file has no answer to, and the next turns of those that it has."""
    asked, following = [], []
    for one in going:
        line = stand.get(one.key)
        if line is None:
            asked.append(one)
            continue
        if line.get("prompt_ids") != one.ids or not isinstance(line.get("answer_ids"), list):
            raise UsageError(
                f"{path} has an answer to other tokens under the name {one.key!r}; allowed: prompts that keep their "
                "names, and their chat template",
                hint="name another output file",
            )
        report.kept += 1
        following += _next_turn(text, one, line["answer_ids"])
    return asked, following


def _fitting(asked: list[_Asked], longest: int) -> tuple[list[_Asked], list[str]]:
    fitting = [one for one in asked if len(one.ids) < longest]
    return fitting, [one.key for one in asked if len(one.ids) >= longest]


# ---- asking ----------------------------------------------------------------------------------------------------------


def _answers(
    target: Target | Endpoint, text: Text, asked: list[_Asked], settings: _Settings, batch_size: int
) -> Iterator[tuple[_Asked, Continuation]]:
    requests = []
    for one in asked:
        temperature = settings.temperature(one.key)
        requests.append(
            Request(
                ids=one.ids,
                sampling=Sampling(temperature),
                max_new_tokens=min(settings.max_new_tokens, settings.limit - len(one.ids)),
                eos_ids=target.eos_ids,
                seed=seed_of(settings.seed, one.key, "answer"),
            )
        )
    if isinstance(target, Endpoint):
        found = target.continuations(requests, text, batch_size)
    else:
        found = continuations(target, requests, batch_size)
    for each in found:
        yield asked[each.index], each


def _line(one: _Asked, found: Continuation, settings: _Settings) -> dict[str, Any]:
    answered = Answer(one.key, one.prompt, tuple(one.ids), tuple(found.ids), settings.temperature(one.key))
    return line_of(answered, one.entry.category) | {"finish_reason": found.finish}
