"""A model that stands already is taught only if it can draft: one tokenizer, whatever its padding."""

import json
import warnings
from pathlib import Path

import pytest
import torch

from hosts import liven
from outpace.decoding.generate import generate
from outpace.drafters.load import load_drafter
from outpace.drafters.small import Small
from outpace.errors import UsageError
from outpace.models.load import load_target
from outpace.models.student import new_student
from outpace.models.student_files import save_student
from outpace.models.target import Target
from outpace.models.transformer import Transformer
from outpace.models.weights import load_tensors, read_config, save_tensors
from outpace.training.existing import existing_student
from pupils import model_folder
from toys import dense_logits


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return load_target(model_folder(tmp_path_factory.mktemp("target")), dtype="fp32")


@pytest.fixture
def folder(target: Target, tmp_path: Path) -> Path:
    """A lively student on disk, in fp32."""
    made = new_student(target, depth=1, width=16, heads=2, kv_heads=1)
    liven(made.model)
    save_student(tmp_path / "student", made, target, dtype=torch.float32)
    return tmp_path / "student"


def test_what_is_on_disk_is_taught(target: Target, folder: Path) -> None:
    """Nothing is lost on the way: its own logits, fp32 and to be trained."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        student = existing_student(str(folder), target)
    opened = load_target(folder, dtype="fp32")
    assert isinstance(opened, Transformer) and student.name == str(folder)
    text = [5, 40, 3, 3, 17, 90]
    with torch.no_grad():
        said = student(torch.tensor([text]))[0] @ student.rows.mT
    torch.testing.assert_close(said, dense_logits(opened, text), rtol=1e-4, atol=1e-4)
    assert all(weight.requires_grad and weight.dtype == torch.float32 for weight in student.parameters())


def test_what_is_on_disk_drafts_and_the_text_is_the_targets(target: Target, folder: Path) -> None:
    """Greedy and seeded, alone and together, in chains and trees; by the name that a user would give."""
    drafter = load_drafter(str(folder), target, dtype="fp32")
    assert isinstance(drafter, Small)
    prompts = [[7], [5, 6, 7], [30, 2, 30, 2]]
    for options in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 3}):
        plain = generate(target, None, prompts, max_new_tokens=16, **options)
        for shape in ({"num_draft_tokens": 3}, {"num_draft_tokens": 6, "tree": "top-k:2"}):
            found = generate(target, drafter, prompts, max_new_tokens=16, **options, **shape)
            assert [one.token_ids for one in found] == [one.token_ids for one in plain]
            assert sum(one.stats.speculation.drafted for one in found) > 0


def test_another_tokenizer_is_refused_by_its_first_id(target: Target, folder: Path) -> None:
    document = read_config(folder, "tokenizer.json")
    words = document["model"]["vocab"]
    words["b"], words["q"] = words["q"], words["b"]
    first = min(words["b"], words["q"])
    (folder / "tokenizer.json").write_text(json.dumps(document), "utf-8")
    with pytest.raises(UsageError, match=rf"has another tokenizer .*: id {first} is 'q' in the draft and 'b'"):
        existing_student(str(folder), target)


def test_padding_is_no_other_tokenizer(target: Target, folder: Path) -> None:
    tensors = load_tensors(folder)
    rows = tensors["model.embed_tokens.weight"]
    config = read_config(folder) | {"vocab_size": len(rows) + 3}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    save_tensors(folder, tensors | {"model.embed_tokens.weight": torch.cat((rows, rows[:3]))})
    assert existing_student(str(folder), target).vocab_size == target.vocab_size + 3


def test_a_model_that_is_no_smaller_than_its_target_is_told_so(target: Target) -> None:
    with pytest.warns(UserWarning, match="parameters and the target .*: a drafted token costs what one"):
        existing_student(str(target.folder), target)
