"""A student: its embeddings are its target's as well as so few numbers can be; what is written opens as what it was."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hosts import greedy, liven, model_of
from lessons import target_folder
from outpace.errors import UnsupportedError, UsageError, WeightsError
from outpace.models import student as module
from outpace.models import student_files as files
from outpace.models.ends import read_ends
from outpace.models.function import FunctionTarget
from outpace.models.load import load_target
from outpace.models.student import Student, new_student, open_student, projected, tell_size
from outpace.models.student_files import save_student, student_target
from outpace.models.target import Target
from outpace.models.toy import random_table, table_target, tiny_transformer
from outpace.models.transformer import Transformer
from outpace.models.weights import load_tensors, read_config, save_tensors, tensor_files, vocabulary
from pupils import model_folder
from toys import dense_logits, must_fail

CLOSE: dict[str, Any] = {"atol": 1e-4, "rtol": 1e-4}
SMALL: dict[str, Any] = {"depth": 1, "width": 16, "heads": 2}
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """A tiny target with a tokenizer, and a vocabulary that is padded beyond it."""
    return load_target(model_folder(tmp_path_factory.mktemp("target")), dtype="fp32")


def lively_student(target: Target, **changes: Any) -> Student:
    """One whose weights all matter; fp32."""
    made = new_student(target, **(SMALL | {"kv_heads": 1} | changes))
    liven(made.model)
    return made


@torch.no_grad()
def said(student: Student, text: list[int]) -> Tensor:
    """Its logits after every token, by its own module."""
    return student(torch.tensor([text]))[0] @ student.rows.mT


# ---- a new one -------------------------------------------------------------------------------------------------------


def test_it_speaks_as_its_target_does(target: Target) -> None:
    """Its ids, padding and all, its context, the ids that end its texts."""
    made = new_student(target, **SMALL)
    config = made.model.config
    assert made.vocab_size == target.vocab_size and made.max_positions == target.max_positions
    assert config.eos_token_id == list(target.eos_ids) and config.model_type == "llama"
    assert config.rope_parameters["rope_theta"] == target.shape.rotary["rope_theta"]
    assert {weight.dtype for weight in made.parameters()} == {torch.float32}


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_are_copied_where_the_widths_agree(target: Target, tied: bool) -> None:
    made, ends = new_student(target, depth=1, width=32, heads=4, feed_forward=20, tied=tied), read_ends(target)
    embedding = made.model.get_input_embeddings().weight
    assert torch.equal(embedding, ends.embeddings)
    assert (made.rows is embedding) == tied
    if not tied:
        assert torch.equal(made.rows, ends.head)
    narrow = new_student(target, **SMALL, tied=tied)
    assert torch.equal(narrow.model.get_input_embeddings().weight, projected(ends.embeddings, 16)[0])
    if not tied:
        assert torch.equal(narrow.rows, projected(ends.head, 16)[0])


def test_a_seed_names_its_weights_and_leaves_other_chance_alone(target: Target) -> None:
    torch.manual_seed(5)
    first = new_student(target, **SMALL, embeddings="random", seed=1)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(3))
    same, other = (new_student(target, **SMALL, embeddings="random", seed=seed) for seed in (1, 2))
    pairs = zip(first.parameters(), same.parameters(), other.parameters(), strict=True)
    for one, again, another in pairs:
        assert torch.equal(one, again)
        assert torch.equal(one, another) == (one.dim() == 1)


def test_the_end_of_a_text_is_learnt_though_some_pad_with_it(target: Target) -> None:
    """A configuration that pads with the end of a text keeps that row from every gradient in transformers."""
    model = model_of("llama")
    config = type(model.config)(**(model.config.to_dict() | {"pad_token_id": 2}))
    student = Student(type(model)(config))
    student(torch.tensor([[2, 3]])).sum().backward()
    assert bool(student.model.get_input_embeddings().weight.grad[2].any())


def test_sizes(target: Target) -> None:
    made = new_student(target, **SMALL)
    assert made.model.config.intermediate_size == 64 and made.model.config.num_key_value_heads == 2
    assert new_student(target, depth=2, width=24, heads=4, kv_heads=2, feed_forward=20).num_parameters == (
        target.vocab_size * 24 + 24 + 2 * (2 * 24 * 24 + 2 * 24 * 12 + 3 * 24 * 20 + 2 * 24)
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"depth": 0}, "depth is 0; allowed: 1 or more"),
        ({"kv_heads": 0}, "kv_heads is 0; allowed: 1 or more"),
        ({"width": 17}, "the width is 17 and there are 2 heads; allowed: heads of equal, even width"),
        ({"heads": 4, "kv_heads": 3}, "kv_heads is 3 and heads is 4; allowed: a divisor of heads"),
        ({"embeddings": "learnt"}, "embeddings is 'learnt'; allowed: copied, random"),
        ({"width": 40}, "the width is 40, and the rows to be copied are 32 wide; allowed: no more than that"),
    ],
)
def test_what_cannot_be_made_is_refused(target: Target, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        new_student(target, **(SMALL | changes))


def test_a_target_that_shows_no_rows_has_none_to_copy() -> None:
    table = table_target(random_table(8))
    with pytest.raises(WeightsError, match="shows no embeddings"):
        new_student(table, **SMALL)
    assert new_student(table, **SMALL, embeddings="random").vocab_size == 8


def test_one_that_is_no_smaller_than_its_target_is_told_so(target: Target) -> None:
    """It is made all the same: that it does not pay can be measured."""
    assert target.folder is not None
    counted = sum(weight.numel() for weight in load_tensors(target.folder).values())
    own = {"depth": 2, "width": 32, "heads": 4, "kv_heads": 2, "feed_forward": 48, "tied": False}
    words = f"has {counted:,} parameters and the target .* {counted:,}: a drafted token costs what one of the target's"
    with pytest.warns(UserWarning, match=words):
        as_large = new_student(target, **own)
    assert as_large.num_parameters == counted
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        smaller = new_student(target, **(own | {"feed_forward": 47}))
        tell_size(as_large, FunctionTarget(lambda ids: ids, 8))  # nobody knows how large that is
    hosted = load_target(target.folder, lane="hosted", dtype="fp32")
    with pytest.warns(UserWarning, match=words):
        tell_size(as_large, hosted)
    tell_size(smaller, hosted)


# ---- the projection --------------------------------------------------------------------------------------------------


def error(rows: Tensor, narrow: Tensor) -> float:
    """The squared error of the best reconstruction of rows from narrower ones."""
    return float((rows - narrow @ torch.linalg.lstsq(narrow, rows).solution).square().sum())


@given(
    vocab=st.integers(3, 40),
    hidden=st.integers(2, 12),
    rank=st.integers(1, 12),
    seed=st.integers(0, 999),
    data=st.data(),
)
@settings(max_examples=60)
def test_no_basis_leads_back_better(vocab: int, hidden: int, rank: int, seed: int, data: st.DataObject) -> None:
    """By definition and against any other: float64; rows of full rank, of less, and of uneven spread."""
    generator = torch.Generator().manual_seed(seed)
    rows = (
        torch.randn(vocab, rank, generator=generator).double() @ torch.randn(rank, hidden, generator=generator).double()
    )
    rows *= torch.logspace(0, -2, hidden, dtype=torch.float64)
    width = data.draw(st.integers(1, hidden))
    narrow, basis = projected(rows, width)
    torch.testing.assert_close(basis @ basis.mT, torch.eye(width, dtype=torch.float64))
    torch.testing.assert_close(narrow, rows @ basis.mT)
    left = torch.linalg.svdvals(rows)[width:].square().sum()
    scale = float(rows.square().sum())
    found = float((rows - narrow @ basis).square().sum())
    assert abs(found - float(left)) < 1e-10 * scale
    other = torch.linalg.qr(torch.randn(hidden, width, generator=generator).double()).Q
    assert found <= error(rows, rows @ other) + 1e-10 * scale
    largest = basis.abs().argmax(1, keepdim=True)
    assert bool((basis.gather(1, largest) > 0).all())


def test_projected_rows_tell_more_of_the_target_than_random_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows whose spread falls off as those of trained models do, in pieces as large vocabularies are taken."""
    generator = torch.Generator().manual_seed(0)
    turned = torch.linalg.qr(torch.randn(24, 24, generator=generator)).Q
    rows = torch.randn(500, 24, generator=generator) * torch.arange(1, 25) ** -0.7 @ turned
    whole = projected(rows, 8)[0]
    monkeypatch.setattr(module, "_ROWS", 7)
    torch.testing.assert_close(projected(rows, 8)[0], whole, rtol=1e-4, atol=1e-5)
    best, random = error(rows, whole), error(rows, torch.randn(500, 8, generator=generator))
    dropped = error(rows, rows[:, :8])
    assert best < 0.6 * dropped < 0.3 * random
    alike, kept = rows @ rows.mT, whole @ whole.mT
    assert (alike - kept).square().sum() < 0.05 * alike.square().sum()


# ---- written and read ------------------------------------------------------------------------------------------------


def case(target: Target, folder: Path, **changes: Any) -> None:
    """What is written in fp32 says what the module says, in both lanes; in bf16 what the rounded module says."""
    student = lively_student(target, **changes)
    save_student(folder, student, target, dtype=torch.float32)
    for lane in ("fast", "hosted"):
        opened = load_target(folder, dtype="fp32", lane=lane)
        torch.testing.assert_close(logits_of(opened, TEXT), said(student, TEXT), **CLOSE)
        assert (opened.vocab_size, opened.eos_ids) == (target.vocab_size, target.eos_ids)
        assert opened.max_positions == target.max_positions
    save_student(folder, student, target)
    with torch.no_grad():
        for weight in student.parameters():
            weight.copy_(weight.bfloat16())
    opened = load_target(folder, dtype="fp32")
    assert isinstance(opened, Transformer)
    torch.testing.assert_close(dense_logits(opened, TEXT), said(student, TEXT), **CLOSE)
    again = open_student(folder)
    assert all(torch.equal(one, other) for one, other in zip(student.parameters(), again.parameters(), strict=True))
    assert (again.rows is again.model.get_input_embeddings().weight) == changes.get("tied", True)


def logits_of(target: Target, text: list[int]) -> Tensor:
    """After every token."""
    found = []
    for end in range(1, len(text) + 1):
        state = target.open(1, len(text))
        found.append(target.prefill(state, torch.tensor([text[:end]]), [end]).logits[0, 0])
    return torch.stack(found)


@pytest.mark.parametrize("changes", [{}, {"tied": False, "depth": 2}, {"kv_heads": 2, "feed_forward": 20}], ids=str)
def test_what_is_written_opens_as_what_it_was(target: Target, tmp_path: Path, changes: dict[str, Any]) -> None:
    case(target, tmp_path / "student", **changes)


def test_a_rotary_base_that_is_lost_is_seen(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the configuration that is written says another one."""
    honest = files._config
    lost = {"rope_theta": 10.0, "rope_parameters": {"rope_type": "default", "rope_theta": 10.0}}
    monkeypatch.setattr(files, "_config", lambda *given: honest(*given) | lost)
    with must_fail():
        case(target, tmp_path / "student")


def test_what_comes_along(target: Target, tmp_path: Path) -> None:
    """The tokenizer's files as they are, and nothing that tells of the target's own weights."""
    assert target.folder is not None
    folder = tmp_path / "deep" / "student"
    (target.folder / "outpace.json").write_text("{}", "utf-8")
    save_student(folder, lively_student(target), target)
    assert vocabulary(folder) == vocabulary(target.folder) is not None
    theirs = {file.name for file in target.folder.iterdir()} - {"config.json", "model.safetensors", "outpace.json"}
    names = {file.name for file in folder.iterdir()}
    assert names == theirs | {"config.json", "model.safetensors", "generation_config.json"}
    for name in theirs:
        assert (folder / name).read_bytes() == (target.folder / name).read_bytes()
    config = read_config(folder)
    assert config["architectures"] == ["LlamaForCausalLM"] and config["dtype"] == "bfloat16"
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 10000.0
    assert config["tie_word_embeddings"] and "lm_head.weight" not in tensor_files(folder)
    assert json.loads((folder / "generation_config.json").read_text()) == {"eos_token_id": target.eos_ids[0]}
    (target.folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}', "utf-8")
    try:
        save_student(folder, lively_student(target), target)
        assert load_target(folder).eos_ids == (1, 2)
    finally:
        (target.folder / "generation_config.json").unlink()


def test_it_is_written_whole_or_not_at_all(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, student = tmp_path / "student", lively_student(target)
    save_student(folder, student, target)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with torch.no_grad():
        student.rows.mul_(2)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files.shutil, "copyfile", full)
        with pytest.raises(WeightsError, match="the disk is full"):
            save_student(folder, student, target)
    with torch.no_grad():
        student.rows[3, 2] = torch.inf
    with pytest.raises(WeightsError, match=r"the tensor 'model.embed_tokens.weight' .* is not finite in bfloat16"):
        save_student(folder, student, target)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert [file.name for file in tmp_path.iterdir()] == ["student"]


def test_what_cannot_be_written_is_refused(target: Target, tmp_path: Path) -> None:
    student = lively_student(target)
    with pytest.raises(UsageError, match=r"the dtype to store is torch\.float64; allowed: torch\.bfloat16"):
        save_student(tmp_path / "student", student, target, dtype=torch.float64)
    with pytest.raises(WeightsError, match="the target 'tiny-llama' has no folder to take a tokenizer from"):
        save_student(tmp_path / "student", student, tiny_transformer())
    bare = load_target(target_folder(tmp_path / "bare", vocab_size=64, eos_id=0), dtype="fp32")
    with pytest.raises(WeightsError, match="bare has no tokenizer; a student speaks with its target's"):
        save_student(tmp_path / "student", student, bare)
    assert not (tmp_path / "student").exists()


# ---- one that stands already -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gpt2", "qwen2", "mistral"])
def test_models_of_other_families_are_read(family: str, target: Target, tmp_path: Path) -> None:
    """Its own logits, whatever stands behind a text; what is trained of it decodes, in memory too."""
    model = model_of(family)
    model.save_pretrained(tmp_path)
    student = open_student(tmp_path, "mine")
    given = model(torch.tensor([TEXT]), use_cache=False).logits[0]
    torch.testing.assert_close(said(student, TEXT), given.detach(), **CLOSE)
    padded = student(torch.tensor([[*TEXT, 7, 7], [*TEXT, 9, 11]]))[:, : len(TEXT)]
    torch.testing.assert_close(padded[0], padded[1])
    own = student_target(student, tiny_transformer(eos_ids=(5,)))
    assert own.name == "mine" and own.eos_ids == (5,)
    save_student(tmp_path / "written", student, target, dtype=torch.float32)
    written = load_target(tmp_path / "written", dtype="fp32")
    assert written.eos_ids == target.eos_ids
    for each in (own, written):
        torch.testing.assert_close(logits_of(each, TEXT), given.detach(), **CLOSE)
    student.train()
    torch.testing.assert_close(said(student, TEXT), given.detach(), **CLOSE)
    assert [int(row.argmax()) for row in logits_of(own, [*TEXT, *greedy(model, TEXT, 4)])[-5:-1]] == greedy(
        model, TEXT, 4
    )
    student(torch.tensor([TEXT])).square().mean().backward()
    assert bool(student.model.get_input_embeddings().weight.grad.any())


def test_old_names_of_a_published_file_are_read(tmp_path: Path) -> None:
    """GPT-2 was published without the prefix that it has in memory, and with its head beside its embeddings."""
    model = model_of("gpt2")
    model.save_pretrained(tmp_path)
    bare = {name.removeprefix("transformer."): tensor for name, tensor in load_tensors(tmp_path).items()}
    save_tensors(tmp_path, bare)
    given = model(torch.tensor([TEXT]), use_cache=False).logits[0]
    torch.testing.assert_close(said(open_student(tmp_path), TEXT), given.detach(), **CLOSE)


def test_a_copy_is_not_moved_by_training(target: Target) -> None:
    student = lively_student(target)
    copy, before = student_target(student, target), said(student, TEXT)
    with torch.no_grad():
        for weight in student.parameters():
            weight.mul_(1.5)
    torch.testing.assert_close(logits_of(copy, TEXT), before, **CLOSE)
    assert not torch.allclose(said(student, TEXT), before, **CLOSE)
    assert student_target(student, target, dtype=torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("family", ["gemma2", "phi"])
def test_logits_that_are_no_plain_head_are_refused(family: str, tmp_path: Path) -> None:
    """Capped ones, and a bias."""
    model_of(family).save_pretrained(tmp_path)
    words = "the logits of 'capped' are not its head times its last normed state; allowed: a plain head"
    with pytest.raises(UnsupportedError, match=words):
        open_student(tmp_path, "capped")


def test_folders_that_are_no_student_are_refused(target: Target, tmp_path: Path) -> None:
    folder = tmp_path / "student"
    save_student(folder, lively_student(target), target)
    whole = load_tensors(folder)
    save_tensors(folder, {name: tensor for name, tensor in whole.items() if name != "model.norm.weight"})
    with pytest.raises(UnsupportedError, match=r"student has no tensor 'model.norm.weight', as transformers names it"):
        open_student(folder)
    save_tensors(folder, whole | {"model.norm.weight": torch.ones(3)})
    with pytest.raises(WeightsError, match=r"'model.norm.weight' has shape \(3,\); config.json says \(16,\)"):
        open_student(folder)
    config = read_config(folder) | {"quantization_config": {"quant_method": "gptq"}}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(UnsupportedError, match=r"the weights are quantised \(gptq\); allowed: floating point"):
        open_student(folder)
