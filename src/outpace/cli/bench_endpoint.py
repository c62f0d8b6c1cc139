"""outpace bench --endpoint: how fast a server answers, and whether one that drafts beats one that does not.

Knows nothing of how it is measured; parses, calls, prints.
"""

import os
from collections.abc import Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from outpace.cli.bench_show import number, show
from outpace.cli.pull import progress_bar
from outpace.decoding.options import check
from outpace.decoding.prompts import Entry
from outpace.errors import UsageError
from outpace.evaluation import endpoint_load
from outpace.evaluation.benchmark import Protocol
from outpace.evaluation.endpoint import Endpoint
from outpace.evaluation.endpoint_load import Answered, Server, prompts_of
from outpace.evaluation.endpoint_outcome import EndpointRow, endpoint_findings, endpoint_rows, endpoint_verdict
from outpace.evaluation.load_outcome import as_plain
from outpace.evaluation.machine import machine, versions

FORMAT_VERSION = 1
APIS = " or ".join(endpoint_load.APIS)
KEY = "OPENAI_API_KEY"
HOW = (
    "streams of prompts, so many at once, the next one as soon as one is answered, in rounds; two servers one behind "
    "the other on the same streams; answers streamed and timed at the client, the connection made before; first token: "
    "from the request to the first piece of text; milliseconds a token: from there to the last piece, by the tokens "
    "behind the first one as the server counts them; medians over answers, rates over streams without a failure, with "
    "95 % bootstrap intervals; speed-ups are ratios of median tokens per second, paired by stream; drafting by the "
    "server's counters before and after, or by the answers' own timings"
)
LOCAL = (
    *("target", "draft", "dtype", "device", "lane", "trust_remote_code", "num_draft_tokens", "tree", "depth", "plan"),
    *("rule", "probe"),
)
"""Flags of decoding here, which say nothing to a server."""
REMOTE = ("baseline_endpoint", "model", "api", "timeout")
"""Flags that mean something beside --endpoint alone."""


@dataclass(frozen=True)
class Servers:
    """Who is to be asked; every field is the flag of the same name."""

    endpoint: str
    baseline_endpoint: str | None
    model: str | None
    api: str
    timeout_s: float

    def opened(self) -> list[Server]:
        """The server and the baseline, if any: reached, and sure of their model.

        Raises:
            UsageError: an address is none, a server cannot be reached, or the model is not served.
        """
        key = os.environ.get(KEY)
        found = []
        named = self.model
        for name, url in (("endpoint", self.endpoint), ("baseline-endpoint", self.baseline_endpoint)):
            if url is not None:
                there = Endpoint(url, name=name, api_key=key, timeout_s=self.timeout_s)
                found.append(Server(there, there.model(named), "chat" if self.api == "chat" else "completions"))
        return found


def refuse_others(given: Set[str]) -> None:
    """Refuse flags that mean nothing here rather than pass over them.

    Args:
        given: the flags that were given another value than their default, by name.

    Raises:
        UsageError: one of decoding here beside ``--endpoint``, or one of servers without it.
    """
    served = "endpoint" in given
    for name in LOCAL if served else REMOTE:
        if name in given:
            beside = "beside --endpoint; allowed: without it" if served else "without --endpoint; allowed: beside it"
            raise UsageError(f"--{name.replace('_', '-')} was given {beside}")


def bench_endpoint(
    servers: Servers,
    entries: Sequence[Entry],
    levels: Sequence[int],
    protocol: Protocol,
    temperatures: Sequence[float],
    prompts: Path | None,
    json_output: bool,
) -> None:
    """Measure and show; exit code 1 for findings.

    Raises:
        UsageError: as for ``Servers.opened``, ``prompts_of``, ``endpoint_load.measure`` and ``check``; or several
            temperatures.
    """
    if len(temperatures) > 1:
        raise UsageError(f"temperature is {temperatures}; allowed beside --endpoint: one")
    check(protocol.options(None, temperatures[0]))
    asked = prompts_of(entries, servers.api)
    opened = servers.opened()
    baseline = opened[1] if len(opened) > 1 else None
    with progress_bar() as progress:
        answered = endpoint_load.measure(opened[0], baseline, asked, levels, protocol, temperatures[0], progress)
    shown = endpoint_rows(answered)
    said = endpoint_findings(answered, shown)
    verdict, point = endpoint_verdict(answered, shown)
    about = {
        "how": HOW,
        "endpoint": opened[0].endpoint.url,
        "model": opened[0].model,
        "baseline_endpoint": None if baseline is None else baseline.endpoint.url,
        "baseline_model": None if baseline is None else baseline.model,
        "api": servers.api,
        "timeout_s": servers.timeout_s,
        "temperature": temperatures[0],
        "concurrency": list(levels),
        "source": "outpace" if prompts is None else prompts.name,
        "prompts": len(asked),
        "rounds": answered.rounds,
        "seconds": answered.seconds,
    }
    document: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "machine": machine(),
        "versions": versions(),
        "protocol": asdict(protocol) | about,
        "results": [asdict(row) for row in shown],
        "verdict": verdict,
        "break_even": as_plain(point),
        "findings": said,
    }
    show(
        document,
        [endpoint_table(shown, opened)],
        [*_notes(answered, shown, protocol, temperatures[0]), *said],
        json_output,
    )
    if said:
        raise typer.Exit(1)


def _notes(answered: Answered, shown: Sequence[EndpointRow], protocol: Protocol, temperature: float) -> list[str]:
    notes = []
    if answered.rounds < protocol.repeats:
        notes.append(
            f"{answered.rounds} of {protocol.repeats} rounds: the budget of {protocol.budget_s:g} s held no more"
        )
    if not all(row.counted for row in shown):
        notes.append("a server does not count its tokens: pieces of text were counted, and one may hold several")
    if all(row.drafting is None for row in shown):
        notes.append("nothing is known of drafts: the server has no such counters, or drafts nothing")
    elif any(row.drafting is not None and row.drafting["others"] for row in shown):
        notes.append("the server answered others meanwhile: acceptance is not of these requests alone")
    shares = [row.same_texts for row in shown if row.same_texts is not None]
    if shares and temperature == 0:  # texts that are drawn differ without meaning anything
        notes.append(f"both servers said the same text to {min(shares):.0%} of the prompts or more")
    return notes


def endpoint_table(shown: Sequence[EndpointRow], opened: Sequence[Server]) -> Table:
    """The levels for people."""
    versus = len(opened) > 1
    title = f"{opened[0].model} at {opened[0].endpoint.url}"
    title += f", beside {opened[1].model} at {opened[1].endpoint.url}" if versus else ""
    drawn = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    columns = ["at\nonce", "asked", "failed", "first\ntoken ms", "ms a\ntoken", "tok/s"]
    columns += ["baseline\nms a token", "baseline\ntok/s", "speed-up"] if versus else []
    for column in [*columns, "accepted\nof drafted", "tokens\na forward"]:
        drawn.add_column(column, justify="right", no_wrap=True)
    for row in shown:
        drafting = row.drafting or {}
        cells = [
            str(row.concurrency),
            str(row.requests),
            str(row.failed + (row.baseline_failed or 0)),
            _with(row.first_token_ms, None if versus else row.first_token_ms_ci, ".0f"),
            _with(row.ms_per_token, None if versus else row.ms_per_token_ci, ".1f"),
            _with(row.tokens_per_second, None if versus else row.tokens_per_second_ci, ".1f"),
        ]
        if versus:
            cells += [
                number(row.baseline_ms_per_token, ".1f"),
                number(row.baseline_tokens_per_second, ".1f"),
                row.figure,
            ]
        cells += [number(drafting.get("accepted_share"), ".0%"), number(drafting.get("tau"), ".2f")]
        drawn.add_row(*cells)
    return drawn


def _with(value: float | None, between: tuple[float, float] | None, form: str) -> str:
    interval = "" if between is None else f" [{between[0]:{form}}, {between[1]:{form}}]"
    return number(value, form) + interval
