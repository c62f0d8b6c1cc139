"""Prompts that the target makes up: its chat template is opened up to the user's words, and the target says those.

Knows nothing of answers. A chat model has read many more turns of users than it shows; drawn at a temperature near 1,
its user asks what users asked. Openings see to it that all kinds of prompts come up, long ones too.
"""

import math
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from outpace.decoding.loop import Request
from outpace.decoding.processors import processors_of
from outpace.decoding.prompts import Entry
from outpace.decoding.text import BROKEN, Text, cut_at
from outpace.errors import UsageError
from outpace.models.staging import Progress, silent
from outpace.models.target import Target
from outpace.training.continuations import Continuation, continuations, seed_of
from outpace.training.journal import Journal
from outpace.training.masks import end_of_turn, user_slot
from outpace.training.prompts import LEAST, Selection, Sieve
from outpace.verification.probabilities import Sampling

OPENINGS = Path(__file__).with_name("openings.toml")
MOST = 512
"""Tokens of a prompt; texts without an end cost as much as prompts of this length."""
ROUND = 16
"""So many times the batch are invented before what passes is written."""
TRIES = 8
"""So many prompts are invented for every one that is wanted, before a kind is given up."""


@dataclass(frozen=True)
class Kind:
    """One kind of prompt.

    Args:
        name: its category.
        share: of all prompts, against those of the other kinds; above 0.
        openings: how a prompt begins, one of these; an empty one leaves the beginning to the target.
        behind: written behind what the target said, one of these, for it to go on with: a passage, then what is asked
            about it. Nothing by default.
        least: so many tokens the target says before it may end its turn.
    """

    name: str
    share: float
    openings: tuple[str, ...]
    behind: tuple[str, ...] = ()
    least: int = 0


def read_kinds(path: Path = OPENINGS) -> list[Kind]:
    """The kinds of a TOML file, an array of tables ``kinds`` with the fields of ``Kind``; our own by default.

    Raises:
        UsageError: the file cannot be read, or a kind has a field too many, too few, or of a wrong kind.
    """
    try:
        said = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"the openings cannot be read from {path}: {error}") from error
    kinds = said.get("kinds")
    if not isinstance(kinds, list) or not kinds:
        raise UsageError(f"{path} has no kinds; allowed: one [[kinds]] table or more")
    return [_kind(one, f"kind {place} of {path}") for place, one in enumerate(kinds, 1)]


def _kind(said: Any, where: str) -> Kind:
    known = {one.name for one in fields(Kind)}
    given = said if isinstance(said, dict) else {}
    for name in [*(set(given) - known), *({"name", "share", "openings"} - set(given))]:
        raise UsageError(f"{where}: {name!r} is {'unknown' if name in given else 'missing'}; allowed: {sorted(known)}")
    lists = [given["openings"], given.get("behind", [])]
    strings = all(isinstance(one, list) and all(isinstance(part, str) for part in one) for one in lists)
    share, least = given["share"], given.get("least", 0)
    numbers = isinstance(share, int | float) and share > 0 and isinstance(least, int) and least >= 0
    if not (isinstance(given["name"], str) and strings and lists[0] and numbers):
        raise UsageError(
            f"{where} is {given}; allowed: a name, a share above 0, openings and behind as lists of strings"
        )
    return Kind(given["name"], float(share), tuple(lists[0]), tuple(lists[1]), least)


def invent_prompts(
    target: Target,
    text: Text,
    count: int,
    path: Path | None = None,
    *,
    kinds: Sequence[Kind] | None = None,
    seed: int = 0,
    temperature: float = 0.9,
    top_p: float = 0.95,
    least: int = LEAST,
    most: int = MOST,
    avoid: Sequence[Entry] = (),
    batch_size: int = 64,
    progress: Progress = silent,
) -> Selection:
    """Prompts of the target's own making, each once and within bounds; fewer than asked for only with a notice.

    A prompt that does not end within ``most`` tokens is rejected, and so is one that is no text. Every attempt is drawn
    by a seed of its own.

    Args:
        target: who makes them up.
        text: its tokenizer, with a chat template.
        count: how many, over all kinds, by their shares.
        path: write them there, a round at a time; a file that holds some already is gone on with.
        kinds: what kinds; our own by default.
        seed: names the draws.
        temperature, top_p: the law of the draws.
        least, most: bounds on the tokens of a prompt.
        avoid: prompts that none may be the same as.
        batch_size: how many are made up at once.
        progress: told how many there are.

    Raises:
        UsageError: an argument is out of range, there is no chat template, or the file is not one of these or was begun
            with other settings; before any work.
    """
    for name, value in (("count", count), ("batch_size", batch_size)):
        if value < 1:
            raise UsageError(f"{name} is {value}; allowed: 1 or more")
    if not 1 <= least <= most:
        raise UsageError(f"prompts of {least} to {most} tokens are asked for; allowed: from 1 up, the lesser one first")
    kinds = read_kinds() if kinds is None else kinds
    inventor = _Inventor(target, text, Sampling(temperature, top_p=top_p), seed, most, batch_size)
    wanted = shares([kind.share for kind in kinds], count)
    state = _State(kinds, wanted, Sieve(text, least, most, avoid), None if path is None else _opened(path, inventor))
    while tries := state.next_tries(ROUND * batch_size):
        progress(len(state.entries), count, "inventing prompts")
        state.take(tries, inventor.invent(tries))
    progress(len(state.entries), count, "inventing prompts")
    if missing := {kind.name: number for kind, number in zip(kinds, state.missing(), strict=True) if number}:
        warnings.warn(
            f"{sum(missing.values())} prompts too few were invented, as too many were rejected: "
            f"{', '.join(f'{name} lacks {number}' for name, number in missing.items())}",
            stacklevel=2,
        )
    return Selection(state.entries, state.rejected)


def shares(weights: Sequence[float], count: int) -> list[int]:
    """Whole numbers in these proportions whose sum is ``count``: the largest remainders are rounded up."""
    exact = [count * weight / math.fsum(weights) for weight in weights]
    found = [math.floor(share) for share in exact]
    rest = sorted(range(len(exact)), key=lambda place: (found[place] - exact[place], place))
    for place in rest[: count - sum(found)]:
        found[place] += 1
    return found


def _opened(path: Path, inventor: "_Inventor") -> Journal:
    sampling = inventor.sampling
    settings = {
        "target": inventor.target.fingerprint,
        "dtype": str(inventor.target.dtype).removeprefix("torch."),
        "seed": inventor.seed,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    return Journal(path, settings, "prompts")


@dataclass(frozen=True)
class _Try:
    """One attempt at a prompt: its kind, its number among those of that kind, and how its name is written."""

    kind: Kind
    number: int

    @property
    def key(self) -> str:
        return f"{self.kind.name} {self.number}"

    def pick(self, seed: int, among: Sequence[str], purpose: str) -> str:
        return among[seed_of(seed, self.key, purpose) % len(among)]


class _State:
    """What passed so far, of which kinds how many are still wanted, and what comes next."""

    def __init__(self, kinds: Sequence[Kind], wanted: list[int], sieve: Sieve, journal: Journal | None) -> None:
        self.kinds, self.wanted, self.sieve, self.journal = kinds, wanted, sieve, journal
        self.entries: list[Entry] = []
        self.unfit: Counter[str] = Counter()
        self.next = [0] * len(kinds)
        names = {kind.name: place for place, kind in enumerate(kinds)}
        for number, line in [] if journal is None else journal.lines:
            name, _, tried = str(line.get("id")).rpartition(" ")
            if name not in names or not tried.isdecimal() or not isinstance(line.get("prompt"), str):
                raise UsageError(
                    f"line {number} of {journal and journal.path} is no invented prompt of kinds {', '.join(names)}"
                )
            place = names[name]
            entry = Entry(str(line["id"]), number, name, (line["prompt"],))
            if self._count(place) < wanted[place] and self.sieve.passes(entry):
                self.entries.append(entry)
            self.next[place] = max(self.next[place], int(tried) + 1)

    @property
    def rejected(self) -> Counter[str]:
        return self.sieve.rejected + self.unfit

    def _count(self, place: int) -> int:
        return sum(entry.category == self.kinds[place].name for entry in self.entries)

    def missing(self) -> list[int]:
        """How many of each kind are still wanted."""
        return [max(0, number - self._count(place)) for place, number in enumerate(self.wanted)]

    def next_tries(self, most: int) -> list[_Try]:
        """A few more attempts than are missing, of all kinds alike; none where nothing is missing, or all in vain."""
        missing = self.missing()
        left = [max(0, TRIES * self.wanted[place] + TRIES - self.next[place]) for place in range(len(self.kinds))]
        going = [min(few + (few + 3) // 4, limit) if few else 0 for few, limit in zip(missing, left, strict=True)]
        if sum(going) > most:
            going = [min(few, math.ceil(most * few / sum(going))) for few in going]
        tries = []
        for place, number in enumerate(going):
            tries += [_Try(self.kinds[place], self.next[place] + step) for step in range(number)]
            self.next[place] += number
        return tries

    def take(self, tries: Sequence[_Try], found: Iterable[str | None]) -> None:
        """Keep what passes, in order of the attempts, as far as it is wanted."""
        left = dict(zip((kind.name for kind in self.kinds), self.missing(), strict=True))
        for one, words in zip(tries, found, strict=True):
            if left[one.kind.name] == 0:
                continue
            if words is None:
                self.unfit["no end, or no text"] += 1
                continue
            entry = Entry(one.key, 0, one.kind.name, (words,))
            if not self.sieve.passes(entry):
                continue
            left[one.kind.name] -= 1
            self.entries.append(entry)
            if self.journal is not None:
                self.journal.append({"id": one.key, "category": one.kind.name, "prompt": words})


class _Inventor:
    """Fills the user's slot of the template."""

    def __init__(self, target: Target, text: Text, sampling: Sampling, seed: int, most: int, batch_size: int) -> None:
        self.target, self.text, self.sampling, self.seed = target, text, sampling, seed
        self.batch_size = batch_size
        self.before, behind = user_slot(text)
        self.most = min(most, target.max_positions - len(self.before) - 1)
        self.ends = end_of_turn(text, target.eos_ids)
        ended = set(behind) & set(self.ends)
        # Without an end that is a token, what the template writes behind the user's words is one.
        written = text.decode(behind)
        self.stops = [written] if written and not ended else []

    def invent(self, tries: Sequence[_Try]) -> list[str | None]:
        """What each attempt came to; None where it has no end, or is no text."""
        openings = [one.pick(self.seed, one.kind.openings, "opening") for one in tries]
        found = self._said(openings, tries, "prompt")
        again = [place for place, one in enumerate(tries) if one.kind.behind and found[place]]
        asked = [f"{found[place]}{tries[place].pick(self.seed, tries[place].kind.behind, 'behind')}" for place in again]
        for place, words in zip(again, self._said(asked, [tries[place] for place in again], "question"), strict=True):
            found[place] = words
        return found

    def _said(self, starts: Sequence[str], tries: Sequence[_Try], purpose: str) -> list[str | None]:
        """Starts, and what the target says behind them up to the end of the turn."""
        requests, places = [], []
        for place, (start, one) in enumerate(zip(starts, tries, strict=True)):
            ids = self.before + self.text.tokenizer.encode(start, add_special_tokens=False)
            room = self.most + len(self.before) - len(ids)
            if one.kind.behind and purpose == "prompt":
                room = room * 3 // 4  # the rest is for what is asked about the passage
            least = one.kind.least if purpose == "prompt" and self.ends else 0
            if room > least:
                places.append(place)
                requests.append(self._request(ids, room, least, seed_of(self.seed, one.key, purpose)))
        found: list[str | None] = [None] * len(starts)
        for each in continuations(self.target, requests, self.batch_size):
            passage = bool(tries[places[each.index]].kind.behind) and purpose == "prompt"
            found[places[each.index]] = self._words(list(requests[each.index].ids), each, passage)
        return found

    def _request(self, ids: list[int], room: int, least: int, seed: int) -> Request:
        return Request(
            ids=ids,
            sampling=self.sampling,
            max_new_tokens=room,
            eos_ids=self.ends,
            seed=seed,
            stops=[self.text.stop_rule(self.stops)] if self.stops else (),
            processors=processors_of(prompt_length=len(ids), eos_ids=self.ends, min_new_tokens=least),
        )

    def _words(self, ids: list[int], said: Continuation, passage: bool) -> str | None:
        spoken = ids[len(self.before) :] + [token for token in said.ids if token not in self.ends]
        words = cut_at(self.text.decode(spoken), self.stops).strip()
        if said.finish == "length" and passage:
            words = words[: max(map(words.rfind, ".!?")) + 1]  # a passage may be cut, behind a whole sentence
        elif said.finish != "stop":
            return None
        return words if words and BROKEN not in words else None
