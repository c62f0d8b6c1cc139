"""Many prompts, answered in batches and written line by line; what stands answered is not asked again.

Knows nothing of turns or drafts: it hands prompts to ``stream`` and keeps the results. An output file begins with one
line of settings; every other line is one answered entry: ``id, category, turns, answers``, an answer having ``text,
token_ids, finish_reason, usage, speculation, timing``.
"""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Unpack

from outpace.decoding.generate import Piece, Result, stream
from outpace.decoding.options import Options, check
from outpace.decoding.prompts import Entry, Turn
from outpace.decoding.text import Message, Text, text_of
from outpace.drafters.drafter import Drafter
from outpace.errors import UsageError
from outpace.models.target import Target

FORMAT_VERSION = 1
BATCH_SIZE = 8

Status = Literal["answered", "kept", "too long", "failed"]


@dataclass(frozen=True)
class Outcome:
    """What became of an entry.

    Args:
        entry: the entry.
        status: ``answered`` just now; ``kept``: the output file had it; ``too long`` for the context, in its first turn
            or a later one; ``failed``: the target's logits were no distribution.
        answers: one a turn, for ``answered``.
        reason: what was wrong, for ``too long`` and ``failed``.
    """

    entry: Entry
    status: Status
    answers: tuple[Result, ...] = ()
    reason: str | None = None


@dataclass
class _Asked:
    """An entry on its way: the ids of its next turn, and the answers to those before."""

    entry: Entry
    ids: list[int]
    answers: list[Result] = field(default_factory=list)


def answer(
    target: Target,
    drafter: Drafter | None,
    entries: Sequence[Entry],
    *,
    output: Path | None = None,
    told: Callable[[int], None] | None = None,
    begun_with: Mapping[str, Any] | None = None,
    **options: Unpack[Options],
) -> Iterator[Outcome]:
    """Answer every entry, ``batch_size`` of them at once (8 by default); an entry's later turns see its first answers.

    Several turns become a dialogue in the chat template; without one, or ``raw``, they are joined by line breaks.

    Args:
        target, drafter, options: as for ``generate``; ``trace`` is for single prompts.
        entries: from ``read_prompts``.
        output: append every answered entry to this file, a whole line at a time and synced to the disk. A file that is
            there already is gone on with: its entries are kept, and a last line that was torn is dropped. Entries that
            are too long or fail are not written, and are tried again by the next run.
        told: called with the number of new tokens whenever there are some.
        begun_with: the settings that the output file has to be begun with; by default those of this very call. A plan
            whose parts go to one file says itself.

    Returns:
        One outcome an entry, in order of their ends. Shorter prompts are asked first, as prompts that are read together
        are padded to the longest of them.

    Raises:
        UsageError: an option, an entry or the output file is refused, by the call itself, before any work: ids beyond
            the vocabulary, strings without a tokenizer, a file that is no output of such a run, was begun with other
            settings (``batch_size`` may change), or has one of the ids with another prompt.
        WeightsError: a string is given and the target's tokenizer cannot be read.
    """
    check(options, drafts=drafter is not None)
    if options.get("trace") is not None:
        raise UsageError(
            f"trace is {options['trace']}; allowed: a trace of one prompt", hint="leave it out for a file of prompts"
        )
    text = _text(target, entries)
    every = [_Asked(entry, _first_ids(target, text, entry, options)) for entry in entries]
    begun = settings(target, drafter, options) if begun_with is None else dict(begun_with)
    log = None if output is None else AnswerLog(output, begun)
    outcomes: list[Outcome] = []
    waiting: list[_Asked] = []
    for asked in every:
        reason = _too_long(target, asked, options)
        if log is not None and log.has(asked.entry):
            outcomes.append(Outcome(asked.entry, "kept"))
        elif reason is None:
            waiting.append(asked)
        else:
            outcomes.append(Outcome(asked.entry, "too long", reason=reason))
    waiting.sort(key=lambda asked: len(asked.ids))
    return _answer(target, drafter, text, outcomes, waiting, log, told, options)


def _answer(
    target: Target,
    drafter: Drafter | None,
    text: Text | None,
    outcomes: list[Outcome],
    waiting: list[_Asked],
    log: "AnswerLog | None",
    told: Callable[[int], None] | None,
    options: Options,
) -> Iterator[Outcome]:
    yield from outcomes
    together: Options = {**options, "batch_size": options.get("batch_size") or BATCH_SIZE}
    going = waiting
    while going:
        again: list[_Asked] = []
        for asked, result in _results(target, drafter, going, told, together):
            outcome = _judge(target, text, asked, result, options)
            if outcome is None:
                again.append(asked)
                continue
            if log is not None and outcome.status == "answered":
                log.append(record(outcome))
            yield outcome
        going = again


def _results(
    target: Target,
    drafter: Drafter | None,
    going: list[_Asked],
    told: Callable[[int], None] | None,
    options: Options,
) -> Iterator[tuple[_Asked, Result]]:
    """What is said to every entry's next turn, as soon as it stands."""
    for part in stream(target, drafter, [asked.ids for asked in going], **options):
        if isinstance(part, Piece):
            if told is not None and part.ids:
                told(len(part.ids))
            if part.result is not None:
                yield going[part.index], part.result


def _judge(target: Target, text: Text | None, asked: _Asked, result: Result, options: Options) -> Outcome | None:
    """What became of an entry by one more answer; None where its next turn is to be asked, whose ids it then has."""
    asked.answers.append(result)
    entry, said = asked.entry, len(asked.answers)
    if result.error is not None:
        return Outcome(entry, "failed", reason=_of_turn(entry, said, result.error.partition("\n")[0]))
    if said == len(entry.turns):
        return Outcome(entry, "answered", tuple(asked.answers))
    assert text is not None  # several turns are strings
    spoken = [turn for turn in entry.turns[: said + 1] if isinstance(turn, str)]
    asked.ids = _dialogue(text, spoken, [one.text for one in asked.answers], options)
    reason = _too_long(target, asked, options)
    return None if reason is None else Outcome(entry, "too long", reason=reason)


def _text(target: Target, entries: Sequence[Entry]) -> Text | None:
    """The target's tokenizer, where an entry has words."""
    if all(_is_ids(turn) for entry in entries for turn in entry.turns):
        return None
    if target.folder is None:
        raise UsageError(f"the target {target.name!r} has no tokenizer; allowed: prompts of token ids")
    return text_of(target.folder)


def _first_ids(target: Target, text: Text | None, entry: Entry, options: Options) -> list[int]:
    """The ids of an entry's first turn.

    Raises:
        UsageError: they are not ids of the target, or cannot be made; the entry is named.
    """
    first = entry.turns[0]
    if isinstance(first, list) and _is_ids(first):
        ids = [token for token in first if isinstance(token, int)]
    else:
        assert text is not None
        try:
            ids = text.encode(first, raw=options.get("raw", False))
        except UsageError as error:
            raise UsageError(f"{entry.called}: {error.message}", hint=error.hint) from error
    wrong = [token for token in ids if not 0 <= token < target.vocab_size]
    if wrong:
        raise UsageError(f"{entry.called}: the prompt holds the id {wrong[0]}; allowed: 0 to {target.vocab_size - 1}")
    return ids


def _dialogue(text: Text, turns: list[str], answers: list[str], options: Options) -> list[int]:
    """The ids of turns with the answers between them."""
    spoken = [part for pair in zip(turns, [*answers, ""], strict=True) for part in pair][:-1]
    if options.get("raw", False) or not text.tokenizer.chat_template:
        return text.encode("\n".join(spoken), raw=True)
    messages: list[Message] = [
        {"role": "assistant" if place % 2 else "user", "content": part} for place, part in enumerate(spoken)
    ]
    return text.encode(messages)


def _too_long(target: Target, asked: _Asked, options: Options) -> str | None:
    """Why a turn cannot be asked, if the context has no room for it and one token more."""
    if len(asked.ids) + (options.get("max_new_tokens") != 0) <= target.max_positions:
        return None
    words = f"{len(asked.ids)} tokens leave no room in the context of {target.max_positions}"
    return _of_turn(asked.entry, len(asked.answers) + 1, words)


def _of_turn(entry: Entry, number: int, words: str) -> str:
    return words if len(entry.turns) == 1 else f"turn {number}: {words}"


def _is_ids(turn: Turn) -> bool:
    return isinstance(turn, list) and all(isinstance(part, int) for part in turn)


# ---- what is written -----------------------------------------------------------------------------------------------


def as_record(result: Result) -> dict[str, Any]:
    """A result as JSON has it."""
    listed = {} if result.logprobs is None else {"logprobs": [asdict(one) for one in result.logprobs]}
    whole = {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "usage": {"prompt_tokens": result.prompt_tokens, "completion_tokens": len(result.token_ids)},
        "speculation": asdict(result.stats.speculation),
        "timing": asdict(result.stats.timing),
    }
    plain: dict[str, Any] = _plain(whole | listed)
    return plain


def record(outcome: Outcome) -> dict[str, Any]:
    """The output line of an answered entry."""
    entry = outcome.entry
    return {
        "id": entry.key,
        "category": entry.category,
        "turns": list(entry.turns),
        "answers": [as_record(result) for result in outcome.answers],
    }


def settings(target: Target, drafter: Drafter | None, options: Options) -> dict[str, Any]:
    """What answers depend on: the target, its dtype, the drafter and all options but the batch size."""
    chosen: dict[str, Any] = {name: value for name, value in options.items() if name not in ("batch_size", "trace")}
    whole: dict[str, Any] = _plain(
        {
            "target": target.fingerprint,
            "dtype": str(target.dtype).removeprefix("torch."),
            "drafter": None if drafter is None else drafter.name,
            **chosen,
        }
    )
    return whole


def _plain(value: Any) -> Any:
    """What JSON can hold: names for functions and objects, words for what is no finite number."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value) if isinstance(value, Path) else getattr(value, "__name__", None) or type(value).__name__


class AnswerLog:
    """An output file: whole lines only, whatever interrupts the writing.

    Args:
        path: where to write; the file is made, or gone on with.
        settings: what its first line says, or has to say.

    Raises:
        UsageError: the file cannot be read or written, is no such file, or was begun with other settings.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path, self.settings = path, settings
        self.turns: dict[str, list[Turn]] = {}
        self.whole = 0
        self.torn = True  # until it was made sure that nothing stands behind the last whole line
        try:
            path.open("ab").close()
            lines = path.read_bytes().splitlines(keepends=True)
        except OSError as error:
            raise UsageError(f"the answers cannot be written to {path}: {error.strerror}") from error
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                break
            self._read(line, number)
            self.whole += len(line)

    def has(self, entry: Entry) -> bool:
        """Whether an entry stands answered.

        Raises:
            UsageError: its id does, with other words.
        """
        if entry.key not in self.turns:
            return False
        if self.turns[entry.key] != list(entry.turns):
            raise UsageError(
                f"{self.path} has an answer to other words under the id {entry.key!r} of line {entry.line}; "
                "allowed: prompts that keep their ids",
                hint="name another output file",
            )
        return True

    def append(self, answered: dict[str, Any]) -> None:
        """Write one line, behind the settings if it is the first one, and wait until the disk has it."""
        lines = [answered] if self.whole else [{"format_version": FORMAT_VERSION, "settings": self.settings}, answered]
        block = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
        with self.path.open("r+b") as file:
            if self.torn:
                file.truncate(self.whole)
            file.seek(self.whole)
            file.write(block)
            file.flush()
            os.fsync(file.fileno())
        self.whole, self.torn = self.whole + len(block), False

    def _read(self, line: bytes, number: int) -> None:
        try:
            found = json.loads(line)
            if number == 1:
                begun = dict(found["settings"])
            else:
                self.turns[found["id"]] = found["turns"]
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"line {number} of {self.path} is not of outpace's answers; allowed: a new file, or one to go on with",
                hint="name another output file",
            ) from error
        if number == 1:
            self._compare(begun, found.get("format_version"))

    def _compare(self, begun: dict[str, Any], version: object) -> None:
        pairs = {"format_version": (version, FORMAT_VERSION)} | {
            name: (begun.get(name, "not given"), self.settings.get(name, "not given"))
            for name in sorted({*begun, *self.settings})
        }
        for name, (before, now) in pairs.items():
            if before != now:
                raise UsageError(
                    f"{self.path} was begun with {name} {before!r}, and now it is {now!r}; allowed: the same settings",
                    hint="name another output file, or remove this one",
                )
