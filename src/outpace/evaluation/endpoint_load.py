"""How fast a server answers when so many ask at once, and whether one that drafts beats one that does not.

Knows nothing of how a server is spoken to, or of how results are shown.

A stream of prompts is asked so many at a time, the next one as soon as one is answered, in rounds (``rounds.py``); two
servers meet every stream one behind the other. A request that failed is counted and the others go on; rates, speed-ups
and counters are of the streams in which none did. A server that answers none of a whole stream is not asked again.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

from outpace.decoding.prompts import Entry, Turn
from outpace.errors import UsageError
from outpace.evaluation.benchmark import Clock, Protocol
from outpace.evaluation.counters import Counters, read
from outpace.evaluation.endpoint import Endpoint
from outpace.evaluation.rounds import in_rounds, streams
from outpace.evaluation.sse import Answer
from outpace.models.staging import Progress

Api = Literal["chat", "completions"]
APIS: dict[str, str] = {"chat": "/chat/completions", "completions": "/completions"}
WARM = 8
"""New tokens of the unmeasured answer with which every server begins."""


@dataclass(frozen=True)
class Asked:
    """One prompt as a server reads it: its name and kind, and what of the body says it."""

    key: str
    category: str | None
    said: dict[str, Any] = field(hash=False)


@dataclass(frozen=True)
class Server:
    """Who is asked, by which of its two ways, and for which model."""

    endpoint: Endpoint
    model: str
    api: Api

    def body(self, protocol: Protocol, temperature: float) -> dict[str, Any]:
        """What every request says besides its prompt; what the API of OpenAI has no word for only where asked for."""
        given: dict[str, Any] = {
            "model": self.model,
            "max_tokens": protocol.max_new_tokens,
            "temperature": temperature,
        }
        given |= {} if protocol.top_p == 1 else {"top_p": protocol.top_p}
        given |= {} if protocol.seed is None else {"seed": protocol.seed}
        given |= {"top_k": protocol.top_k} if protocol.top_k else {}
        return given | ({"min_p": protocol.min_p} if protocol.min_p else {})


@dataclass(frozen=True)
class Served:
    """A stream answered once.

    Args:
        seconds: from the first request to the last answer.
        answers: one a prompt, failed ones among them; none where the server was not asked any more.
        counted: what its counters gained meanwhile.
    """

    seconds: float
    answers: list[Answer]
    counted: Counters | None = None

    @property
    def whole(self) -> bool:
        """Whether every prompt was answered, and with a token among all of them: without one there is no rate."""
        return any(one.tokens for one in self.answers) and all(one.error is None for one in self.answers)

    @property
    def rate(self) -> float:
        """Tokens a second of all answers together."""
        return sum(one.tokens for one in self.answers) / self.seconds


@dataclass(frozen=True)
class Answered:
    """All streams: ``ours`` and ``theirs`` by concurrency and round; ``theirs`` is empty without a second server."""

    ours: dict[int, list[Served]]
    theirs: dict[int, list[Served]]
    rounds: int
    asked_rounds: int
    seconds: float


def prompts_of(entries: Sequence[Entry], api: str) -> list[Asked]:
    """The first turn of every prompt, as this way of asking has it.

    Args:
        entries: the prompts.
        api: ``chat`` (words or messages, through the server's own template) or ``completions`` (words or ids as they
            are).

    Raises:
        UsageError: there is no such way, or it has no room for a prompt of this kind.
    """
    if api not in APIS:
        raise UsageError(f"api is {api!r}; allowed: {', '.join(APIS)}")
    return [Asked(entry.key, entry.category, _said(entry, entry.turns[0], api)) for entry in entries]


def _said(entry: Entry, turn: Turn, api: str) -> dict[str, Any]:
    ids = not isinstance(turn, str) and all(isinstance(part, int) for part in turn)
    if api == "chat":
        if ids:
            raise UsageError(
                f"prompt {entry.key!r} (line {entry.line}) is token ids and api is 'chat'; allowed: words or messages",
                hint="--api completions takes ids",
            )
        return {"messages": [{"role": "user", "content": turn}] if isinstance(turn, str) else turn}
    if not ids and not isinstance(turn, str):
        raise UsageError(
            f"prompt {entry.key!r} (line {entry.line}) is messages and api is 'completions'; allowed: words or ids",
            hint="--api chat takes messages",
        )
    return {"prompt": turn}


def measure(
    server: Server,
    baseline: Server | None,
    asked: Sequence[Asked],
    levels: Sequence[int],
    protocol: Protocol,
    temperature: float,
    progress: Progress | None = None,
    clock: Clock = time.perf_counter,
) -> Answered:
    """Ask the streams of every level, round by round, as often as the budget allows.

    Args:
        server, baseline: who is measured, and a plain server to compare it to, if any.
        asked: the prompts, at least one.
        levels: concurrencies.
        protocol: its ``repeats`` is the most rounds; ``concurrency`` is not read.
        temperature: of every answer.
        progress: told of streams done in this round.
        clock: seconds, rising.

    Raises:
        UsageError: a server does not answer the first, unmeasured request.
    """
    begin = clock()
    contestants = [server] if baseline is None else [server, baseline]
    for one in contestants:
        warm = {"max_tokens": min(WARM, protocol.max_new_tokens)}
        one.endpoint.answered(APIS[one.api], one.body(protocol, temperature) | asked[0].said | warm)
    offered = {level: streams(asked, level, protocol.repeats) for level in levels}
    total, ran = len(levels) * len(contestants), 0
    silent: set[int] = set()

    def once(level: int, who: int, place: int) -> Served:
        nonlocal ran
        if progress is not None:
            progress(ran % total, total, f"round {place + 1}, {level} at once")
        ran += 1
        if who in silent:
            return Served(0.0, [])
        one = contestants[who]
        body = one.body(protocol, temperature)
        found = _stream(one, [body | prompt.said for prompt in offered[level][place]], level, clock)
        if all(answer.error is not None for answer in found.answers):
            silent.add(who)
        return found

    ways = {level: list(range(len(contestants))) for level in levels}
    found = in_rounds(ways, protocol.repeats, protocol.budget_s - (clock() - begin), once, clock=clock)
    return Answered(
        ours={level: found[level][0] for level in levels},
        theirs={} if baseline is None else {level: found[level][1] for level in levels},
        rounds=min(len(one[0]) for one in found.values()),
        asked_rounds=protocol.repeats,
        seconds=clock() - begin,
    )


def _stream(server: Server, bodies: Sequence[dict[str, Any]], level: int, clock: Callable[[], float]) -> Served:
    """Ask all of a stream, so many at once; an interrupt ends the requests under way."""
    before = read(server.endpoint.metrics())
    begin = clock()
    with ThreadPoolExecutor(level) as pool:
        waiting = [pool.submit(server.endpoint.ask, APIS[server.api], body) for body in bodies]
        try:
            answers = [one.result() for one in waiting]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            server.endpoint.hang_up()
            raise
    seconds = clock() - begin
    after = None if before is None else read(server.endpoint.metrics())
    counted = None if before is None or after is None else after.since(before)
    return Served(seconds, answers, counted)
