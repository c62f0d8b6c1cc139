"""Pages of counters: what vLLM, SGLang, llama.cpp and TensorRT-LLM say of drafting, as one set of figures."""

import json

import pytest

from outpace.evaluation.counters import Counters, read, samples
from pages import LLAMA, PLAIN, SGLANG, TRT, vllm


@pytest.mark.parametrize(("engine", "page"), [("vLLM", vllm()), ("llama.cpp", LLAMA)])
def test_counters_of_drafts(engine: str, page: str) -> None:
    """100 drafts of two tokens, 80 first and 40 second ones accepted, 300 tokens in 10 answers.

    By hand: 120 of 200 accepted; 1.2 beside the target's own token; of the second positions half, and of all that were
    decided (80 + 40) of (100 + 80). Behind the first tokens 290 stand, of which 120 saved a forward: 170 forwards.
    """
    found = read(page)
    assert found is not None and found.engine == engine and found.drafting
    assert found.accepted_share == pytest.approx(0.6) and found.tokens_per_draft == pytest.approx(2.2)
    assert found.acceptance_by_position == pytest.approx((0.8, 0.5))
    assert found.acceptance == pytest.approx(120 / 180)
    assert found.tau(300, 10) == pytest.approx(290 / 170)


def test_sglang_counts_forwards_and_has_a_gauge() -> None:
    """310 tokens of streamed answers and others in 10 answers, 100 forwards; the gauge is the mean over its ranks."""
    found = read(SGLANG)
    assert found is not None and found.engine == "SGLang" and found.drafting
    assert (found.forwards, found.generated) == (100.0, 310.0)
    assert found.tau(300, 10) == pytest.approx(300 / 100)
    assert found.tokens_per_draft == pytest.approx(3.0)
    assert (found.accepted_share, found.acceptance, found.acceptance_by_position) == (None, None, ())


def test_tensorrt_llm_has_no_positions() -> None:
    found = read(TRT)
    assert found is not None and found.engine == "TensorRT-LLM"
    assert found.accepted_share == pytest.approx(0.6) and found.tokens_per_draft == pytest.approx(2.2)
    assert found.acceptance is None and found.tau(300, 10) == pytest.approx(290 / 170)


def test_what_was_counted_between_two_pages() -> None:
    before, after = read(vllm()), read(vllm(generated=380, drafts=130, drafted=260, accepted=171, first=107, second=64))
    assert before is not None and after is not None
    gained = after.since(before)
    assert gained == Counters("vLLM", 30.0, 60.0, 51.0, (27.0, 24.0), None, 80.0, None)
    assert gained.plus(gained) == Counters("vLLM", 60.0, 120.0, 102.0, (54.0, 48.0), None, 160.0, None)
    assert gained.acceptance_by_position == pytest.approx((0.9, 24 / 27))


def test_a_server_that_began_anew_in_between_tells_nothing() -> None:
    before, after = read(vllm()), read(vllm(drafts=3))
    assert before is not None and after is not None and after.since(before) is None
    other = read(LLAMA)
    assert other is not None and other.since(before) is None


def test_counters_that_were_not_there_before_began_at_nothing() -> None:
    before, after = read(PLAIN), read(vllm())
    assert before is not None and after is not None and not before.drafting
    gained = after.since(before)
    assert gained is not None and (gained.drafts, gained.generated, gained.by_position) == (100, 250, (80, 40))


def test_a_server_that_drafts_nothing() -> None:
    found = read(PLAIN)
    assert found is not None and not found.drafting
    assert (found.tau(50, 2), found.accepted_share, found.tokens_per_draft, found.acceptance) == (None,) * 4


@pytest.mark.parametrize("page", [None, "", "# nothing\n", "<html>404</html>", "go_goroutines 7\n", '"torn'])
def test_no_page_or_one_of_nobody_known(page: str | None) -> None:
    assert read(page) is None


def test_a_page_that_came_as_a_json_string() -> None:
    """llama.cpp 7010 to 7100 sent it so: ggml-org/llama.cpp, issue 17384."""
    assert read(json.dumps(LLAMA)) == read(LLAMA)


def test_several_engines_behind_one_server_are_added() -> None:
    second = vllm().replace('engine="0"', 'engine="1"')
    together, one = read(vllm() + second), read(vllm())
    assert together is not None and one is not None and together == one.plus(one)


def test_the_format_of_a_sample() -> None:
    page = 'a{x="1,}",y="q\\"q"} 2e3 1700000000\nb NaN\nc{} +Inf\nnot a sample\nd{x="1"\n# TYPE a counter\n  e   5  \n'
    found = samples(page)
    assert found["a"] == [({"x": "1,}", "y": 'q\\"q'}, 2000.0)]
    assert found["c"] == [({}, float("inf"))] and found["e"] == [({}, 5.0)]
    assert set(found) == {"a", "b", "c", "e"}


def test_more_accepted_than_stand_tells_no_tau() -> None:
    """Tokens behind a stop are accepted and never sent; a few answers may have more of them than tokens."""
    found = read(vllm())
    assert found is not None and found.tau(100, 10) is None
