"""80: training renders a dialogue otherwise than serving: validation looks well, and acceptance is low."""

from pathlib import Path
from typing import Any

import pytest

from chats import EOS, FORGETS, REWRITES, THINKS, chat_model, chat_text, words_of
from outpace.decoding.generate import generate
from outpace.decoding.prompts import Entry
from outpace.errors import UsageError
from outpace.training import corpus, masks
from outpace.training.answers import answer
from outpace.training.corpus import read_answers, samples_of
from outpace.training.masks import answered, dialogue
from toys import must_fail

NEW = 12


def talk(*turns: str) -> list[dict[str, str]]:
    return [{"role": "assistant" if place % 2 else "user", "content": turn} for place, turn in enumerate(turns)]


def case(folder: Path) -> None:
    """What is trained is what serving reads and says, to the id; a dialogue of which that is not so is refused."""
    templates = {"thinks": THINKS, "forgets": FORGETS, "rewrites": REWRITES}
    texts = {name: chat_text(folder / name, template) for name, template in templates.items()}
    for name, text in texts.items():
        target = chat_model()
        target.folder = folder / name
        served = generate(target, None, "hi", max_new_tokens=NEW)
        ids = [*text.encode("hi"), *served.token_ids]
        assert answered(text, "one", "hi", served.token_ids).ids.tolist() == ids
        path = folder / f"{name}.jsonl"
        answer(target, text, [Entry("one", 1, None, ("hi",))], path, max_new_tokens=NEW)
        assert [sample.ids.tolist() for sample in samples_of(text, read_answers(path), [EOS])] == [ids]
    sample = dialogue(texts["thinks"], "one", talk("a", "b"), [EOS])
    assert words_of(texts["thinks"], sample.ids[sample.loss_mask].tolist()) == "b<eot>"
    for name, messages in (("forgets", talk("a", "b")), ("rewrites", talk("a", "b", "c", "d"))):
        with pytest.raises(UsageError, match="one, message 1: the chat template renders it otherwise within the"):
            dialogue(texts[name], "one", messages, [EOS])


def test_case(tmp_path: Path) -> None:
    case(tmp_path)


def test_planted_dialogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dialogue is trained as it is rendered, whatever serving reads."""
    monkeypatch.setattr(masks, "_require_within", lambda text, where, served, whole: None)
    with must_fail():
        case(tmp_path)


def test_planted_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are trained behind the rendered dialogue up to there, without what serving adds before them."""

    def rendered(text: Any, key: str, prompt: Any, answer_ids: Any) -> Any:
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": ""}]
        ids = text.tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"][:-2]
        return honest(text, key, ids, answer_ids)

    honest = corpus.answered
    monkeypatch.setattr(corpus, "answered", rendered)
    with must_fail():
        case(tmp_path)
