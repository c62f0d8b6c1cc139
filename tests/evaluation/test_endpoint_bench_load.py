"""Many requests at once: how many, which prompts, failures counted, and what the answers say."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from outpace.decoding.prompts import Entry
from outpace.errors import UsageError
from outpace.evaluation.benchmark import Protocol
from outpace.evaluation.endpoint import Endpoint
from outpace.evaluation.endpoint_load import Answered, Asked, Served, Server, measure, prompts_of
from outpace.evaluation.endpoint_outcome import (
    drafting_of,
    endpoint_findings,
    endpoint_rows,
    endpoint_verdict,
)
from outpace.evaluation.sse import Answer
from pages import vllm
from servers import Reply, Scripted, scripted, words

PROTOCOL = Protocol(budget_s=60.0, repeats=2, max_new_tokens=8)


def prompts(count: int = 4) -> list[Asked]:
    return prompts_of([Entry(f"q{place}", place, None, (f"say {place}",)) for place in range(count)], "chat")


def at(server: Scripted) -> Server:
    return Server(Endpoint(server.url, timeout_s=5.0), "tiny", "chat")


def run(server: Scripted, baseline: Scripted | None = None, levels: tuple[int, ...] = (1, 3), **more: Any) -> Answered:
    other = None if baseline is None else at(baseline)
    return measure(at(server), other, prompts(), levels, replace(PROTOCOL, **more), 0.0)


# ---- asking --------------------------------------------------------------------------------------------------------


def test_so_many_at_once_and_no_more() -> None:
    """At three at once every third request waits for two others: it would wait for ever where fewer are sent."""
    gate = threading.Barrier(3)

    def script(reply: Reply, asked: dict[str, Any]) -> None:
        if asked["order"]:  # the first one is the unmeasured one
            gate.wait(timeout=10)
        words(reply, asked)

    with scripted(script) as server:
        found = run(server, levels=(3,), repeats=1)
    assert server.most == 3 and len(server.asked) == 1 + 6
    assert [one.error for one in found.ours[3][0].answers] == [None] * 6


def test_levels_and_rounds_go_through_the_prompts_in_turn() -> None:
    with scripted() as server:
        found = run(server, levels=(1,), repeats=3)
    said = [asked["messages"][0]["content"] for asked in server.asked]
    assert said == ["say 0", "say 0", "say 1", "say 2", "say 3", "say 0", "say 1"]
    assert (found.rounds, found.asked_rounds, len(found.ours[1])) == (3, 3, 3)


def test_two_servers_meet_the_same_streams() -> None:
    with scripted() as server, scripted() as baseline:
        found = run(server, baseline, levels=(2, 1))
    assert [asked["messages"] for asked in server.asked[:1]] == [asked["messages"] for asked in baseline.asked[:1]]
    ours, theirs = (sorted(asked["messages"][0]["content"] for asked in one.asked) for one in (server, baseline))
    assert ours == theirs and set(found.ours) == set(found.theirs) == {1, 2}
    [first, second] = endpoint_rows(found)
    assert (first.concurrency, second.concurrency, first.same_texts, first.failed) == (1, 2, 1.0, 0)
    assert first.speedup is not None and first.speedup > 0 and first.baseline_failed == 0


def test_a_budget_ends_rounds_but_not_the_first() -> None:
    with scripted() as server:
        assert run(server, levels=(1,), repeats=5, budget_s=1e-3).rounds == 1


def test_what_every_request_says() -> None:
    law = Protocol(max_new_tokens=9, top_k=5, top_p=0.9, min_p=0.1, seed=7)
    server = Server(Endpoint("http://here"), "m", "chat")
    whole = {"model": "m", "max_tokens": 9, "temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "seed": 7}
    assert server.body(law, 0.7) == whole
    assert server.body(Protocol(max_new_tokens=9), 0.0) == {"model": "m", "max_tokens": 9, "temperature": 0.0}


def test_prompts_by_each_way_of_asking() -> None:
    messages = [{"role": "user", "content": "hi"}]
    said, ids, chat = (Entry("k", 3, "x", (turn,)) for turn in ("hi", [1, 2], messages))
    assert [one.said for one in prompts_of([said, chat], "chat")] == [{"messages": messages}] * 2
    assert [one.said for one in prompts_of([said, ids], "completions")] == [{"prompt": "hi"}, {"prompt": [1, 2]}]
    with pytest.raises(UsageError, match=r"prompt 'k' \(line 3\) is token ids and api is 'chat'; allowed: words or"):
        prompts_of([ids], "chat")
    with pytest.raises(UsageError, match=r"prompt 'k' \(line 3\) is messages and api is 'completions'; allowed: words"):
        prompts_of([chat], "completions")
    with pytest.raises(UsageError, match="api is 'voice'; allowed: chat, completions"):
        prompts_of([said], "voice")


def test_a_server_that_cannot_answer_at_all_is_refused_before_work() -> None:
    with (
        scripted(lambda reply, asked: reply.status(400, {"error": {"message": "no chat template"}})) as server,
        pytest.raises(UsageError, match=r"endpoint is http.*: 400 Bad Request: no chat template"),
    ):
        run(server)
    assert len(server.asked) == 1


# ---- failures ------------------------------------------------------------------------------------------------------


def fails_at(*orders: int) -> Any:
    def script(reply: Reply, asked: dict[str, Any]) -> None:
        if asked["order"] in orders:
            reply.status(500, {"error": "worn out"})
        else:
            words(reply, asked)

    return script


def test_a_failure_is_counted_and_the_others_go_on() -> None:
    with scripted(fails_at(2)) as server:
        found = run(server, levels=(1,), repeats=3)
    [row] = endpoint_rows(found)
    assert (row.requests, row.failed, row.streams) == (6, 1, 2)
    assert row.tokens_per_second is not None and row.first_token_ms is not None and len(server.asked) == 7
    assert endpoint_findings(found, [row]) == [
        "1 of 6 requests to --endpoint failed",
        "1 times --endpoint: 500 Internal Server Error: worn out",
    ]


def test_a_failure_of_one_server_takes_the_stream_from_both() -> None:
    with scripted(fails_at(1)) as server, scripted() as baseline:
        found = run(server, baseline, levels=(1,), repeats=2)
    [row] = endpoint_rows(found)
    assert (row.streams, row.failed, row.baseline_failed, row.speedup_ci) == (1, 1, 0, None)


def test_a_server_that_has_died_is_not_asked_any_more() -> None:
    with scripted(fails_at(*range(1, 99))) as server:
        found = run(server, levels=(1,), repeats=5)
    assert len(server.asked) == 1 + 2
    [row] = endpoint_rows(found)
    assert (row.requests, row.failed, row.streams, row.tokens_per_second) == (2, 2, 0, None)
    said = endpoint_findings(found, [row])
    assert said[0] == "2 of 2 requests to --endpoint failed"
    assert said[-1] == "--endpoint answered nothing in a whole stream, and was not asked any more"
    assert endpoint_verdict(found, [row]) == ("no stream was answered as a whole: there is no rate to tell", None)


# ---- figures -------------------------------------------------------------------------------------------------------


def served(seconds: float, *answers: Answer, counted: Any = None) -> Served:
    return Served(seconds, list(answers) or [whole()] * 2, counted)


def whole(**changes: Any) -> Answer:
    return replace(Answer(first_s=0.1, last_s=1.0, tokens=10, pieces=10, text="abc"), **changes)


def compared(ours: list[float], theirs: list[float], levels: tuple[int, ...] = (1,)) -> Answered:
    both = [{level: [served(one) for one in seconds] for level in levels} for seconds in (ours, theirs)]
    return Answered(both[0], both[1], len(ours), len(ours), 1.0)


def test_figures_by_hand() -> None:
    """Ten tokens, the first after 100 ms and the last after a second: 900 ms over nine tokens; 20 tokens in 2 s."""
    found = Answered({2: [served(2.0), served(4.0), served(2.0)]}, {}, 3, 3, 1.0)
    [row] = endpoint_rows(found)
    assert (row.first_token_ms, row.ms_per_token, row.tokens_per_second) == (100.0, pytest.approx(100.0), 10.0)
    assert row.tokens_per_second_ci == (5.0, 10.0) and row.first_token_ms_ci == (100.0, 100.0)
    assert row.speedup is row.same_texts is row.drafting is None and row.counted
    assert endpoint_verdict(found, [row])[0] == "10.0 tokens per second at 2 at once"


def test_a_stream_of_empty_answers_has_no_rate() -> None:
    """A server may count that it said nothing: nobody is faster than that by any factor."""
    found = compared([1.0] * 5, [2.0] * 5)
    nothing = whole(first_s=None, last_s=None, tokens=0, pieces=0, text="")
    found.theirs[1][:] = [served(2.0, nothing, nothing)] * 5
    [row] = endpoint_rows(found)
    assert (row.streams, row.speedup, row.baseline_tokens_per_second, row.baseline_failed) == (0, None, None, 0)
    assert endpoint_verdict(found, [row])[1] is None


def test_a_speed_up_is_paired_by_stream() -> None:
    """Streams that are three times as long for both servers widen no interval."""
    found = compared([1.0, 3.0, 1.0, 3.0, 1.0], [2.0, 6.0, 2.0, 6.0, 2.0])
    [row] = endpoint_rows(found)
    assert (row.speedup, row.speedup_ci, row.slower) == (2.0, (2.0, 2.0), False)
    assert endpoint_verdict(found, [row])[0] == "drafting pays: 2.00x [2.00, 2.00] at 1 at once"
    assert endpoint_findings(found, [row]) == []


def test_slower_than_the_baseline_is_a_finding() -> None:
    found = compared([2.0] * 5, [1.0] * 5, (1, 2))
    said = [f"slower than the baseline at {level} at once: 0.50x [0.50, 0.50]" for level in (1, 2)]
    assert endpoint_findings(found, endpoint_rows(found)) == said


def test_texts_that_differ_are_counted() -> None:
    found = compared([1.0], [1.0])
    found.theirs[1][0].answers[1] = whole(text="abd")
    assert endpoint_rows(found)[0].same_texts == 0.5


@pytest.mark.parametrize("who", ["ours", "theirs"])
def test_pieces_make_no_speed_up(who: str) -> None:
    """A piece of a server that drafts holds more tokens than one of a server that does not."""
    found = compared([2.0] * 5, [1.0] * 5)
    getattr(found, who)[1][0].answers[0] = whole(counted=False)
    [row] = endpoint_rows(found)
    assert (row.counted, row.speedup, row.speedup_ci, row.slower) == (False, None, None, False)
    assert row.tokens_per_second == 10.0 and endpoint_findings(found, [row]) == []
    assert endpoint_verdict(found, [row]) == ("not both servers count their tokens: there is no speed-up to tell", None)


@pytest.fixture
def counting() -> Iterator[Scripted]:
    """Counts 10 drafts, 20 drafted, 12 accepted tokens and 4 tokens in all for every answer."""

    def page(asked: int) -> str:
        counts = {"generated": 4, "drafts": 10, "drafted": 20, "accepted": 12, "first": 8, "second": 4}
        return vllm(**{name: count * asked for name, count in counts.items()})

    with scripted(page=page) as server:
        yield server


def test_counters_before_and_after_every_stream(counting: Scripted) -> None:
    [row] = endpoint_rows(run(counting, levels=(1,)))
    assert row.drafting is not None
    assert (row.drafting["drafted"], row.drafting["accepted"], row.drafting["others"]) == (80, 48, False)
    assert row.drafting["source"] == "counters of vLLM" and row.drafting["accepted_share"] == pytest.approx(0.6)
    assert row.drafting["acceptance_by_position"] == pytest.approx([0.8, 0.5])


def test_somebody_else_asks_the_server_too(counting: Scripted) -> None:
    honest = counting.page
    counting.page = lambda asked: honest(3 * asked)
    [row] = endpoint_rows(run(counting, levels=(1,)))
    assert row.drafting is not None and row.drafting["others"]


def test_what_answers_tell_of_their_own_drafts_comes_first() -> None:
    one = served(1.0, whole(drafted=10, accepted=6), whole(drafted=0, accepted=0), whole())
    found = drafting_of([one, one])
    assert found is not None and found["source"] == "timings of the answers"
    assert (found["drafted"], found["accepted"], found["accepted_share"]) == (20, 12, 0.6)
    assert found["tau"] == pytest.approx((60 - 6) / (60 - 6 - 12)) and found["acceptance"] is None


def test_nothing_is_known_of_drafts() -> None:
    assert drafting_of([served(1.0)]) is None and drafting_of([]) is None
