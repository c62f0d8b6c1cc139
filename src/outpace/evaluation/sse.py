"""A streamed answer put together: lines of server-sent events in; pieces of text, count of tokens and faults out.

Knows nothing of sockets: the time of every event is passed in.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

DONE = "[DONE]"
SPOKEN = ("content", "reasoning_content", "reasoning")
"""Where engines put text in a chat's delta; thoughts are tokens like others."""


class Failed(Exception):
    """A request that came to nothing, in words for people; ``status`` is that of HTTP where there was one."""

    def __init__(self, words: str, status: int | None = None) -> None:
        super().__init__(words)
        self.status = status


@dataclass(frozen=True)
class Answer:
    """One request and what came of it.

    Args:
        first_s, last_s: seconds from the request to the first and to the last piece of text; None where none came.
        tokens: as the server counts them, or else the pieces; ``counted`` says whether the server did.
        pieces: pieces of text; one may hold several tokens.
        text: all of them.
        drafted, accepted: drafted tokens, where the answer itself tells (``timings`` of llama.cpp); else None.
        error: why it failed; None for a whole answer.
    """

    first_s: float | None = None
    last_s: float | None = None
    tokens: int = 0
    counted: bool = True
    pieces: int = 0
    text: str = ""
    drafted: int | None = None
    accepted: int | None = None
    error: str | None = None

    @property
    def pace_s(self) -> float | None:
        """Seconds a token behind the first one; None for an answer that came in one piece, which tells no pace."""
        if self.first_s is None or self.last_s is None or self.pieces < 2:
            return None
        return (self.last_s - self.first_s) / (self.tokens - 1)


def events(lines: Iterable[bytes]) -> Iterator[str]:
    """The data of every event, up to ``[DONE]``; comments, names and ids of events are passed over.

    Source: WHATWG HTML, server-sent events, interpretation of an event stream.
    """
    data: list[str] = []
    for raw in lines:
        line = raw.decode("utf-8", errors="replace").rstrip("\r\n")
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            event, data = "\n".join(data), []
            yield event
            if event.strip() == DONE:
                return


@dataclass
class Heard:
    """What has been heard of one answer so far."""

    times: list[float] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    usage: int | None = None
    timings: Mapping[str, Any] = field(default_factory=dict)
    ended: bool = False

    def take(self, event: str, seconds: float) -> None:
        """One event, and when it came.

        Raises:
            Failed: it cannot be read, or says that the server gave up.
        """
        if event.strip() == DONE:
            self.ended = True
            return
        try:
            said = json.loads(event)
            if not isinstance(said, dict):
                raise TypeError
        except (ValueError, TypeError, RecursionError) as error:
            raise Failed(f"its stream is broken: {short(event)!r} is no JSON object") from error
        if said.get("error"):
            raise Failed(f"it gave up: {message(said)}")
        piece = "".join(map(_spoken, _list(said.get("choices"))))
        self.ended |= any(choice.get("finish_reason") for choice in _list(said.get("choices")))
        if piece:
            self.times.append(seconds)
            self.text.append(piece)
        usage, timings = said.get("usage"), said.get("timings")
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            self.usage = usage["completion_tokens"]
        if isinstance(timings, dict):
            self.timings = timings

    def judge(self, limit: int) -> None:
        """Whether the answer is whole and its count of tokens can be right.

        Args:
            limit: tokens that were asked for at most.

        Raises:
            Failed: it is not, or cannot be.
        """
        if not self.ended:
            raise Failed("its stream ended before the answer did")
        if self.usage is not None and not len(self.text) <= self.usage <= limit:
            raise Failed(
                f"its usage counts {self.usage} tokens, which cannot be right: {len(self.text)} pieces of text came, "
                f"and {limit} tokens were asked for at most"
            )

    def answer(self, error: str | None = None) -> Answer:
        """All that was heard."""
        return Answer(
            first_s=self.times[0] if self.times else None,
            last_s=self.times[-1] if self.times else None,
            tokens=len(self.text) if self.usage is None else self.usage,
            counted=self.usage is not None,
            pieces=len(self.text),
            text="".join(self.text),
            drafted=_count(self.timings, "draft_n"),
            accepted=_count(self.timings, "draft_n_accepted"),
            error=error,
        )


def message(said: Any) -> str:
    """What a server says of a fault: the words in whichever place it has for them."""
    while isinstance(said, dict):
        inner = [said[name] for name in ("error", "message", "detail") if said.get(name)]
        if not inner:
            break
        said = inner[0]
    return short(said if isinstance(said, str) else json.dumps(said))


def short(words: str) -> str:
    """The beginning of a long text, on one line."""
    line = " ".join(words.split())
    return line if len(line) <= 200 else f"{line[:200]}…"


def _spoken(choice: Mapping[str, Any]) -> str:
    delta = choice.get("delta")
    parts = [choice.get("text")] + ([delta.get(name) for name in SPOKEN] if isinstance(delta, dict) else [])
    return next((part for part in parts if isinstance(part, str) and part), "")


def _list(value: Any) -> list[dict[str, Any]]:
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


def _count(timings: Mapping[str, Any], name: str) -> int | None:
    value = timings.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
