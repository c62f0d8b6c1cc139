"""The default model beside transformers: logits, greedy text under drafts, bf16, and what the pull must bring along."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

import outpace
from outpace.decoding.text import text_of
from outpace.models.load import native_dtype
from outpace.models.transformer import Transformer
from outpace.models.weights import find_weights
from outpace.verification.tree import DraftTree

pytestmark = pytest.mark.real

NEW = 40
CLOSE = {"atol": 1e-3, "rtol": 1e-4}  # logits reach 39 and were seen to differ by 7e-5
NEAR_TIE = 0.25  # of fp32 logits: bf16 rounds logits near 20 to eighths
QUESTIONS = [
    "List ten animals, one a line, each with the word animal.",
    "What is the capital of France?",
    "Repeat this word for word: the quick brown fox jumps over the lazy dog and the quick brown fox sleeps.",
]


@pytest.fixture(scope="module")
def folder() -> Path:
    """Pulled when it is not here yet."""
    return find_weights()


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[list[int]]:
    return [text_of(folder).encode(question) for question in QUESTIONS]


@lru_cache(maxsize=1)  # one copy of the weights at a time
def reference(folder: Path, dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def read(model: Any, texts: list[list[int]]) -> list[Float[Tensor, "time vocab"]]:
    """Logits after every token of every text."""
    with torch.inference_mode():
        logits = model(pad_sequence([torch.tensor(text) for text in texts], batch_first=True), use_cache=False).logits
    return [row[: len(text)].float() for row, text in zip(logits, texts, strict=True)]


def greedy(model: Any, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False, pad_token_id=2)
    text: list[int] = out[0, len(prompt) :].tolist()
    return text


def spoken(target: Transformer, prompts: list[list[int]]) -> list[outpace.Result]:
    """Greedy text with lookup at K = 4, all prompts in one batch."""
    lookup = outpace.load_drafter("lookup", target)
    return outpace.generate(target, lookup, prompts, max_new_tokens=NEW, num_draft_tokens=4)


def test_logits_in_fp32(folder: Path, prompts: list[list[int]]) -> None:
    """Prompts of different lengths; then a tree, nothing and a chain; then the turn after the second branch is kept."""
    target, model = outpace.load_target(dtype="fp32"), reference(folder, torch.float32)
    texts = [prompts[0], prompts[1][:7], prompts[2]]
    state = target.open(3, 96)
    padded = pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
    first = target.prefill(state, padded, list(map(len, texts))).logits[:, 0]
    assert_close(first, torch.stack([row[-1] for row in read(model, texts)]), **CLOSE)
    last = first.argmax(-1)
    tree = DraftTree.from_lists([([260, 28, 33, 338, 253], [-1, -1, 1, 1, 3]), ([], []), ([30, 198, 57], [-1, 0, 1])])
    scored = target.score(state, last, tree).logits
    paths = [[[260], [28, 33], [28, 338, 253]], [[]], [[30, 198, 57]]]
    nodes = [[[0], [1, 2], [1, 3, 4]], [[]], [[0, 1, 2]]]
    runs = [texts[row] + [int(last[row]), *path] for row in range(3) for path in paths[row]]
    rows = [[row, [0, *(1 + node for node in places)]] for row in range(3) for places in nodes[row]]
    for (row, places), expected in zip(rows, read(model, runs), strict=True):
        assert_close(scored[row, places], expected[len(texts[row]) :], **CLOSE)
    target.keep(state, torch.tensor([[1, 3, 4], [-1, -1, -1], [0, 1, -1]]), [3, 0, 2])
    texts = [runs[2], runs[3], runs[4][:-1]]
    again = target.score(state, torch.tensor([28, 28, 28]), DraftTree.empty(3)).logits[:, 0]
    expected = torch.stack([row[-1] for row in read(model, [[*text, 28] for text in texts])])
    assert_close(again, expected, **CLOSE)


def test_greedy_text_in_fp32(folder: Path, prompts: list[list[int]]) -> None:
    """Token for token transformers' text, although part of it was drafted.

    The two best logits of each step lie 0.04 apart or more, so that no processor's rounding decides.
    """
    model = reference(folder, torch.float32)
    expected = [greedy(model, prompt) for prompt in prompts]
    results = spoken(outpace.load_target(dtype="fp32"), prompts)
    assert [result.token_ids for result in results] == expected
    assert sum(result.stats.speculation.accepted for result in results) >= 10
    for prompt, text in zip(prompts, expected, strict=True):
        best = read(model, [prompt + text])[0][len(prompt) - 1 : -1].topk(2).values
        assert (best[:, 0] - best[:, 1]).min() > 0.01


def test_bf16_parts_from_transformers_at_near_ties_only(folder: Path, prompts: list[list[int]]) -> None:
    """Where the two bf16 texts first differ, the fp32 logits of the two tokens are less than 0.25 apart."""
    if native_dtype("cpu") != torch.bfloat16:
        pytest.skip("this processor has no bf16 of its own, and outpace does not choose it")
    results = spoken(outpace.load_target(dtype="bf16"), prompts)
    model = reference(folder, torch.bfloat16)
    theirs = [greedy(model, prompt) for prompt in prompts]
    for prompt, result, other in zip(prompts, results, theirs, strict=True):
        parted = [place for place, (a, b) in enumerate(zip(result.token_ids, other, strict=False)) if a != b]
        if parted:
            place = parted[0]
            logits = read(reference(folder, torch.float32), [prompt + other[:place]])[0][-1]
            assert abs(logits[result.token_ids[place]] - logits[other[place]]) < NEAR_TIE


def test_template_and_end_of_text_survive_the_pull(folder: Path, prompts: list[list[int]]) -> None:
    """The answer is an assistant's, and it ends: the template's own end-of-turn token is the target's end of text."""
    text = text_of(folder)
    assert text.tokenizer.decode(prompts[1]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    target = outpace.load_target()
    assert target.eos_ids == tuple(text.tokenizer.encode("<|im_end|>")) == (2,)
    result = outpace.generate(target, None, QUESTIONS[1], max_new_tokens=NEW)
    assert "Paris" in result.text
    assert (result.finish_reason, result.token_ids[-1]) == ("stop", 2)
    assert result.text == text.decode(result.token_ids[:-1])
