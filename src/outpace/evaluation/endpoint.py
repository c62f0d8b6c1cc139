"""A server with the API of OpenAI: which models it serves, its page of counters, and a streamed answer with its times.

Knows nothing of what is measured by it. Connections go straight to the server, not by a proxy, and each is made before
its clock starts. The key goes to no other address, redirects are not followed, and no message shows it.
"""

import http.client
import json
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from outpace.errors import UsageError
from outpace.evaluation.sse import Answer, Failed, Heard, events, message

LONGEST = 2**20
"""Bytes of a line of a stream, at most."""
ENDS = ("/chat/completions", "/completions", "/models")
EXAMPLE = "http://127.0.0.1:8000/v1"
STREAM = "text/event-stream"
PAGES = ("/prometheus/metrics", "/metrics")
"""Where counters stand: TensorRT-LLM, whose /metrics is another page; vLLM, SGLang and llama.cpp."""
SHOWN = 4
"""Characters of a key that may stand in a message: no longer beginning of it may."""


class Endpoint:
    """Where to ask.

    Args:
        url: up to and with ``/v1``, which is added to a bare host.
        name: what messages call the argument.
        api_key: sent as a bearer token, where the server wants one.
        timeout_s: an answer without a new token for so long has failed; above 0.
        clock: seconds, rising.

    Raises:
        UsageError: the address is none, or holds what does not belong there; or the key cannot be sent.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "endpoint",
        api_key: str | None = None,
        timeout_s: float = 60.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise UsageError(f"{name} is {url!r}; allowed: an address such as {EXAMPLE}") from error
        if parts.username is not None or parts.password is not None:
            raise UsageError(
                f"{name} holds a user or a password; allowed: an address alone",
                hint="a key is read from OPENAI_API_KEY",
            )
        strange = parts.query or parts.fragment or not re.fullmatch(r"[!-~]+", url)
        if host is None or parts.scheme not in ("http", "https") or strange:
            raise UsageError(f"{name} is {url!r}; allowed: an address such as {EXAMPLE}")
        path = parts.path.rstrip("/")
        for end in ENDS:
            path = path.removesuffix(end)
        self._secure = parts.scheme == "https"
        # Named, as http.client would read the last part of an IPv6 address as the port.
        self._host, self._port = host, port or (443 if self._secure else 80)
        self._path = path or "/v1"
        self.url = f"{parts.scheme}://{parts.netloc}{self._path}"
        self.name, self.timeout_s, self._clock = name, timeout_s, clock
        self._key = (api_key or "").strip()
        if not re.fullmatch(r"[!-~]*", self._key):
            raise UsageError("OPENAI_API_KEY holds characters that cannot be sent; allowed: printable ASCII, no spaces")
        self._open: set[socket.socket] = set()

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r})"

    # ---- what is there -------------------------------------------------------------------------------------------

    def models(self) -> list[str] | None:
        """The names of the models served; None where the server does not list them.

        Raises:
            UsageError: it cannot be reached, or refuses.
        """
        try:
            listed = json.loads(self._page(f"{self._path}/models"))
            return [str(one["id"]) for one in listed["data"]]
        except Failed as error:
            if error.status in (404, 405, 501):
                return None
            raise self._refused(error) from error
        except (ValueError, LookupError, TypeError):
            return None

    def model(self, asked: str | None) -> str:
        """The model to ask for: the one named, or the only one served.

        Raises:
            UsageError: it is not served, or none was named and not exactly one is; those served are listed.
        """
        served = self.models()
        if served is None:
            if asked is None:
                raise UsageError(
                    f"no model was named, and {self.url} does not list its own; allowed: a name by --model"
                )
            return asked
        listed = ", ".join(served) or "none, as it serves no model"
        if asked is not None and asked not in served:
            raise UsageError(f"model is {asked!r}; allowed at {self.url}: {listed}")
        if asked is None and len(served) != 1:
            raise UsageError(f"no model was named; allowed at {self.url}: {listed}", hint="name it by --model")
        return served[0] if asked is None else asked

    def metrics(self) -> str | None:
        """The page of counters; None where the server has none."""
        for path in PAGES:
            with suppress(Failed):
                return self._page(self._path.removesuffix("/v1") + path)
        return None

    def _refused(self, error: Failed) -> UsageError:
        """A failure that makes all further work senseless, as an error of usage with a hint."""
        hint = "does the server run, and is the address right?" if error.status is None else None
        if error.status in (401, 403):
            hint = "is OPENAI_API_KEY the key of this server?" if self._key else "set OPENAI_API_KEY"
        return UsageError(f"{self.name} is {self.url}: {self._hidden(str(error))}", hint=hint)

    def _hidden(self, words: str) -> str:
        """Words of a server without the key, should it repeat it, whole or cut off."""
        for size in range(len(self._key), max(0, min(SHOWN, len(self._key) - 1)), -1):
            words = words.replace(self._key[:size], "[key]")
        return words

    def _page(self, path: str) -> str:
        with self._exchange("GET", path, None) as (response, _):
            return response.read().decode(errors="replace")

    # ---- one answer ----------------------------------------------------------------------------------------------

    def ask(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Send one request and follow its stream to the end.

        Args:
            path: behind ``/v1``, such as ``/chat/completions``.
            body: what is asked, ``max_tokens`` among it; a stream and the count of its tokens are asked for besides.

        Returns:
            The answer; one that failed says why, and has what came before.
        """
        heard = Heard()
        try:
            self._follow(path, body, heard)
        except Failed as error:
            return heard.answer(self._hidden(str(error)))
        return heard.answer()

    def answered(self, path: str, body: Mapping[str, Any]) -> Answer:
        """The same for a request without which nothing is worth trying.

        Raises:
            UsageError: it failed.
        """
        heard = Heard()
        try:
            self._follow(path, body, heard)
        except Failed as error:
            raise self._refused(error) from error
        return heard.answer()

    def _follow(self, path: str, body: Mapping[str, Any], heard: Heard) -> None:
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        with self._exchange("POST", self._path + path, json.dumps(asked).encode()) as (response, begun):
            kind = response.headers.get_content_type()
            if kind != STREAM:
                raise Failed(f"it answered with {kind} in place of a stream")
            for event in events(self._lines(response, heard, begun)):
                heard.take(event, self._clock() - begun)
        heard.judge(int(body["max_tokens"]))

    def _lines(self, response: http.client.HTTPResponse, heard: Heard, begun: float) -> Iterator[bytes]:
        """Lines until the stream ends; one that says only that it still lives is no token."""
        while line := response.readline(LONGEST):
            yield line
            if self._clock() - begun - (heard.times[-1] if heard.times else 0.0) > self.timeout_s:
                raise TimeoutError

    @contextmanager
    def _exchange(self, method: str, path: str, body: bytes | None) -> Iterator[tuple[http.client.HTTPResponse, float]]:
        """A response whose status is fine, and when it was asked for; whatever goes wrong inside becomes ``Failed``."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self.timeout_s)
        headers = {"Accept": "*/*"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        headers |= {"Content-Type": "application/json"} if body is not None else {}
        begun = line = None
        try:
            connection.connect()
            line = connection.sock  # an answer that ends with its connection takes it away from there
            self._open.add(line)
            begun = self._clock()
            connection.request(method, path, body, headers)
            with connection.getresponse() as response:
                if response.status != 200:
                    raise _turned_down(response)
                yield response, begun
        except TimeoutError as error:
            raise Failed(f"nothing came for {self.timeout_s:g} s") from error
        except http.client.HTTPException as error:
            raise Failed("it broke off in the middle") from error
        except UnicodeError as error:
            raise Failed("it cannot be reached: its address holds no name of a host") from error
        except OSError as error:
            what = "it cannot be reached" if begun is None else "it broke off"
            raise Failed(f"{what}: {error.strerror or error}") from error
        finally:
            if line is not None:
                self._open.discard(line)
            connection.close()

    def hang_up(self) -> None:
        """End every request that is under way, from whichever thread."""
        for line in list(self._open):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)


def _turned_down(response: http.client.HTTPResponse) -> Failed:
    """What a status other than 200 says, with the words of the server."""
    whole = response.read(LONGEST).decode(errors="replace")
    try:
        words = message(json.loads(whole))
    except (ValueError, RecursionError):
        words = message(whole)
    return Failed(f"{response.status} {response.reason}" + (f": {words}" if words else ""), response.status)
