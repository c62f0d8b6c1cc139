"""Near the end of the context: what plain decoding can do, drafting can do, and no position beyond it is read."""

import pytest

from outpace.decoding.generate import generate
from outpace.drafters.lookup import Lookup
from outpace.drafters.small import Small
from outpace.errors import UsageError
from outpace.models.transformer import Transformer
from toys import Scripted, Watched, lively, reference, right_then_wrong

CONTEXT = 32


@pytest.fixture(scope="module")
def short() -> Transformer:
    return lively(max_position_embeddings=CONTEXT)


def prompt_of(length: int) -> list[int]:
    return [(7 * place) % 64 for place in range(length)]


@pytest.mark.parametrize("num_draft_tokens", [2, 4, 8, 20])
@pytest.mark.parametrize("length", [1, 28, 31])
def test_to_the_last_position(length: int, num_draft_tokens: int, short: Transformer) -> None:
    prompt = prompt_of(length)
    wanted = reference(short, tuple(prompt), CONTEXT - length)
    script = right_then_wrong([[*prompt, *wanted]], [8, 0, 2])
    for guesser in (None, Lookup(), Small(short, short), Scripted(script)):
        watched = Watched(short)
        result = generate(watched, guesser, prompt, max_new_tokens=None, num_draft_tokens=num_draft_tokens)
        assert result.token_ids == wanted and result.finish_reason == "length"
        assert watched.furthest < CONTEXT


def test_more_than_fits_is_cut_at_the_context(short: Transformer) -> None:
    result = generate(short, None, prompt_of(28), max_new_tokens=100)
    assert (len(result.token_ids), result.finish_reason) == (4, "length")


def test_a_full_context_is_refused_unless_nothing_is_asked_for(short: Transformer) -> None:
    assert generate(short, Lookup(), prompt_of(32), max_new_tokens=0).token_ids == []
    for length in (32, 33):
        with pytest.raises(UsageError, match=f"prompt 0 has {length} tokens; the context of 'tiny-llama' holds 32"):
            generate(short, Lookup(), prompt_of(length))
    with pytest.raises(UsageError, match="prompt 1 has 40 tokens"):
        generate(short, None, [prompt_of(3), prompt_of(40)])


def test_rows_at_different_distances_from_the_end(short: Transformer) -> None:
    """One row has no room to draft while its neighbours have plenty."""
    prompts = [prompt_of(length) for length in (30, 5, 31, 17)]
    texts = [[*prompt, *reference(short, tuple(prompt), CONTEXT - len(prompt))] for prompt in prompts]
    for guesser in (Scripted(right_then_wrong(texts, [[8], [2], [1], [0]])), Small(short, short)):
        results = generate(short, guesser, prompts, max_new_tokens=None, num_draft_tokens=8)
        assert [[*p, *result.token_ids] for p, result in zip(prompts, results, strict=True)] == texts


@pytest.mark.parametrize("context", [8, 15, 24])
def test_a_draft_model_with_a_shorter_context(context: int, tiny: Transformer) -> None:
    """It drafts as long as it can, says so when it cannot, and the text does not change."""
    small = lively(max_position_embeddings=context)  # the same weights, so every draft is right
    prompts = [prompt_of(length) for length in (15, 3)]
    with pytest.warns(UserWarning, match=f"the draft model 'tiny-llama' has a context of {context} tokens"):
        results = generate(tiny, Small(small, tiny), prompts, max_new_tokens=30, num_draft_tokens=4)
    assert [result.token_ids for result in results] == [reference(tiny, tuple(p), 30) for p in prompts]
    for prompt, result in zip(prompts, results, strict=True):
        stats = result.stats.speculation
        room = context + 1 - len(prompt) - 1  # the last token it can draft is the one behind its context
        assert stats.acceptance in (1.0, None)
        assert stats.drafted <= max(0, room)
        assert stats.plain_turns > 0 and (stats.drafted > 0) == (room > 0)
