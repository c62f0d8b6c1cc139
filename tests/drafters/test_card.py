"""A card comes back as it was written, bit for bit; what was spoilt in between is named."""

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import hosts
from cards import (
    card_for,
    change_document,
    change_tensors,
    document,
    logits_of,
    model_folder,
    same_weights,
    target_of,
    written,
)
from heads import LEGAL, random_head, says, shape_of
from outpace.drafters import stored
from outpace.drafters.card import read_card, write_card
from outpace.drafters.record import FILE, Card, TargetRecord, is_card, read_record
from outpace.errors import OutpaceError, UnsupportedError, UsageError, WeightsError
from outpace.models.load import load_target
from outpace.models.toy import random_table, table_target
from toys import lively

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.mark.parametrize("flags", LEGAL, ids=str)
@pytest.mark.parametrize("draft", [40, 64])
def test_it_comes_back(flags: dict[str, bool], draft: int, tmp_path: Path) -> None:
    head = random_head(shape_of(draft_vocab_size=draft, **flags))
    card = card_for(head, lively())
    for dtype in DTYPES:
        write_card(tmp_path / "card", head, card, dtype=dtype)
        back, said = read_card(tmp_path / "card")
        rounded = random_head(shape_of(draft_vocab_size=draft, **flags)).to(dtype)
        assert said == card and back.shape == head.shape and same_weights(back, rounded)
        assert torch.equal(logits_of(back), logits_of(rounded))
        assert not back.training and all(weight.is_leaf for weight in back.parameters())


def test_a_head_of_another_width(tmp_path: Path) -> None:
    head = random_head(shape_of(hidden_size=16, head_width=4, taps=(1, 2)))
    write_card(tmp_path / "card", head, card_for(head, lively()), dtype=torch.float32)
    back, _ = read_card(tmp_path / "card")
    assert same_weights(back, head) and back.shape == head.shape and back.embed_tokens is not None


def test_what_stands_in_the_files(tmp_path: Path) -> None:
    """Every key, typed out."""
    head = random_head(shape_of(**LEGAL[7]))
    figures: dict[str, Any] = {"acceptance_by_rank": (0.5, 0.25), "acceptance_by_depth_and_rank": ((0.5, 0.25), (0.5,))}
    card = Card.of(head, lively(), depth_trained=4, steps=9, data={"n": 1}, recipe={"lr": 0.1}, tau=2.5, **figures)
    write_card(tmp_path / "card", head, card)
    assert sorted(entry.name for entry in (tmp_path / "card").iterdir()) == ["config.json", "model.safetensors", FILE]
    assert document(tmp_path / "card") == {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": 64,
        "draft_vocab_size": 40,
        "torch_dtype": "bfloat16",
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "norm_before_residual": True,
        "norm_before_fc": True,
        "fc_norm": False,
        "norm_output": False,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        "num_aux_hidden_states": 3,
    }
    said = document(tmp_path / "card", FILE)
    versions, created = said.pop("versions"), said.pop("created")
    assert set(versions) == {"outpace", "torch", "python"} and created.endswith("+00:00")
    assert said == {
        "format_version": 1,
        "method": "eagle3",
        "target": {
            "name": "tiny-llama",
            "fingerprint": "tiny-llama-3",
            "vocab_size": 64,
            "hidden_size": 32,
            "layers": 2,
            "architecture": None,
        },
        "taps": {"indices": [0, 1, 2], "convention": "hidden_states"},
        "flags": {"norm_before_residual": True, "norm_before_fc": True, "fc_norm": False, "norm_output": False},
        "draft_vocab_size": 40,
        "depth_trained": 4,
        "data": {"n": 1},
        "recipe": {"lr": 0.1},
        "steps": 9,
        "acceptance_by_position": None,
        "acceptance_by_rank": [0.5, 0.25],
        "acceptance_by_depth_and_rank": [[0.5, 0.25], [0.5]],
        "tau": 2.5,
    }


@pytest.mark.parametrize("name", ["acceptance_by_rank", "acceptance_by_depth_and_rank"])
def test_cards_from_before_ranks_were_measured_are_read(name: str, tmp_path: Path) -> None:
    folder = change_document(written(tmp_path / "card"), lambda said: said.pop(name), FILE)
    head, card = read_card(folder)
    assert getattr(card, name) is None and card == replace(card_for(head, target_of()), created=card.created)


def test_every_kind_of_target_is_recorded(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "target", layers=2)
    opened = TargetRecord.of(load_target(folder, dtype="fp32"))
    assert (opened.name, opened.layers, opened.hidden_size) == (str(folder), 2, 32)
    assert opened.architecture == "LlamaForCausalLM" and opened.fingerprint.count("-") == 2
    hosted = TargetRecord.of(hosts.hosted("gpt2", fingerprint="a-b-c"))
    assert (hosted.layers, hosted.hidden_size, hosted.fingerprint) == (
        hosts.model_of("gpt2").config.n_layer,
        hosts.model_of("gpt2").config.n_embd,
        "a-b-c",
    )
    with pytest.raises(WeightsError, match="'table' does not tell its width and its number of layers"):
        TargetRecord.of(table_target(random_table(4)))


@given(st.data())
def test_any_map_of_ids_comes_back_and_no_other(data: st.DataObject) -> None:
    """Rising ids are taken, whatever they are; one that is moved off its place is refused."""
    count = data.draw(st.integers(1, 12))
    ids = data.draw(st.lists(st.integers(0, 19), min_size=count, max_size=count, unique=True))
    head = random_head(shape_of(vocab_size=20, draft_vocab_size=count))
    says(head, ids)
    tensors = stored.tensors_of(head, torch.float32)
    assert stored.fill(head.shape, tensors, "it").target_ids.tolist() == sorted(ids)
    at, by = data.draw(st.integers(0, count - 1)), data.draw(st.integers(-40, 40).filter(bool))
    tensors["d2t"][at] += by
    with pytest.raises(WeightsError, match=r"it: (d2t leads to ids|t2d marks)"):
        stored.fill(head.shape, tensors, "it")


# ---- what is not written ---------------------------------------------------------------------------------------------


def nan(head: Any) -> None:
    head.fc.weight.data[0, 0] = torch.nan


def huge(head: Any) -> None:
    head.fc.weight.data[0, 0] = 1e5  # above what fp16 holds


def shuffled(head: Any) -> None:
    head.d2t[3] = 20


UNWRITTEN: list[tuple[Callable[[Any], Any] | None, dict[str, Any], torch.dtype, str]] = [
    (None, {}, torch.float64, "the dtype to store is torch.float64; allowed: torch.bfloat16, torch.float16"),
    (None, {"taps": (0, 2, 1)}, torch.float32, r"the taps of the head are \[0, 2, 1\]; allowed: rising"),
    (None, {"taps": (1, 1)}, torch.float32, r"the taps of the head are \[1, 1\]; allowed: rising"),
    (None, {"rotary": {"rope_type": "su", "rope_theta": 1e4}}, torch.float32, "the rotary scaling is 'su'"),
    (nan, {}, torch.float32, "fc.weight of the head holds values that are not finite in float32"),
    (huge, {}, torch.float16, "fc.weight of the head holds values that are not finite in float16"),
    (shuffled, {}, torch.float32, "the head: d2t leads to ids that do not rise"),
]


@pytest.mark.parametrize(("spoil", "changes", "dtype", "message"), UNWRITTEN, ids=lambda value: str(value)[:20])
def test_what_is_not_written(
    spoil: Callable[[Any], Any] | None, changes: dict[str, Any], dtype: torch.dtype, message: str, tmp_path: Path
) -> None:
    head = random_head(shape_of(**changes))
    if spoil is not None:
        spoil(head)
    with pytest.raises(OutpaceError, match=message):
        write_card(tmp_path / "card", head, card_for(head, lively()), dtype=dtype)
    assert not (tmp_path / "card").exists()


def test_a_card_of_another_head_is_not_written(tmp_path: Path) -> None:
    card = card_for(random_head(), lively())
    for changes, message in (
        ({"taps": (0, 1)}, r"taps is \[0, 1, 2\] by the card and \[0, 1\] by the head"),
        ({"norm_output": True}, "norm_output is False by the card and True by the head"),
        ({"draft_vocab_size": 39}, "draft_vocab_size is 40 by the card and 39 by the head"),
        ({"vocab_size": 65}, "vocab_size of the target is 64 by the card and 65 by the head"),
        ({"target_hidden_size": 16}, "hidden_size of the target is 32 by the card and 16 by the head"),
    ):
        with pytest.raises(UsageError, match=message):
            write_card(tmp_path / "card", random_head(shape_of(**changes)), card)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"taps": (0, 3)}, r"taps of the card are \[0, 3\]; allowed: 0 to 2, the layers of the target"),
        ({"taps": ()}, r"taps of the card are \[\]; allowed: 0 to 2"),
        ({"flags": {"norm_output": True}}, "flags of the card are norm_output; allowed: norm_before_residual, norm_b"),
        ({"depth_trained": 0}, "depth_trained of the card is 0; allowed: 1 or more"),
        ({"steps": -1}, "steps of the card is -1; allowed: 0 or more"),
        ({"tau": 0.5}, "tau of the card is 0.5; allowed: 1 or more"),
        ({"tau": float("nan")}, "tau of the card is nan; allowed: 1 or more"),
        ({"acceptance_by_position": (0.5, 1.5)}, r"acceptance_by_position of the card is \[0.5, 1.5\]; allowed: numb"),
        ({"acceptance_by_rank": (0.5, -0.1)}, r"acceptance_by_rank of the card is \[0.5, -0.1\]; allowed: numb"),
        ({"acceptance_by_rank": (0.5, float("nan"))}, r"acceptance_by_rank of the card is \[0.5, nan\]; allowed: numb"),
        ({"acceptance_by_rank": (0.75, 0.5)}, "acceptance_by_rank of the card is 1.25 together; allowed: up to 1"),
        ({"recipe": {"lr": float("inf")}}, "recipe of the card cannot be written as JSON"),
        ({"data": {"path": Path("x")}}, "data of the card cannot be written as JSON"),
        ({"method": "tree"}, "method of the card is 'tree'; allowed: eagle3, eagle1, medusa, small"),
        ({"format_version": 2}, "format_version of the card is 2; allowed: 1"),
    ],
)
def test_cards_that_are_none(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OutpaceError, match=message):
        Card(**(vars(card_for(random_head(), lively())) | changes))


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    head, mine = random_head(), tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("all of it")
    with pytest.raises(UsageError, match=r"mine holds thesis.txt; allowed: a folder that is new or empty"):
        write_card(mine, head, card_for(head, lively()))
    with pytest.raises(UsageError, match=r"thesis.txt is a file; allowed: a folder that is new or empty"):
        write_card(mine / "thesis.txt", head, card_for(head, lively()))
    assert (mine / "thesis.txt").read_text() == "all of it" and len(list(tmp_path.iterdir())) == 1


def test_a_full_disk_leaves_the_older_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = random_head()
    write_card(tmp_path / "card", older, card_for(older, lively()), dtype=torch.float32)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(stored, "save_tensors", full)
    newer = random_head(seed=9)
    with pytest.raises(WeightsError, match="the disk is full; nothing half-written was kept"):
        write_card(tmp_path / "card", newer, card_for(newer, lively()))
    assert same_weights(read_card(tmp_path / "card")[0], older)
    assert [entry.name for entry in tmp_path.iterdir()] == ["card"]
    monkeypatch.undo()
    write_card(tmp_path / "card", newer, card_for(newer, lively()), dtype=torch.float32)
    assert same_weights(read_card(tmp_path / "card")[0], newer)


# ---- what is not read ------------------------------------------------------------------------------------------------


def _set(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(said: dict[str, Any]) -> None:
        for name in path[:-1]:
            said = said[name]
        said[path[-1]] = to

    return change


def _drop(*path: str) -> Callable[[dict[str, Any]], None]:
    def change(said: dict[str, Any]) -> None:
        for name in path[:-1]:
            said = said[name]
        del said[path[-1]]

    return change


RECORDS: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (_drop("taps"), "outpace.json does not say taps; allowed: an object"),
    (_drop("tau"), "outpace.json does not say tau; allowed: a number or null"),
    (_drop("target", "layers"), "outpace.json, target does not say layers; allowed: a whole number"),
    (_drop("flags", "norm_output"), "outpace.json, flags does not say norm_output; allowed: true or false"),
    (_set("flags", "tree", to=True), "outpace.json, flags says tree, which is unknown; allowed: norm_before_residual"),
    (_set("author", to="me"), "outpace.json says author, which is unknown; allowed: format_version, method, target"),
    (_set("steps", to=1.5), "outpace.json says steps is 1.5; allowed: a whole number"),
    (_set("steps", to=True), "outpace.json says steps is True; allowed: a whole number"),
    (_set("flags", "fc_norm", to=1), "outpace.json, flags says fc_norm is 1; allowed: true or false"),
    (_set("taps", "indices", to=[2, "4"]), r"taps says indices is \[2, '4'\]; allowed: a list of whole numbers"),
    (_set("acceptance_by_position", to=[0.5, "x"]), "acceptance_by_position is .* allowed: a list of numbers or null"),
    (_set("acceptance_by_rank", to=0.5), "acceptance_by_rank is 0.5; allowed: a list of numbers or null"),
    (_set("acceptance_by_rank", to=[0.9, 0.2]), r"outpace.json: acceptance_by_rank of the card is .* allowed: up to 1"),
    (_set("taps", "convention", to="layers"), "taps.convention of .* is 'layers'; allowed: 'hidden_states'"),
    (_set("method", to="medusa"), "method of .*outpace.json is 'medusa'; allowed: 'eagle3'"),
    (_set("format_version", to=2), "format_version of .*outpace.json is 2; allowed: 1"),
    (_set("taps", "indices", to=[2, 4, 9]), r"taps of the card are \[2, 4, 9\]; allowed: 0 to 8, the layers of the"),
    (_set("taps", "indices", to=[2, 4, 6]), r"taps is \[2, 4, 6\] by .*outpace.json and \[2, 4, 5\] by the head"),
    (_set("flags", "norm_output", to=True), "norm_output is True by .*outpace.json and False by the head"),
    (_set("draft_vocab_size", to=41), "draft_vocab_size is 41 by .*outpace.json and 40 by the head"),
    (_set("target", "vocab_size", to=65), "vocab_size of the target is 65 by .*outpace.json and 64 by the head"),
    (_set("target", "layers", to=4), r"taps of the card are \[2, 4, 5\]; allowed: 0 to 4, the layers of the target"),
]
CONFIGS: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (_drop("norm_output"), "config.json does not say norm_output; allowed: true or false"),
    (_set("norm_output", to="no"), "config.json says norm_output is 'no'; allowed: true or false"),
    (_set("sparse", to=True), "config.json says sparse, which is unknown in a card; allowed: architectures"),
    (_drop("rope_theta"), "rope_theta in .*config.json is nothing; allowed: 10000.0, as card and weights have it"),
    (_drop("head_dim"), "head_dim in .*config.json is nothing; allowed: 8, as card and weights have it"),
    (_set("torch_dtype", to="float16"), "torch_dtype in .*config.json is 'float16'; allowed: 'float32', as card and w"),
    (_set("architectures", to=["Llama"]), r"architectures in .* is \['Llama'\]; allowed: \['LlamaForCausalLMEagle3'"),
    (_set("hidden_act", to="gelu"), "hidden_act of .* is 'gelu'; allowed: 'silu'"),
    (_set("attention_bias", to=True), "attention_bias of .* is True; allowed: False"),
    (_set("num_hidden_layers", to=2), "num_hidden_layers of .* is 2; allowed: 1"),
    (_set("intermediate_size", to=50), "midlayer.mlp.gate_proj.weight is 48 x 32; allowed: 50 x 32"),
    (_set("intermediate_size", to="48"), "intermediate_size in config.json of .* is '48'; allowed: a whole number"),
    (_set("rms_norm_eps", to=0), "rms_norm_eps in config.json of .* is 0; allowed: a number above 0"),
    (_set("eagle_aux_hidden_state_layer_ids", to=[2, 4]), "fc.weight is 32 x 96; allowed: 32 x 64"),
    (_set("eagle_aux_hidden_state_layer_ids", to=[2, 4, 9]), r"the taps of .* are \[2, 4, 9\]; allowed: rising up to"),
    (_set("norm_before_fc", to=True), "lacks input_norm.weight"),
]


def _renamed(tensors: dict[str, Tensor]) -> None:
    tensors["midlayer.hidden_nrm.weight"] = tensors.pop("midlayer.hidden_norm.weight")


TENSORS: list[tuple[Callable[[dict[str, Tensor]], Any], str]] = [
    (lambda held: held.pop("fc.weight"), "lacks fc.weight"),
    (lambda held: held.pop("d2t"), "lacks d2t"),
    (lambda held: held.pop("midlayer.mlp.up_proj.weight"), "lacks midlayer.mlp.up_proj.weight"),
    (_renamed, "no hidden_norm.weight, which every EAGLE-3 head has"),
    (lambda held: held.update({"norm.wait": held.pop("norm.weight")}), "lacks norm.weight\nhint: it holds norm.wait"),
    (lambda held: held.update(extra=torch.ones(2)), "holds extra, which its configuration does not ask for"),
    (lambda held: held.update({"norm.weight": torch.ones(31)}), "norm.weight is 31; allowed: 32"),
    (lambda held: held.update({"norm.weight": torch.ones(())}), "norm.weight is one number; allowed: 32"),
    (lambda held: held.update({"norm.weight": torch.ones(32).half()}), "norm.weight is float16, fc.weight float32; al"),
    (lambda held: held.update({"fc.weight": held["fc.weight"].double()}), "fc.weight is float64; allowed: bfloat16, f"),
    (lambda held: held.update(d2t=held["d2t"].int()), "d2t is int32; allowed: int64"),
    (lambda held: held.update(t2d=held["t2d"].byte()), "t2d is uint8; allowed: bool"),
    (lambda held: held["d2t"].__setitem__(-1, 40), "d2t leads to ids from .* to 79; allowed: 0 to 63"),
    (lambda held: held["d2t"].__setitem__(0, -1), "d2t leads to ids from -1 to"),
    (lambda held: held["d2t"].__setitem__(1, held["d2t"][0] - 1), "d2t leads to ids that do not rise"),
    (lambda held: held["t2d"].logical_not_(), "t2d marks 24 ids, and they are not the 40 that d2t leads to"),
]


@pytest.mark.parametrize(("change", "message"), RECORDS, ids=lambda value: value[:40] if isinstance(value, str) else "")
def test_a_spoilt_record_is_named(change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path) -> None:
    folder = change_document(written(tmp_path / "card"), change, FILE)
    with pytest.raises((WeightsError, UnsupportedError), match=message):
        read_card(folder)


@pytest.mark.parametrize(("change", "message"), CONFIGS, ids=lambda value: value[:40] if isinstance(value, str) else "")
def test_a_spoilt_configuration_is_named(
    change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    folder = change_document(written(tmp_path / "card"), change)
    with pytest.raises((WeightsError, UnsupportedError), match=message):
        read_card(folder)


@pytest.mark.parametrize(("change", "message"), TENSORS, ids=lambda value: value[:40] if isinstance(value, str) else "")
def test_a_spoilt_tensor_is_named(change: Callable[[dict[str, Tensor]], Any], message: str, tmp_path: Path) -> None:
    folder = change_tensors(written(tmp_path / "card"), change)
    with pytest.raises((WeightsError, UnsupportedError), match=message):
        read_card(folder)


def test_files_that_are_missing_or_cut_off(tmp_path: Path) -> None:
    folder = written(tmp_path / "card")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(WeightsError, match=r"model.safetensors cannot be read: it is cut off"):
        read_card(folder)
    (folder / FILE).write_text("{")
    with pytest.raises(WeightsError, match=r"outpace.json is not JSON"):
        read_record(folder)
    (folder / FILE).unlink()
    assert not is_card(folder)
    with pytest.raises(WeightsError, match=r"has no outpace.json"):
        read_card(folder)


def test_a_folder_of_pulled_weights_is_no_card(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"format_version": 1, "kind": "weights"}')
    assert not is_card(tmp_path)
