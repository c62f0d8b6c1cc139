"""Asking a server: what is sent, what is heard and when, and every way in which a request can fail, by name."""

import json
import threading
import time
from typing import Any

import pytest

from outpace.errors import UsageError
from outpace.evaluation.endpoint import Endpoint
from outpace.evaluation.sse import Answer, Failed, Heard, events, message
from servers import Reply, Scripted, scripted, words

CHAT = "/chat/completions"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0.0}


def ask(server: Scripted, timeout_s: float = 5.0, **given: Any) -> Answer:
    return Endpoint(server.url, timeout_s=timeout_s, **given).ask(CHAT, BODY)


# ---- a whole answer ------------------------------------------------------------------------------------------------


def test_what_is_sent_and_what_is_heard() -> None:
    with scripted() as server:
        found = ask(server)
    assert (found.text, found.tokens, found.pieces, found.counted, found.error) == ("w0 w1 w2 w3 ", 4, 4, True, None)
    [asked] = server.asked
    assert asked.items() >= BODY.items() and asked["path"] == "/v1/chat/completions"
    assert asked["stream"] is True and asked["stream_options"] == {"include_usage": True}


def test_times_are_of_the_pieces() -> None:
    """The first piece waits 0.2 s and the other three 0.05 s each: bounds from below that no busy machine breaks."""

    def script(reply: Reply, asked: dict[str, Any]) -> None:
        time.sleep(0.2)
        words(reply, asked, pause=0.05)

    with scripted(script) as server:
        found = ask(server)
    assert found.first_s is not None and found.last_s is not None and found.pace_s is not None
    assert found.first_s >= 0.25 and found.last_s - found.first_s >= 0.15
    assert found.pace_s == pytest.approx((found.last_s - found.first_s) / 3)


def test_a_piece_of_several_tokens_counts_as_many_as_the_server_says() -> None:
    def script(reply: Reply, asked: dict[str, Any]) -> None:
        reply.begin()
        reply.piece("a")
        reply.piece("bcd")
        reply.end(4)

    with scripted(script) as server:
        found = ask(server)
    assert (found.tokens, found.pieces) == (4, 2)
    assert found.pace_s == pytest.approx((found.last_s - found.first_s) / 3)


def test_usage_beside_the_reason_and_no_mark_at_the_end() -> None:
    """As ``transformers serve`` ends a stream."""

    def script(reply: Reply, asked: dict[str, Any]) -> None:
        reply.begin()
        reply.event({"choices": [{"delta": {"role": "assistant"}}]})
        reply.piece("a")
        reply.event({"choices": [{"delta": {}, "finish_reason": "length"}], "usage": {"completion_tokens": 1}})

    with scripted(script) as server:
        found = ask(server)
    assert (found.text, found.tokens, found.error, found.pace_s) == ("a", 1, None, None)


def test_an_answer_in_one_piece_tells_no_pace() -> None:
    """Something between buffers the stream, or the end is special tokens: nothing is 0 ms a token for that."""

    def script(reply: Reply, asked: dict[str, Any]) -> None:
        reply.begin()
        reply.piece("abcd")
        reply.end(4)

    with scripted(script) as server:
        found = ask(server)
    assert (found.tokens, found.pieces, found.pace_s) == (4, 1, None) and found.first_s is not None


def test_completions_thoughts_and_timings() -> None:
    """Text outside of a delta, thoughts where engines put them, and the drafts that llama.cpp tells of."""

    def script(reply: Reply, asked: dict[str, Any]) -> None:
        reply.begin()
        reply.event({"choices": [{"text": "a", "finish_reason": None}]})
        reply.event({"choices": [{"delta": {"content": None, "reasoning_content": "b"}}]})
        reply.event({"choices": [{"delta": {"reasoning": "c"}}]})
        reply.end(3, timings={"predicted_n": 3, "draft_n": 12, "draft_n_accepted": 7})

    with scripted(script) as server:
        found = ask(server)
    assert (found.text, found.drafted, found.accepted) == ("abc", 12, 7)


def test_without_usage_pieces_are_counted_and_it_says_so() -> None:
    def script(reply: Reply, asked: dict[str, Any]) -> None:
        reply.begin()
        reply.piece("a")
        reply.piece("b")
        reply.end(None)

    with scripted(script) as server:
        found = ask(server)
    assert (found.tokens, found.counted, found.error) == (2, False, None)


def test_comments_and_lines_of_data_are_read_as_the_standard_has_it() -> None:
    lines = [b": still here\n", b"event: x\n", b'data: {"a":\n', b"data:1}\n", b"\n", b"\r\n", b"data: [DONE]\n", b"\n"]
    assert list(events([*lines, b"data: behind\n", b"\n"])) == ['{"a":\n1}', "[DONE]"]
    assert list(events([b"data: torn"])) == []


# ---- faults --------------------------------------------------------------------------------------------------------


def stalls(reply: Reply, asked: dict[str, Any]) -> None:
    reply.begin()
    reply.piece("a")
    time.sleep(1.5)


def only_lives(reply: Reply, asked: dict[str, Any]) -> None:
    reply.begin()
    reply.piece("a")
    for _ in range(40):
        time.sleep(0.05)
        reply.line(": ping\n\n")


def breaks(reply: Reply, asked: dict[str, Any]) -> None:
    reply.begin()
    reply.piece("a")
    reply.event('{"choices": [{"del')


def ends_early(reply: Reply, asked: dict[str, Any]) -> None:
    reply.begin()
    reply.piece("a")


def gives_up(reply: Reply, asked: dict[str, Any]) -> None:
    reply.begin()
    reply.piece("a")
    reply.event({"error": {"message": "out of memory", "code": 500}})


def counts_none(reply: Reply, asked: dict[str, Any]) -> None:
    reply.begin()
    reply.piece("a")
    reply.end(0)


def counts_many(reply: Reply, asked: dict[str, Any]) -> None:
    reply.begin()
    reply.piece("a")
    reply.end(900)


def tears_a_chunk(reply: Reply, asked: dict[str, Any]) -> None:
    reply.handler.protocol_version = "HTTP/1.1"
    reply.handler.send_response(200)
    reply.handler.send_header("Content-Type", "text/event-stream")
    reply.handler.send_header("Transfer-Encoding", "chunked")
    reply.handler.end_headers()
    reply.line("20\r\ndata: {}")
    reply.handler.close_connection = True


FAULTS: dict[str, tuple[Any, str]] = {
    "a stall": (stalls, "nothing came for 0.3 s"),
    "comments and no token": (only_lives, "nothing came for 0.3 s"),
    "half an event": (breaks, 'its stream is broken: \'{"choices": [{"del\' is no JSON object'),
    "an early end": (ends_early, "its stream ended before the answer did"),
    "an error in the stream": (gives_up, "it gave up: out of memory"),
    "usage below the pieces": (
        counts_none,
        "its usage counts 0 tokens, which cannot be right: 1 pieces of text came, and 8 tokens were asked for at most",
    ),
    "usage above the limit": (
        counts_many,
        "its usage counts 900 tokens, which cannot be right: 1 pieces of text came, "
        "and 8 tokens were asked for at most",
    ),
    "a torn chunk": (tears_a_chunk, "it broke off in the middle"),
    "an error of the server": (
        lambda reply, asked: reply.status(500, {"error": {"message": "cuda fault"}}),
        "500 Internal Server Error: cuda fault",
    ),
    "an error in words": (
        lambda reply, asked: reply.status(503, b"try\n later", "text/plain"),
        "503 Service Unavailable: try later",
    ),
    "a refusal as FastAPI has it": (
        lambda reply, asked: reply.status(400, {"detail": "Server is pinned to 'a'"}),
        "400 Bad Request: Server is pinned to 'a'",
    ),
    "no stream": (
        lambda reply, asked: reply.status(200, {"choices": []}),
        "it answered with application/json in place of a stream",
    ),
    "another place": (lambda reply, asked: reply.status(307, {}), "307 Temporary Redirect: {}"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_by_name(name: str) -> None:
    script, words = FAULTS[name]
    with scripted(script) as server:
        assert ask(server, timeout_s=0.3 if "token" in name or "stall" in name else 5.0).error == words


def test_what_came_before_a_fault_is_kept() -> None:
    with scripted(gives_up) as server:
        found = ask(server)
    assert (found.text, found.pieces, found.error is None) == ("a", 1, False)


def test_nobody_there() -> None:
    with scripted() as server:
        url = server.url
    endpoint = Endpoint(url)
    assert endpoint.ask(CHAT, BODY).error == "it cannot be reached: Connection refused"
    with pytest.raises(UsageError, match=r"endpoint is http://127\.0\.0\.1:\d+/v1: it cannot be reached: Connection"):
        endpoint.models()


def test_a_request_under_way_can_be_hung_up() -> None:
    with scripted(lambda reply, asked: (reply.begin(), endpoint.hang_up(), time.sleep(1))) as server:
        endpoint = Endpoint(server.url)
        found = endpoint.ask(CHAT, BODY)
    assert found.error is not None and found.text == ""


def test_an_answer_that_ends_with_its_connection_can_be_hung_up_too() -> None:
    """The reader waits in the middle of an answer that would never go on."""
    never = threading.Event()

    def script(reply: Reply, asked: dict[str, Any]) -> None:
        reply.begin()
        reply.piece("a")
        time.sleep(0.3)  # until the piece has been read
        endpoint.hang_up()
        never.wait(20)

    with scripted(script) as server:
        endpoint = Endpoint(server.url, timeout_s=10.0)
        begin = time.monotonic()
        found = endpoint.ask(CHAT, BODY)
        never.set()
    assert found.error == "its stream ended before the answer did" and time.monotonic() - begin < 9


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"error": "no"}, "no"),
        ({"error": {"message": "no", "type": "x"}}, "no"),
        ({"object": "error", "message": "no"}, "no"),
        ({"detail": [{"msg": "field required"}]}, '[{"msg": "field required"}]'),
        ("a" * 300, "a" * 200 + "…"),
    ],
)
def test_the_words_of_a_fault(said: Any, words: str) -> None:
    assert message(said) == words


@pytest.mark.parametrize("event", ["[1]", "3", "nonsense", "null"])
def test_an_event_that_is_no_object(event: str) -> None:
    with pytest.raises(Failed, match="is no JSON object"):
        Heard().take(event, 0.0)


@pytest.mark.parametrize("event", [{"choices": 3}, {"choices": [3]}, {"choices": [{"delta": 4}]}, {"usage": 3}, {}])
def test_an_object_of_another_shape_says_nothing(event: Any) -> None:
    heard = Heard()
    heard.take(json.dumps(event), 0.0)
    assert heard.answer() == Answer(counted=False)


# ---- models, keys, addresses ---------------------------------------------------------------------------------------


def test_the_only_model_needs_no_name_and_others_are_listed() -> None:
    with scripted(models=["one"]) as server:
        assert Endpoint(server.url).model(None) == Endpoint(server.url).model("one") == "one"
        with pytest.raises(UsageError, match=rf"model is 'two'; allowed at {server.url}: one"):
            Endpoint(server.url).model("two")
    with (
        scripted(models=["one", "two"]) as server,
        pytest.raises(UsageError, match=rf"no model was named; allowed at {server.url}: one, two"),
    ):
        Endpoint(server.url).model(None)


def test_a_server_that_lists_no_models_is_believed() -> None:
    with scripted(models=None) as server:
        assert Endpoint(server.url).model("mine") == "mine"
        with pytest.raises(UsageError, match="does not list its own; allowed: a name by --model"):
            Endpoint(server.url).model(None)


def test_the_key_is_sent_and_never_shown() -> None:
    key = "sk-very-secret"
    with scripted(key=key) as server:
        assert Endpoint(server.url, api_key=f" {key}\n").models() == ["tiny"]
    with scripted(key="another") as server:
        endpoint = Endpoint(server.url, api_key=key)
        with pytest.raises(UsageError, match=r"401 Unauthorized: no such key: Bearer \[key\]") as wrong:
            endpoint.models()
        assert wrong.value.hint == "is OPENAI_API_KEY the key of this server?"
        assert key not in f"{wrong.value} {endpoint!r}"
        with pytest.raises(UsageError, match="401") as missing:
            Endpoint(server.url).models()
        assert missing.value.hint == "set OPENAI_API_KEY"


def test_a_key_that_a_long_message_cuts_off_is_not_shown() -> None:
    key = "sk-very-secret"
    said = {"error": {"message": "x" * 190 + key}}  # the message ends behind 200 characters
    with scripted(lambda reply, asked: reply.status(500, said)) as server:
        error = ask(server, api_key=key).error
    assert error is not None and error.endswith("x[key]…")


def test_an_ipv6_address_without_a_port() -> None:
    """Its last part is no port, as which http.client would read it."""
    assert vars(Endpoint("http://[::1]")).items() >= {"_host": "::1", "_port": 80}.items()
    assert vars(Endpoint("https://here")).items() >= {"_host": "here", "_port": 443}.items()


def test_counters_of_tensorrt_llm_stand_beside_a_page_of_other_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its /metrics answers too, with a JSON list of iterations."""
    pages = {"/metrics": "[]", "/prometheus/metrics": "trtllm_x 1"}
    endpoint = Endpoint("http://here")
    monkeypatch.setattr(endpoint, "_page", pages.__getitem__)
    assert endpoint.metrics() == "trtllm_x 1"


@pytest.mark.parametrize("key", ["a b", "a\nb", "ä"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(UsageError, match="OPENAI_API_KEY holds characters that cannot be sent") as refused:
        Endpoint("http://here", api_key=key)
    assert key not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://here:8000", "http://here:8000/v1"),
        ("http://here:8000/v1/", "http://here:8000/v1"),
        ("https://here/openai/v1/chat/completions", "https://here/openai/v1"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_an_address(given: str, url: str) -> None:
    assert Endpoint(given).url == url


@pytest.mark.parametrize(
    "url", ["here", "ftp://here", "http://", "http://here:port", "http://here/v1?x=1", "http://he re", "http://[::1"]
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UsageError, match=r"baseline-endpoint is .*; allowed: an address such as http://127"):
        Endpoint(url, name="baseline-endpoint")


def test_a_host_that_no_name_server_can_be_asked_for() -> None:
    endpoint = Endpoint("http://a..b")
    with pytest.raises(UsageError, match=r"endpoint is http://a\.\.b/v1: it cannot be reached: its address holds no"):
        endpoint.models()
    assert endpoint.metrics() is None


def test_a_password_in_the_address_is_refused_and_not_shown() -> None:
    with pytest.raises(UsageError, match="endpoint holds a user or a password; allowed: an address alone") as refused:
        Endpoint("http://me:hush@here")
    assert "hush" not in str(refused.value)
