"""A scripted server with the API of OpenAI, on this machine alone, that can fail in every way: what tests ask.

Knows nothing of what is tested.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Script = Callable[["Reply", dict[str, Any]], None]


class Reply:
    """What a script answers with."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        self.handler = handler

    def status(self, code: int, said: Any, kind: str = "application/json") -> None:
        """A whole answer."""
        body = said if isinstance(said, bytes) else json.dumps(said).encode()
        self.handler.send_response(code)
        self.handler.send_header("Content-Type", kind)
        self.handler.send_header("Content-Length", str(len(body)))
        self.handler.end_headers()
        self.handler.wfile.write(body)

    def begin(self) -> None:
        """A stream; it ends with the connection."""
        self.handler.send_response(200)
        self.handler.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.handler.send_header("Connection", "close")
        self.handler.end_headers()

    def line(self, text: str) -> None:
        """A line as it is, sent at once."""
        self.handler.wfile.write(text.encode())
        self.handler.wfile.flush()

    def event(self, said: Any) -> None:
        """An event, sent at once."""
        self.line(f"data: {said if isinstance(said, str) else json.dumps(said)}\n\n")

    def piece(self, text: str) -> None:
        """A piece of a chat's answer."""
        self.event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})

    def end(self, tokens: int | None, **more: Any) -> None:
        """The end of an answer as vLLM sends it: a reason, the count of tokens by itself, and the mark."""
        self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]} | more)
        if tokens is not None:
            self.event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": tokens}})
        self.event("[DONE]")


def words(reply: Reply, asked: dict[str, Any], count: int = 4, pause: float = 0.0) -> None:
    """So many words, one a token."""
    reply.begin()
    for place in range(count):
        time.sleep(pause)
        reply.piece(f"w{place} ")
    reply.end(count)


class Scripted:
    """A server that answers by its script and notes what it was asked.

    Args:
        script: answers every request for text.
        models: those it lists; None: it does not.
        key: a bearer token that it wants, if any.
        page: of counters; None: there is none.
    """

    def __init__(
        self,
        script: Script = words,
        models: list[str] | None = None,
        key: str | None = None,
        page: Callable[[int], str | None] = lambda asked: None,
    ) -> None:
        self.script, self.models, self.key, self.page = script, models, key, page
        self.asked: list[dict[str, Any]] = []
        self.now = self.most = 0
        lock, server = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                reply = Reply(self)
                page = server.page(len(server.asked))
                if self.path == "/metrics" and page is not None:
                    reply.status(200, page.encode(), "text/plain")
                elif self.path != "/v1/models" or server.models is None:
                    reply.status(404, {"detail": "Not Found"})
                elif server.refuses(self):
                    reply.status(401, {"error": {"message": f"no such key: {self.headers['Authorization']}"}})
                else:
                    reply.status(200, {"data": [{"id": name} for name in server.models]})

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    server.asked.append(asked | {"path": self.path, "order": len(server.asked)})
                    server.now += 1
                    server.most = max(server.most, server.now)
                try:
                    server.script(Reply(self), server.asked[-1] | asked)
                except OSError:
                    pass  # whoever asked has hung up
                finally:
                    with lock:
                        server.now -= 1

            def log_message(self, *words: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    def refuses(self, handler: BaseHTTPRequestHandler) -> bool:
        return self.key is not None and handler.headers["Authorization"] != f"Bearer {self.key}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}/v1"


@contextmanager
def scripted(script: Script = words, **given: Any) -> Iterator[Scripted]:
    """A server for as long as it is needed; it lists one model, ``tiny``, where nothing else is said."""
    server = Scripted(script, **({"models": ["tiny"]} | given))
    try:
        yield server
    finally:
        server.http.shutdown()
        server.http.server_close()
        server.thread.join(5)
