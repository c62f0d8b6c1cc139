"""``outpace bench --endpoint``: a server measured, two compared, and what is refused before any request."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benches import call
from servers import Reply, Scripted, scripted, words


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's key is no business of a test."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"say {place}"}) + "\n" for place in range(4)), "utf-8")
    return path


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted() as one:
        yield one


def quick(server: Scripted, mine: Path, *more: object) -> Any:
    return call("--endpoint", server.url, "--prompts", mine, "--max-new-tokens", 8, "--repeats", 2, *more)


def test_one_server_as_one_document(server: Scripted, mine: Path) -> None:
    result = quick(server, mine, "--concurrency", "2,1", "--seed", 3, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert {"format_version", "machine", "versions", "protocol", "results", "verdict", "findings"} <= found.keys()
    assert [row["concurrency"] for row in found["results"]] == [1, 2] and found["findings"] == []
    for row in found["results"]:
        assert (row["streams"], row["failed"], row["counted"], row["speedup"]) == (2, 0, True, None)
        low, high = row["tokens_per_second_ci"]
        assert 0 < low <= row["tokens_per_second"] <= high and row["first_token_ms"] > 0
    about = found["protocol"]
    assert (about["endpoint"], about["model"], about["api"], about["source"]) == (
        server.url,
        "tiny",
        "chat",
        "mine.jsonl",
    )
    assert about["how"].startswith("streams of prompts") and about["concurrency"] == [1, 2]
    assert all(asked["seed"] == 3 for asked in server.asked)


def test_two_servers_and_a_finding(server: Scripted, mine: Path) -> None:
    """One waits 20 ms a token and the other does not: slower beyond any doubt, and the exit code says so."""

    def slow(reply: Reply, asked: dict[str, Any]) -> None:
        words(reply, asked, pause=0.02)

    with scripted(slow) as slower:
        options = ["--endpoint", slower.url, "--baseline-endpoint", server.url, "--prompts", mine, "--repeats", 5]
        result = call(*options, "--max-new-tokens", 8)
    assert result.exit_code == 1, result.output
    assert "drafting does not pay: 0." in result.stdout and "decode plainly" in result.stdout
    assert "slower than the baseline at 1 at once: 0." in result.stderr
    assert "both servers said the same text to 100% of the prompts or more" in result.stderr
    assert result.stdout.startswith(f"tiny at {slower.url}, beside tiny at {server.url}")


def test_a_failed_request_is_a_finding(mine: Path) -> None:
    def script(reply: Reply, asked: dict[str, Any]) -> None:
        if asked["order"] == 2:
            reply.status(500, {"error": "worn out"})
        else:
            words(reply, asked)

    with scripted(script) as server:
        result = quick(server, mine)
    assert result.exit_code == 1
    assert "1 of 4 requests to --endpoint failed" in result.stderr
    assert "1 times --endpoint: 500 Internal Server Error: worn out" in result.stderr


def test_the_key_comes_from_the_environment_and_is_never_printed(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hush")
    with scripted(key="sk-hush") as server:
        fine = quick(server, mine, "--json")
    with scripted(key="sk-other") as server:
        wrong = quick(server, mine, "--json")
    assert (fine.exit_code, wrong.exit_code) == (0, 2), fine.output
    assert "hint: is OPENAI_API_KEY the key of this server?" in wrong.stderr
    assert "sk-hush" not in fine.output + fine.stderr + wrong.output + wrong.stderr


def test_completions_take_ids(server: Scripted, tmp_path: Path) -> None:
    path = tmp_path / "ids.jsonl"
    path.write_text('{"prompt": [1, 2, 3]}\n', "utf-8")
    refused = call("--endpoint", server.url, "--prompts", path)
    assert refused.exit_code == 2 and "hint: --api completions takes ids" in refused.stderr and not server.asked
    assert call("--endpoint", server.url, "--prompts", path, "--api", "completions", "--repeats", 1).exit_code == 0
    assert {asked["path"] for asked in server.asked} == {"/v1/completions"}
    assert server.asked[0]["prompt"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--draft", "lookup"], "--draft was given beside --endpoint; allowed: without it"),
        (["--target", "other"], "--target was given beside --endpoint; allowed: without it"),
        (["--num-draft-tokens", "4"], "--num-draft-tokens was given beside --endpoint; allowed: without it"),
        (["--probe", "t"], "--probe was given beside --endpoint; allowed: without it"),
        (["--temperature", "0", "--temperature", "1"], "temperature is [0.0, 1.0]; allowed beside --endpoint: one"),
        (["--temperature", "-1"], "temperature is -1.0; allowed: "),
        (["--max-new-tokens", "0"], "max_new_tokens is 0; allowed: "),
        (["--api", "voice"], "api is 'voice'; allowed: chat, completions"),
        (["--timeout", "soon"], "timeout is 'soon'; allowed: a number of seconds"),
        (["--model", "two"], "model is 'two'; allowed at http://127.0.0.1:"),
        (["--baseline-endpoint", "nowhere"], "baseline-endpoint is 'nowhere'; allowed: an address such as"),
    ],
)
def test_what_is_refused_before_any_request(options: list[str], words: str, server: Scripted) -> None:
    result = call("--endpoint", server.url, *options)
    assert result.exit_code == 2 and words in result.stderr and not server.asked


@pytest.mark.parametrize("name", ["--baseline-endpoint", "--model", "--api", "--timeout"])
def test_what_means_nothing_without_a_server(name: str) -> None:
    result = call(name, "x")
    assert result.exit_code == 2 and f"{name} was given without --endpoint; allowed: beside it" in result.stderr


def test_nobody_there_is_an_error_with_a_hint() -> None:
    with scripted() as gone:
        url = gone.url
    result = call("--endpoint", url)
    assert result.exit_code == 2
    assert f"endpoint is {url}: it cannot be reached: Connection refused" in result.stderr
    assert "hint: does the server run, and is the address right?" in result.stderr
