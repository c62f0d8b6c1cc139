"""Answers through an endpoint: ids go out as we would read them, and come back as the engine says them."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from chats import EOS, EOT, chat_text
from outpace.decoding.loop import Request
from outpace.decoding.prompts import Entry
from outpace.decoding.text import Text
from outpace.errors import UsageError
from outpace.training import endpoint as module
from outpace.training.answers import answer
from outpace.training.continuations import Continuation
from outpace.training.corpus import read_answers
from outpace.training.endpoint import Endpoint
from outpace.verification.probabilities import Sampling

Reply = Callable[[dict[str, Any]], tuple[int, Any]]


class Engine:
    """An engine on this machine that answers by a function, and notes what it was asked."""

    def __init__(self) -> None:
        self.reply: Reply = lambda asked: (200, echo(asked))
        self.asked: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.now, self.most = 0, 0
        engine, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    engine.asked.append(asked | {"path": self.path})
                    engine.headers.append(self.headers)
                    engine.now += 1
                    engine.most = max(engine.most, engine.now)
                status, said = engine.reply(asked)
                with lock:
                    engine.now -= 1
                body = said if isinstance(said, bytes) else json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def at(self, **changes: Any) -> Endpoint:
        return Endpoint(self.url, "tiny", **({"eos_ids": (EOS,), "max_positions": 256} | changes))


def echo(asked: dict[str, Any], finish: str = "stop") -> dict[str, Any]:
    """Says the prompt's last three ids, and ends."""
    return {"choices": [{"token_ids": [*asked["prompt"][-3:], EOS], "text": "abc", "finish_reason": finish}]}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(module, "PAUSE_S", 0.001)
    engine = Engine()
    yield engine
    engine.server.shutdown()
    engine.server.server_close()
    engine.thread.join()


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Text:
    return chat_text(tmp_path_factory.mktemp("chat"))


def said(endpoint: Endpoint, text: Text, *requests: Request, batch_size: int = 4) -> list[Continuation]:
    return sorted(endpoint.continuations(requests, text, batch_size), key=lambda one: one.index)


def test_ids_go_out_and_come_back(engine: Engine, text: Text) -> None:
    requests = [
        Request([1, 2, 3, 4], Sampling(0.0), 9, seed=2**40),
        Request([5, 6, 7, 8], Sampling(0.7), 5, seed=2**40 + 3),
    ]
    found = said(engine.at(api_key="secret"), text, *requests, batch_size=1)
    assert found == [Continuation(0, [2, 3, 4, EOS], "stop"), Continuation(1, [6, 7, 8, EOS], "stop")]
    assert engine.asked == [
        {"model": "tiny", "prompt": [1, 2, 3, 4], "max_tokens": 9, "temperature": 0.0, "return_token_ids": True}
        | {"path": "/v1/completions"},
        {"model": "tiny", "prompt": [5, 6, 7, 8], "max_tokens": 5, "temperature": 0.7, "return_token_ids": True}
        | {"seed": 3, "path": "/v1/completions"},
    ]
    assert {headers["Authorization"] for headers in engine.headers} == {"Bearer secret"}
    assert "secret" not in repr(engine.at(api_key="secret"))


def test_an_engine_that_returns_no_ids(engine: Engine, text: Text) -> None:
    """Its text is encoded, and ended as the template ends a turn, if the engine says that it stopped."""
    for finish, end in (("stop", [EOT]), ("length", [])):
        engine.reply = lambda asked, finish=finish: (200, {"choices": [{"text": "yes", "finish_reason": finish}]})
        assert said(engine.at(), text, Request([1], max_new_tokens=9))[0].ids == [*text.encode("yes", raw=True), *end]
    engine.reply = lambda asked: (200, {"choices": [{"token_ids": [4], "text": "", "finish_reason": "stop"}]})
    assert said(engine.at(), text, Request([1], max_new_tokens=9))[0].ids == [4, EOT]
    engine.reply = lambda asked: (200, {"choices": [{"token_ids": [], "text": "", "finish_reason": "length"}]})
    assert said(engine.at(), text, Request([1], max_new_tokens=9))[0].reason == "the answer is empty"


def test_so_many_at_once(engine: Engine, text: Text) -> None:
    """Three are under way together, never a fourth; every answer finds its own request."""
    three = threading.Barrier(3, timeout=30)

    def reply(asked: dict[str, Any]) -> tuple[int, Any]:
        three.wait()
        return 200, echo(asked)

    engine.reply = reply
    found = said(engine.at(), text, *[Request([place] * 3, max_new_tokens=9) for place in range(12)], batch_size=3)
    assert [one.ids[:3] for one in found] == [[place] * 3 for place in range(12)] and engine.most == 3


def test_a_busy_engine_is_asked_again(engine: Engine, text: Text) -> None:
    refusals = iter([503, 429])

    def reply(asked: dict[str, Any]) -> tuple[int, Any]:
        status = next(refusals, 200)
        return status, echo(asked) if status == 200 else {"error": "busy"}

    engine.reply = reply
    assert said(engine.at(), text, Request([1, 2, 3], max_new_tokens=9))[0].finish == "stop" and len(engine.asked) == 3


@pytest.mark.parametrize(
    ("reply", "message", "sent"),
    [
        ((400, {"error": "no such model"}), "/v1/completions refuses a request: 400 .*no such model", 1),
        ((500, {"error": "broken"}), "refuses a request: 500 .*broken", 4),
        ((200, b"<html>"), "/v1/completions cannot be asked: Expecting value", 4),
        ((200, {"choices": []}), "gave an answer that cannot be read: {'choices': ", 1),
        ((200, [1]), "gave an answer that cannot be read", 1),
        ((200, {"choices": [{"token_ids": ["a"]}]}), "its token ids are no numbers", 1),
        ((200, {"choices": [{"token_ids": 5}]}), "gave an answer that cannot be read", 1),
        ((200, {"choices": [{"finish_reason": "stop"}]}), "gave an answer that cannot be read", 1),
    ],
)
def test_what_is_refused(reply: tuple[int, Any], message: str, sent: int, engine: Engine, text: Text) -> None:
    engine.reply = lambda asked: reply
    with pytest.raises(UsageError, match=message):
        said(engine.at(), text, Request([1], max_new_tokens=9))
    assert len(engine.asked) == sent


def test_nobody_there(engine: Engine, text: Text) -> None:
    engine.server.shutdown()
    engine.server.server_close()
    with pytest.raises(UsageError, match=r"(?s)127.0.0.1.*cannot be asked: .*hint: does the engine run"):
        said(engine.at(tries=2), text, Request([1], max_new_tokens=9))


def test_a_run_through_an_endpoint(engine: Engine, text: Text, tmp_path: Path) -> None:
    """Prompts are rendered here, as our own decoder would read them; a run that broke off is gone on with."""
    entries = [Entry(f"q{place}", place, None, (f"word {place}",)) for place in range(6)]
    path = tmp_path / "a.jsonl"

    def reply(asked: dict[str, Any]) -> tuple[int, Any]:
        return (400, "enough") if len(engine.asked) > 4 else (200, echo(asked))

    engine.reply = reply
    with pytest.raises(UsageError, match="refuses a request"):
        answer(engine.at(), text, entries, path, batch_size=1)
    assert len(read_answers(path)) == 4
    engine.reply = lambda asked: (200, echo(asked))
    report = answer(engine.at(), text, entries, path, batch_size=2)
    assert (report.kept, report.answered) == (4, 2)
    # Two are asked at a time, and either may answer first.
    for place, one in enumerate(sorted(read_answers(path), key=lambda one: one.key)):
        ids = text.encode(f"word {place}")
        assert one.prompt_ids == tuple(ids) and one.answer_ids == (*ids[-3:], EOS)
    with pytest.raises(UsageError, match="was begun with model 'tiny', and now it is 'other'"):
        answer(Endpoint(engine.url, "other", (EOS,), 256), text, entries, path)
