"""Two models fit when every id means one token to both, however wide their vocabularies were padded."""

import json
from pathlib import Path

import pytest
import torch

from outpace.decoding.control import Fixed
from outpace.decoding.loop import Request
from outpace.drafters.budget import Branching, Budget
from outpace.drafters.small import Small
from outpace.drafters.vocabulary import in_target_ids, require_one_tokenizer
from outpace.errors import UsageError
from outpace.models.function import FunctionTarget
from outpace.models.toy import random_table, table_target
from outpace.verification.coins import Keys
from outpace.verification.probabilities import Sampling, probability_rows
from toys import Watched, must_fail, reference, run

TOKENS = ["a", "b", "c", "d", "<end>"]


def beside(folder: Path, model: FunctionTarget, tokens: list[str] | None = None, file: str = "tokenizer.json") -> None:
    """Put a tokenizer beside a model: the last token is an added one, and the vocabulary lacks it."""
    folder.mkdir(parents=True, exist_ok=True)
    spelled = TOKENS if tokens is None else tokens
    words = {token: index for index, token in enumerate(spelled[:-1])}
    document: object = words | {spelled[-1]: len(spelled) - 1}
    if file == "tokenizer.json":
        added = [{"id": len(spelled) - 1, "content": spelled[-1]}]
        document = {"model": {"type": "BPE", "vocab": words, "merges": []}, "added_tokens": added}
    (folder / file).write_text(json.dumps(document), "utf-8")
    model.folder = folder


def pair(folder: Path, draft_size: int, target_size: int) -> tuple[FunctionTarget, FunctionTarget]:
    """A draft and a target of one tokenizer, padded to sizes of their own."""
    models = []
    for name, size, seed in (("draft", draft_size, 1), ("target", target_size, 26)):
        models.append(table_target(random_table(size, seed=seed), name=name))
        beside(folder / name, models[-1])
    return models[0], models[1]


@pytest.mark.parametrize("sizes", [(6, 6), (6, 8), (8, 6), (5, 9)])
def test_padding_does_not_matter(sizes: tuple[int, int], tmp_path: Path) -> None:
    Small(*pair(tmp_path, *sizes))


def test_the_first_id_that_differs_is_named(tmp_path: Path) -> None:
    draft, target = pair(tmp_path, 6, 8)
    beside(tmp_path / "other", draft, ["a", "b", "x", "y", "<end>"])
    with pytest.raises(
        UsageError,
        match="the draft model 'draft' has another tokenizer than the target 'target': id 2 is 'x' in the draft and "
        "'c' in the target\nhint: use a smaller model of the same family",
    ):
        Small(draft, target)
    beside(tmp_path / "ends", draft, ["a", "b", "c", "d", "<stop>"])
    with pytest.raises(UsageError, match="id 4 is '<stop>' in the draft and '<end>' in the target"):
        Small(draft, target)


def test_one_tokenizer_may_have_more_tokens(tmp_path: Path) -> None:
    draft, target = pair(tmp_path, 8, 8)
    beside(tmp_path / "more", draft, [*TOKENS, "<tool>", "<think>"])
    require_one_tokenizer(draft, target)
    require_one_tokenizer(target, draft)


def test_other_files_than_tokenizer_json(tmp_path: Path) -> None:
    """vocab.json is read; without a file that can be, only the sizes speak."""
    draft, target = pair(tmp_path, 6, 8)
    beside(tmp_path / "old", draft, file="vocab.json")
    require_one_tokenizer(draft, target)
    beside(tmp_path / "pieces", draft, file="notes.json")
    with pytest.raises(
        UsageError, match="'draft' has a vocabulary of 6, the target 'target' one of 8; without a token"
    ):
        require_one_tokenizer(draft, target)
    draft = table_target(random_table(8, seed=1))
    require_one_tokenizer(draft, target)


def test_logits_in_target_ids() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    assert in_target_ids(logits, 3) is logits
    assert in_target_ids(logits, 2).tolist() == [[1.0, 2.0]]
    assert in_target_ids(logits, 5).tolist() == [[1.0, 2.0, 3.0, -torch.inf, -torch.inf]]


TREES = ["chain", "top-k:3", "top-p:0.95", "sampled:3", "static:0.3,0.2,0.2,0.1,0.1,0.1"]


def proposals(small: Small, tree: str, sampling: Sampling, rows: int = 300) -> list[int]:
    """Every token that is drafted behind token 3; the laws that come with it must be the model's own, renormalised."""
    state = small.open(rows, 40)
    small.admit(state, [[0]] * rows, None)
    small.commit(state, [[3]] * rows, None)
    keys = Keys(tuple(range(rows)), (0,) * rows, (1,) * rows, (False,) * rows)
    budget = Budget([3] * rows, [3 if tree == "chain" else 8] * rows, Branching.parse(tree))
    proposal = small.propose(state, budget, [sampling] * rows, keys)
    if proposal.draft_probs is not None:
        assert isinstance(small.model, FunctionTarget)
        own = small.model.logits_of(torch.tensor([[3]]))[0, 0, : small.vocab_size]
        law = torch.zeros(small.vocab_size, dtype=torch.float64)
        law[: len(own)] = probability_rows(own, sampling)
        torch.testing.assert_close(proposal.draft_probs[:, 0], law.expand(rows, -1))
    return [token for tokens, _ in proposal.tree.to_lists() for token in tokens]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0), Sampling(2.0, top_p=0.9)], ids=str)
@pytest.mark.parametrize("tree", TREES)
def test_ids_that_one_of_them_lacks_are_never_drafted(tree: str, sampling: Sampling, tmp_path: Path) -> None:
    for sizes in ((9, 5), (5, 9)):
        drafted = proposals(Small(*pair(tmp_path, *sizes)), tree, sampling)
        assert drafted and max(drafted) < 5


def test_an_id_cut_off_after_the_draw_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: a wide law is drawn from, and narrowed only in what is reported."""
    draft, target = pair(tmp_path, 9, 5)
    monkeypatch.setattr("outpace.drafters.small.in_target_ids", lambda logits, size: logits)
    with must_fail():
        proposals(Small(draft, target), "sampled:3", Sampling(1.0))


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("sizes", [(5, 9), (9, 5)])
def test_texts_stay_what_they_are(sizes: tuple[int, int], tree: str, tmp_path: Path) -> None:
    """The target says ids that the draft has never heard of: that row goes on without drafts, and says so."""
    draft, target = pair(tmp_path, *sizes)
    prompts = [(0,), (1, 2), (3, 4, 1)]
    texts = [reference(target, prompt, 16) for prompt in prompts]
    watched = Watched(draft)
    fed: list[int] = []
    score = watched.score

    def noting(state: object, last: torch.Tensor, tree: object, taps: tuple[int, ...] = ()) -> object:
        fed.extend([*last.tolist(), *tree.tokens[tree.real].tolist()])  # type: ignore[attr-defined]
        return score(state, last, tree, taps)  # type: ignore[arg-type]

    watched.score = noting  # type: ignore[method-assign, assignment]
    control = Fixed(Branching.parse(tree), 3, 3 if tree == "chain" else 7)
    requests = [Request(prompt, max_new_tokens=16) for prompt in prompts]
    foreign = any(token >= sizes[0] for text in texts for token in text)
    assert foreign == (sizes[0] < sizes[1]), "the toy must say what it is there to say"
    if foreign:
        with pytest.warns(UserWarning, match=r"'draft' lacks the id [5-8]; a text that holds it is decoded without"):
            rows = run(target, Small(watched, target), requests, control=control)
        assert any(row.stats.plain_turns > 1 for row in rows)
    else:
        rows = run(target, Small(watched, target), requests, control=control)
    assert [row.ids for row in rows] == texts
    assert fed and max(fed) < sizes[0]


def test_a_prompt_with_a_foreign_id(tmp_path: Path) -> None:
    """Read as far as it goes, be that nowhere; the other rows of the batch draft on."""
    draft, target = pair(tmp_path, 5, 9)
    small = Small(draft, target)
    state = small.open(3, 12)
    with pytest.warns(UserWarning, match="lacks the id"):
        small.admit(state, [[7, 1], [1, 2, 8, 0], [1, 2]], None)
    assert state.read == [[0], [1, 2], [1, 2]] and state.foreign == [True, True, False]
    small.commit(state, [[1], [1], [3]], None)
    keys = Keys((0,) * 3, (0,) * 3, (3,) * 3, (False,) * 3)
    for branching in ("chain", "top-k:2", "sampled:2"):
        budget = Budget([2] * 3, [2 if branching == "chain" else 4] * 3, Branching.parse(branching))
        proposal = small.propose(state, budget, [Sampling(1.0)] * 3, keys)
        counts = proposal.tree.num_nodes.tolist()
        assert counts[:2] == [0, 0] and counts[2] > 0
    small.commit(state, [[0], [2], [4]], None)
    small.select(state, [2, 0])
    assert state.foreign == [False, True] and state.known == [[1, 2, 3, 4], [7, 1, 1, 0]]
