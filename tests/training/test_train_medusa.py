"""Medusa heads from a recipe to a card: gone on with to the bit, learnt by heart, walked and opened as they decode.

Greedy texts are fixed, so that nothing here can raise a false alarm.
"""

import copy
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from medusas import by_heart, mostly_first
from outpace.cli import app
from outpace.decoding.control import Fixed
from outpace.decoding.loop import Request, decode
from outpace.decoding.stats import Speculation
from outpace.decoding.turn import Turn
from outpace.drafters.budget import RANKS, Branching
from outpace.drafters.drafter import falling_by_depth, rates_of
from outpace.drafters.load import load_drafter
from outpace.drafters.medusa import Medusa
from outpace.drafters.medusa_heads import MedusaHeads
from outpace.drafters.record import BESIDE, Card, read_record
from outpace.errors import UsageError
from outpace.export.formats import METHODS, export
from outpace.models.target import Target
from outpace.models.transformer import Transformer
from outpace.models.weights import load_tensors
from outpace.training.course import Course, prepare, run
from outpace.training.ledger import read_ledger
from outpace.training.medusa import Medusa as Method
from outpace.training.parallel import ranks_of
from outpace.training.ranges import HARD
from outpace.training.recipe import MedusaSettings, MedusaTraining, Recipe
from outpace.training.rounds import Walked
from outpace.verification.expectation import chain_tokens, tree_tokens
from outpace.verification.shape import StaticShape, static_tree
from pupils import NEW, answers_of, model_folder, opened
from toys import lively, must_fail, reference
from toys import run as generated

LEAST = 'format_version = 1\nmethod = "medusa"\ndtype = "fp32"\n'
HEADS = 3


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return opened(model_folder(tmp_path_factory.mktemp("targets") / "tiny"))


@pytest.fixture(scope="module")
def answers(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return answers_of(target, tmp_path_factory.mktemp("data") / "answers.jsonl")


def recipe_of(answers: Path, *, held_out: float = 0.4, head: dict[str, Any] | None = None, **train: Any) -> Recipe:
    chosen = {"epochs": 8, "tokens_per_batch": 80, "batches_per_step": 2, "precision": "fp32", "learning_rate": 1e-2}
    tables = {
        "data": {"answers": [str(answers)], "held_out": held_out, "features": "recorded"},
        "head": {"heads": HEADS} | (head or {}),
        "train": chosen | train,
        "walk": {"new_tokens": NEW},
    }
    lines = [
        line
        for name, table in tables.items()
        for line in (f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items()))
    ]
    return Recipe.from_toml(LEAST + "\n".join(lines) + "\n")


def prepared(chosen: Recipe, target: Target, folder: Path) -> Course:
    return prepare(chosen, target, folder / "work", folder / "features")


# ---- a whole training ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[False, True], ids=["shared", "own"])
def trained(request: Any, target: Target, answers: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Card]:
    """A card of heads that were trained on some answers and walked over the others, and of what it was made."""
    folder = tmp_path_factory.mktemp("trained")
    chosen = recipe_of(answers, head={"own_head": request.param}, epochs=20)
    course = prepared(chosen, target, folder)
    return folder, run(course, chosen, folder / "card", folder / "work")[1]


def test_it_is_trained_and_written(trained: tuple[Path, Card], target: Target) -> None:
    """Features without taps, losses that fall, and a card in the authors' layout that says the rates of every depth."""
    folder, card = trained
    lines = [line for line in read_ledger(folder / "work" / "log.jsonl") if "loss" in line]
    assert all(last < first for first, last in zip(lines[0]["loss"], lines[-1]["loss"], strict=True))
    assert len(lines[0]["loss"]) == HEADS
    files = {path.name for path in (folder / "card").iterdir()}
    assert files >= {"config.json", "model.safetensors", "outpace.json", *BESIDE[:2]}
    back = read_record(folder / "card", "medusa")
    assert replace(back, recipe={}) == replace(card, recipe={}) and back.recipe["head"]["heads"] == HEADS
    assert (back.taps, back.depth_trained, back.draft_vocab_size) == ((), HEADS, target.vocab_size)
    own = {name for name in load_tensors(folder / "card") if name.endswith(".1.weight")}
    assert len(own) == HEADS * back.flags["own_head"]
    by_depth = back.acceptance_by_depth_and_rank
    assert by_depth is not None and tuple(rates[0] for rates in by_depth) == back.acceptance_by_position
    assert all(len(rates) == RANKS for rates in by_depth) and 1 <= len(by_depth) <= HEADS
    assert back.tau is not None and back.tau > 1


# ---- walked as it decodes --------------------------------------------------------------------------------------------


def decoded(drafter: Medusa, target: Target, prompts: Sequence[Sequence[int]], depth: int) -> dict[str, Any]:
    """What the decoder counts of greedy chains, and where its tokens stand among those of each head."""
    counts = [Counter[int]() for _ in range(depth)]
    figures: list[Speculation] = []

    def look(turn: Turn, rows: list[int]) -> None:
        shown = turn.proposal.draft_logits
        for row, count in enumerate(turn.proposal.tree.num_nodes.tolist()):
            for step in range(min(count, len(turn.paths[row]) + 1)):
                assert shown is not None
                said = turn.emitted[row][step]
                counts[step][1 + int((shown[row, step] > shown[row, step, said]).sum())] += 1

    requests = [Request(tuple(prompt), max_new_tokens=NEW, eos_ids=target.eos_ids) for prompt in prompts]
    for emission in decode(target, drafter, requests, num_draft_tokens=depth, observer=look):
        figures += [] if emission.speculation is None else [emission.speculation]
    turns, emitted = sum(one.turns for one in figures), sum(one.emitted for one in figures)
    by_depth = tuple(tuple(each[rank] / each.total() for rank in range(1, 1 + RANKS)) for each in counts if each)
    return {"tau": emitted / turns, "acceptance_by_depth_and_rank": by_depth}


def figures_of(card: Card) -> dict[str, Any]:
    return {name: getattr(card, name) for name in ("tau", "acceptance_by_depth_and_rank")}


def held_out(course: Course) -> list[list[int]]:
    assert course.held_out is not None
    return [one.ids[: int(one.loss_mask.int().argmax())].tolist() for one in course.held_out.samples]


def test_the_figures_of_a_card_are_the_decoders(
    trained: tuple[Path, Card], target: Target, answers: Path, tmp_path: Path
) -> None:
    """With the card opened as anybody would open it, in fp32."""
    drafter = load_drafter(str(trained[0] / "card"), target)
    assert isinstance(drafter, Medusa)
    prompts = held_out(prepared(recipe_of(answers), target, tmp_path))
    assert figures_of(trained[1]) == decoded(drafter, target, prompts, HEADS)


PROMPTS = ((9,), (5, 6, 7), (1, 2, 3, 4, 5, 6, 7), (11, 3, 2, 8, 1, 1, 30, 12, 7))


@cache
def known() -> tuple[Transformer, MedusaHeads]:
    """Heads that know some texts by heart, but take another token for a likelier one now and then."""
    wide = lively(hidden_size=128)
    texts = [(prompt, reference(wide, prompt, NEW)) for prompt in PROMPTS]
    return wide, by_heart(wide, texts, rank=mostly_first)


def walked(depth: int) -> Walked:
    wide, heads = known()
    text = f"[head]\nheads = 4\nown_head = true\n[walk]\ndepth = {depth}\nnew_tokens = {NEW}\n"
    method = Method(Recipe.from_toml(LEAST + text), wide)
    return method.walk(heads, method.trial(), PROMPTS)


def case(depth: int) -> None:
    wide, heads = known()
    found = walked(depth)
    rounded = copy.deepcopy(heads).bfloat16().float()
    expected = decoded(Medusa(rounded, wide, packed=False), wide, PROMPTS, depth)
    assert {name: getattr(found, name) for name in expected} == expected
    assert found.tau is not None and found.tau > 1.5, "heads that are never right would agree with anything"
    firsts = tuple(rates[0] for rates in found.acceptance_by_depth_and_rank)
    assert firsts == found.acceptance_by_position and found.acceptance_by_depth_and_rank[0][1] > 0


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_walked_tau_and_rates_are_the_decoders(depth: int) -> None:
    case(depth)


def next_place(*given: Any) -> Any:
    """Planted: the ranks of a place are those of the next one."""
    return [[*text[1:], text[-1]] for text in ranks_of(*given)]


def other_heads(*given: Any) -> Any:
    """Planted: the ranks of a head are those of another."""
    return [[steps[::-1] for steps in text] for text in ranks_of(*given)]


@pytest.mark.parametrize("fault", [next_place, other_heads])
def test_walking_beside_it_is_noticed(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outpace.training.medusa.ranks_of", fault)
    with must_fail():
        case(4)


def test_what_all_depths_say_together_is_what_is_pooled() -> None:
    """Of the positions of each depth, weighed by how many a turn decides there."""
    found = walked(4)
    reached, pooled, whole = 1.0, [0.0] * RANKS, 0.0
    for rates in found.acceptance_by_depth_and_rank:
        pooled = [sum_ + reached * rate for sum_, rate in zip(pooled, rates, strict=True)]
        whole, reached = whole + reached, reached * rates[0]
    # Turns at the end of a text have no room for all depths, so that the two are near and not the same.
    assert [rate / whole for rate in pooled] == pytest.approx(found.acceptance_by_rank, abs=0.03)


# ---- trees -----------------------------------------------------------------------------------------------------------


def test_static_works_out_of_the_box(trained: tuple[Path, Card], target: Target) -> None:
    """With the rates of its card, depth by depth; the texts are the plain ones."""
    drafter = load_drafter(str(trained[0] / "card"), target)
    by_depth = trained[1].acceptance_by_depth_and_rank
    assert by_depth is not None
    assert rates_of(Branching("static"), drafter) == falling_by_depth(by_depth)
    prompts = [tuple(prompt) for prompt in ((5, 6, 7), (9,), (11, 3, 2, 8))]
    requests = [Request(prompt, max_new_tokens=NEW, eos_ids=target.eos_ids) for prompt in prompts]
    rows = generated(target, drafter, requests, control=Fixed(Branching("static"), HEADS, 12))
    assert [row.ids for row in rows] == [reference(target, prompt, NEW, target.eos_ids) for prompt in prompts]


def uniform(width: int, nodes: int, depth: int) -> StaticShape:
    """The shape of ``top-k`` when nothing is known of a draft: full depths, as far as nodes reach."""
    parents, ranks, above = list[int](), list[int](), [-1]
    for _ in range(depth):
        places = [(parent, rank) for parent in above for rank in range(width)][: nodes - len(parents)]
        above = [*range(len(parents), len(parents) + len(places))]
        parents += [parent for parent, _ in places]
        ranks += [rank for _, rank in places]
    return StaticShape(tuple(parents), tuple(ranks))


def test_the_best_static_tree_is_not_below_other_shapes() -> None:
    """In expectation by the measured rates, whatever the number of nodes."""
    rates = falling_by_depth(walked(4).acceptance_by_depth_and_rank)
    wide = [[*one, *[0.0] * RANKS][:RANKS] for one in rates]
    better = 0
    for nodes in range(1, 25):
        best = tree_tokens(static_tree(rates, nodes, len(rates)), wide)
        chain = chain_tokens([one[0] for one in rates], min(nodes, len(rates)))
        others = [tree_tokens(uniform(width, nodes, len(rates)), wide) for width in (1, 2, 3, 8)]
        assert best >= max(chain, *others) - 1e-12
        better += best > max(chain, *others) + 1e-9
    assert better > 0, "were it never better, nobody would need it"


def test_it_is_exported_and_drafts_the_same(trained: tuple[Path, Card], target: Target, tmp_path: Path) -> None:
    """In both layouts, every proposal of a text, with its logits."""

    def proposals(name: str) -> list[tuple[list[list[int]], torch.Tensor | None]]:
        found = []

        def look(turn: Turn, rows: list[int]) -> None:
            said = [tokens for tokens, _ in turn.proposal.tree.to_lists()]
            found.append((said, turn.proposal.draft_logits))

        requests = [Request(prompt, max_new_tokens=NEW) for prompt in ((5, 6, 7), (11, 3, 2, 8))]
        control = Fixed(Branching.parse("static:0.5,0.2,0.1"), HEADS, 9)
        generated(target, load_drafter(name, target), requests, control=control, observer=look)
        return found

    first = proposals(str(trained[0] / "card"))
    assert len(first) > 4
    for layout in METHODS["medusa"]:
        export(str(trained[0] / "card"), layout, tmp_path / layout)
        again = proposals(str(tmp_path / layout))
        for (ours, mine), (theirs, other) in zip(first, again, strict=True):
            assert ours == theirs
            torch.testing.assert_close(mine, other)


# ---- from trained heads on -------------------------------------------------------------------------------------------


def test_it_is_begun_with_trained_heads(
    trained: tuple[Path, Card], target: Target, answers: Path, tmp_path: Path
) -> None:
    """Their weights are the first; a recipe that says another shape is refused."""
    own, name = trained[1].flags["own_head"], str(trained[0] / "card")
    course = prepared(recipe_of(answers, head={"own_head": own, "begin_with": name}), target, tmp_path)
    begun, stored = course.lesson.pupil, load_tensors(trained[0] / "card")
    assert isinstance(begun, MedusaHeads) and begun.state_dict().keys() == stored.keys()
    assert all(torch.equal(weight.bfloat16(), stored[key]) for key, weight in begun.state_dict().items())
    assert {weight.dtype for weight in begun.parameters()} == {torch.float32} and "begin_with" in course.identity
    fresh = prepared(recipe_of(answers, head={"own_head": own}), target, tmp_path)
    assert "begin_with" not in fresh.identity and fresh.identity["head.own_head"] == own
    with pytest.raises(UsageError, match=r"heads of the recipe is 4, and '.*card', with which it begins, has 3; allow"):
        prepared(recipe_of(answers, head={"own_head": own, "heads": 4, "begin_with": name}), target, tmp_path)


# ---- recipes and the verb --------------------------------------------------------------------------------------------


def test_defaults() -> None:
    read = Recipe.from_toml(LEAST + "[head]\n")
    assert (read.head, read.train) == (MedusaSettings(), MedusaTraining()) and read.train.learning_rate == 1e-3
    assert Recipe.from_toml(read.to_toml()) == read
    assert Recipe.from_toml(LEAST + '[head]\n[train]\nloss = "hard"\n').train.loss == HARD
    assert read.with_changes("train", loss=HARD).train.loss == HARD


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[head]\nheads = 0", r"\[head\]: heads is 0; allowed: 1 or more"),
        ("[head]\nlayers = 0", r"\[head\]: layers is 0; allowed: 1 or more"),
        ("[head]\nown_head = 1", r"\[head\]: own_head is 1; allowed: true or false"),
        (
            "[head]\nwarm_start = true",
            r"\[head\]: unknown key 'warm_start'; allowed: heads, layers, own_head, begin_with",
        ),
        ("[head]\n[train]\ndepth = 3", r"\[train\]: unknown key 'depth'; allowed: epochs"),
        ("[head]\n[train]\nmask_outside = true", r"\[train\]: unknown key 'mask_outside'"),
        ("[head]\n[train]\nplaces = 0.0", r"\[train\]: places is 0.0; allowed: above 0, up to 1"),
        (
            '[head]\n[train]\nloss = "soft"',
            r"\[train\]: loss is 'soft'; allowed: one of cross-entropy, .*, lk-hybrid, hard",
        ),
    ],
)
def test_what_is_not_allowed_is_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Recipe.from_toml(f"{LEAST}{text}\n")


def test_the_hard_loss_is_no_other_method_s() -> None:
    text = LEAST.replace("medusa", "eagle3") + "[head]\nnorm_before_residual = false\nnorm_before_fc = false\n"
    text += 'fc_norm = false\nnorm_output = false\n[train]\nloss = "hard"\n'
    with pytest.raises(UsageError, match=r"\[train\]: loss is 'hard'; allowed: one of cross-entropy, .*, lk-hybrid$"):
        Recipe.from_toml(text)


def test_no_chain_is_walked_deeper_than_there_are_heads(target: Target, answers: Path, tmp_path: Path) -> None:
    deep = recipe_of(answers).with_changes("walk", depth=4)
    with pytest.raises(UsageError, match=r"depth of \[walk\] is 4; allowed: 1 to 3, as there are heads"):
        prepared(deep, target, tmp_path)
    assert prepared(deep.with_changes("walk", depth=2), target, tmp_path).lesson.steps == HEADS


def test_the_verb(target: Target, answers: Path, tmp_path: Path) -> None:
    """Planned, trained and told, by the command alone."""
    chosen, out = recipe_of(answers, epochs=2), tmp_path / "heads"
    (tmp_path / "recipe.toml").write_text(chosen.to_toml(), "utf-8")
    words = [
        "train",
        "medusa",
        "--recipe",
        str(tmp_path / "recipe.toml"),
        "--target",
        str(target.folder),
        "--out",
        str(out),
    ]
    planned = CliRunner().invoke(app, [*words, "--plan"])
    assert planned.exit_code == 0 and planned.stdout.lstrip().startswith("Medusa heads for"), planned.output
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["tau"] == read_record(out).tau
