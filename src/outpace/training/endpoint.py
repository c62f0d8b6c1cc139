"""A target behind an OpenAI-compatible endpoint (vLLM, SGLang, llama.cpp): prompts go out as ids, answers come back.

Knows nothing of files. Prompts are sent as token ids to ``/completions``, so that no other chat template than the
target's own has a say in what is answered. Ids of the answer are taken where the engine returns them
(``return_token_ids``: vLLM, SGLang); else its text is encoded again, and ended where the engine says that it stopped.
"""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from outpace.decoding.loop import FinishReason, Request
from outpace.decoding.text import Text
from outpace.errors import UsageError
from outpace.training.continuations import Continuation
from outpace.training.masks import end_of_turn

PAUSE_S = 1.0
"""Before a request is tried again; twice as long each further time."""


@dataclass(frozen=True)
class Endpoint:
    """Where to ask, and what the model there is called.

    Args:
        url: up to and with ``/v1``.
        model: its name there.
        eos_ids, max_positions: of the model; as its folder says.
        api_key: sent as a bearer token, where the endpoint wants one.
        timeout_s: for one answer.
        tries: how often one request is sent before it is given up.
    """

    url: str
    model: str
    eos_ids: tuple[int, ...]
    max_positions: int
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 600.0
    tries: int = 4

    def continuations(self, requests: Sequence[Request], text: Text, batch_size: int) -> Iterator[Continuation]:
        """Continue every request, so many at once; one result a request, in order of their ends.

        Raises:
            UsageError: the endpoint cannot be reached, refuses a request, or answers nonsense; it is named.
        """
        ends = end_of_turn(text, self.eos_ids)
        waiting = iter(enumerate(requests))
        with ThreadPoolExecutor(batch_size) as pool:
            going: set[Future[Continuation]] = set()
            try:
                while True:
                    for index, request in waiting:
                        going.add(pool.submit(self._continue, index, request, text, ends))
                        if len(going) >= batch_size:
                            break
                    if not going:
                        return
                    done, going = wait(going, return_when=FIRST_COMPLETED)
                    yield from (one.result() for one in done)
            finally:
                for one in going:
                    one.cancel()

    def _continue(self, index: int, request: Request, text: Text, ends: list[int]) -> Continuation:
        asked = {
            "model": self.model,
            "prompt": list(request.ids),
            "max_tokens": request.max_new_tokens,
            "temperature": request.sampling.temperature,
            "return_token_ids": True,
        }
        if request.seed is not None and not request.sampling.greedy:
            asked["seed"] = request.seed % 2**31
        answer = self._sent(asked)
        try:
            choice = answer["choices"][0]
            finish: FinishReason = "length" if choice.get("finish_reason") == "length" else "stop"
            ids = choice.get("token_ids")
            ids = text.tokenizer.encode(choice["text"], add_special_tokens=False) if ids is None else list(ids)
            if not all(isinstance(token, int) for token in ids):
                raise TypeError("its token ids are no numbers")
        except (LookupError, TypeError, AttributeError) as error:
            raise UsageError(f"{self.url} gave an answer that cannot be read: {_short(answer)} ({error})") from error
        if finish == "stop" and not (ids and ids[-1] in ends):  # some engines keep the end to themselves
            ids += ends[-1:]
        return Continuation(index, ids, finish) if ids else Continuation(index, [], "error", "the answer is empty")

    def _sent(self, asked: dict[str, Any]) -> Any:
        """The answer to one request, tried again where the engine is busy or out of reach."""
        headers = {"Content-Type": "application/json"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        request = urllib.request.Request(f"{self.url.rstrip('/')}/completions", json.dumps(asked).encode(), headers)
        for left in reversed(range(self.tries)):
            try:
                with urllib.request.urlopen(request, timeout=self.timeout_s) as response:
                    return json.load(response)
            except urllib.error.HTTPError as error:
                reason = f"{error.code} {error.reason}: {_short(error.read().decode(errors='replace'))}"
                if left == 0 or (error.code < 500 and error.code != 429):
                    raise UsageError(f"{request.full_url} refuses a request: {reason}") from error
            except (OSError, ValueError) as error:
                if left == 0:
                    raise UsageError(
                        f"{request.full_url} cannot be asked: {error}",
                        hint="does the engine run, and is the address right?",
                    ) from error
            time.sleep(PAUSE_S * 2 ** (self.tries - 1 - left))
        raise AssertionError("the last try returns or raises")


def _short(answer: Any) -> str:
    words = str(answer)
    return words if len(words) <= 200 else f"{words[:200]}…"
