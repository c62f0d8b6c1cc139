"""A target is read for what it shows and says: against transformers' own states and against plain logits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import hosts
from outpace.errors import NumericsError, UnsupportedError, UsageError, WeightsError
from outpace.models.toy import random_table, table_target, tiny_transformer
from outpace.models.transformer import Transformer
from outpace.training import reader as module
from outpace.training.masks import Sample
from outpace.training.reader import Reader, before_answers
from toys import dense_logits, lively, must_fail

MASKS = ["...xx", "..xxxx..xx", ".x.x.x", ".......x", "..xxxxxxxxxxxxxxxx"]


def sample(marks: str, key: str = "k", vocab: int = 64, seed: int = 0) -> Sample:
    """Random ids; ``x`` stands for a token of an answer."""
    generator = torch.Generator().manual_seed(seed + len(marks))
    ids = torch.randint(vocab, (len(marks),), generator=generator, dtype=torch.int32)
    return Sample(key, ids, torch.tensor([mark == "x" for mark in marks]))


def samples_of(*marks: str) -> list[Sample]:
    return [sample(one, f"s{place}", seed=place) for place, one in enumerate(marks)]


@given(st.lists(st.text(".x", min_size=1, max_size=6), min_size=1, max_size=5))
def test_where_the_target_is_asked(marks: list[str]) -> None:
    """Before every token of an answer, and never across the border of two texts."""
    whole = "".join(marks)
    ends = torch.tensor([len(one) for one in marks]).cumsum(0).tolist()
    found = before_answers(torch.tensor([mark == "x" for mark in whole]), ends)
    starts = {0, *ends}
    wanted = [
        place + 1 < len(whole) and whole[place + 1] == "x" and place + 1 not in starts for place in range(len(whole))
    ]
    assert found.tolist() == wanted


def check_law(target: Transformer, samples: list[Sample], **tolerance: float) -> None:
    """The likeliest token and the log-sum-exp of plain logits where an answer follows; nothing elsewhere."""
    read = Reader(target, (1,)).read(samples)
    assert read.lengths == [len(one) for one in samples] and read.argmax.dtype == torch.int32
    start = 0
    for one in samples:
        logits = dense_logits(target, one.ids.tolist()).double()
        for place in range(len(one)):
            asked = place + 1 < len(one) and bool(one.loss_mask[place + 1])
            found, total = int(read.argmax[start + place]), float(read.logsumexp[start + place])
            assert found == (int(logits[place].argmax()) if asked else -1)
            assert total == pytest.approx(float(logits[place].logsumexp(-1)) if asked else 0.0, **tolerance)
        start += len(one)


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral"])
def test_what_the_target_says(family: str) -> None:
    """Float32 sums in another order: logits of spread 3 were seen to differ by less than 1e-5."""
    changes = {"sliding_window": 4} if family == "mistral" else {}
    check_law(lively(family, **changes), samples_of(*MASKS), abs=1e-4)


def test_a_few_logits_at_a_time(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the pieces, and whatever is read together."""
    for logits, sums, rows in ((1, 1, 1), (64 * 5, 64 * 2, 3)):
        for name, value in (("LOGITS", logits), ("SUMS", sums), ("ROWS", rows)):
            monkeypatch.setattr(module, name, value)
        check_law(tiny, samples_of(*MASKS), abs=1e-4)


def test_texts_without_answers(tiny: Transformer) -> None:
    read = Reader(tiny, (0, 2)).read(samples_of("....", "..."))
    assert (read.argmax == -1).all() and not read.logsumexp.any() and read.features.shape == (7, 2, 32)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox", "qwen3-mixed"])
def test_what_the_target_shows(family: str) -> None:
    """Transformers' own ``hidden_states`` of each text alone, and its logits by its own head; fp32, see hosts.py."""
    model, samples = hosts.model_of(family), samples_of(*MASKS)
    found = Reader(hosts.hosted(family), (0, 1, 2)).read(samples)
    for place, one in enumerate(samples):
        with torch.no_grad():
            out = model(input_ids=one.ids[None].long(), output_hidden_states=True)
        _, _, features, last, argmax, logsumexp = found.row(place)
        for tap in range(3):
            torch.testing.assert_close(features[:, tap], out.hidden_states[tap][0], **hosts.CLOSE)
        torch.testing.assert_close(model.get_output_embeddings()(last), out.logits[0], **hosts.CLOSE)
        asked = argmax >= 0
        assert torch.equal(argmax[asked].long(), out.logits[0].argmax(-1)[asked])
        torch.testing.assert_close(logsumexp[asked], out.logits[0].logsumexp(-1)[asked], **hosts.CLOSE)


def test_bfloat16(unchecked: None) -> None:
    """States in bf16; the likeliest token is the one that decoding chooses, and the sum is near that of fp32."""
    fine, coarse = lively(), tiny_transformer(seed=3, dtype=torch.bfloat16)
    samples = samples_of(*MASKS)
    read, wanted = Reader(coarse, (1,)).read(samples), Reader(fine, (1,)).read(samples)
    assert read.features.dtype == read.last_normed.dtype == torch.bfloat16 and read.logsumexp.dtype == torch.float32
    asked = wanted.argmax >= 0
    assert torch.equal(asked, read.argmax >= 0)
    assert float((read.logsumexp - wanted.logsumexp)[asked].abs().mean()) < 0.1 < float(wanted.logsumexp[asked].std())
    for place, one in enumerate(samples):
        for end in one.loss_mask.nonzero()[:, 0].tolist():
            prefix = one.ids[None, :end].long()
            chosen = coarse.prefill(coarse.open(1, end), prefix, [end]).logits[0, 0].argmax()
            near = read.row(place)[4][end - 1] == chosen
            assert near or float(wanted_gap(fine, one, end)) < 0.25


def wanted_gap(target: Transformer, one: Sample, end: int) -> Tensor:
    best = dense_logits(target, one.ids[:end].tolist())[-1].topk(2).values
    return best[0] - best[1]


def test_without_taps(tiny: Transformer) -> None:
    """The state before the head, and all that follows from it, is read in any case, and read the same."""
    texts = [Sample("a", torch.arange(1, 8, dtype=torch.int32), torch.arange(7) > 2)]
    bare, rich = (Reader(tiny, taps) for taps in ((), (0, 1)))
    ours, theirs = bare.read(texts), rich.read(texts)
    assert ours.features.shape == (7, 0, 32) and bare.num_bytes(10) == 10 * (32 * 4 + 4 + 1 + 4 + 4)
    for name in ("ids", "loss_mask", "last_normed", "argmax", "logsumexp"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name


def test_num_bytes(tiny: Transformer) -> None:
    """Two taps and the last state of 32 fp32 values each, an id, a mask, a likeliest token and a sum."""
    assert Reader(tiny, (0, 1)).num_bytes(10) == 10 * (3 * 32 * 4 + 4 + 1 + 4 + 4)


@pytest.mark.parametrize(
    ("taps", "message"),
    [
        ((2, 1), r"the taps are \(2, 1\); allowed: each beyond the one before"),
        ((1, 1), r"the taps are \(1, 1\)"),
        ((-1, 1), "the tap -1 is not of 'tiny-llama'; allowed: 0"),
        ((1, 3), r"the tap 3 is not of 'tiny-llama'; allowed: 0 \(the embeddings\) to 2 \(the last layer's output\)"),
    ],
)
def test_taps_that_are_refused(taps: tuple[int, ...], message: str, tiny: Transformer) -> None:
    with pytest.raises(UsageError, match=message):
        Reader(tiny, taps)


def test_targets_that_are_refused() -> None:
    """A hosted model names its layers, a function shows nothing, and a capped head cannot be taught from states."""
    with pytest.raises(UsageError, match="tap is 9; allowed: last_normed, 0, or a layer; the model has 3 layers"):
        Reader(hosts.hosted("llama"), (1, 9))
    with pytest.raises(UnsupportedError, match="adds a bias"):
        Reader(hosts.hosted("phi"), (1, 2))
    with pytest.raises((UsageError, WeightsError), match=r"a function shows no features|shows no embeddings"):
        Reader(table_target(random_table(8)), (1,))
    with pytest.raises(UnsupportedError, match=r"are not its head times its last normed state: they lie .* apart"):
        Reader(hosts.hosted("gemma2"), (1, 2))


def test_ids_that_are_refused(tiny: Transformer) -> None:
    bad = Sample("odd", torch.tensor([1, 64, 2], dtype=torch.int32), torch.tensor([False, True, True]))
    with pytest.raises(UsageError, match="odd holds the id 64; allowed: 0 to 63"):
        Reader(tiny, (1,)).read([sample("..xx"), bad])
    bad = Sample("odd", torch.tensor([1, -1, 2], dtype=torch.int32), torch.tensor([False, True, True]))
    with pytest.raises(UsageError, match="odd holds the id -1"):
        Reader(tiny, (1,)).read([bad])


def test_what_is_not_finite_is_refused() -> None:
    """A state beyond the dtype's range, or a damaged row of the head; the sample is named, and nothing is recorded."""
    samples = samples_of("..xxx", "...xxxx", ".xx")
    damaged = tiny_transformer(seed=5)
    token = int(samples[1].ids[4])
    others = torch.cat([samples[0].ids, samples[2].ids])
    assert token not in others
    reader = Reader(damaged, (1, 2))
    damaged.embeddings = damaged.embeddings.clone()
    damaged.embeddings[token] = float("inf")
    with pytest.raises(NumericsError, match="the target's states in s1 are not finite in float32"):
        reader.read(samples)
    assert reader.read([samples[0]]).lengths == [5]
    damaged = tiny_transformer(seed=6)
    reader = Reader(damaged, (1,))
    reader.head.weight = reader.head.weight.clone()
    reader.head.weight[3] = float("nan")
    with pytest.raises(NumericsError, match="the target's logits in s0 are not finite"):
        reader.read(samples)
    with pytest.raises(
        NumericsError, match="the logits of the target 'tiny-llama' behind its first ids are not finite"
    ):
        Reader(damaged, (1,))


def test_planted_faults(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A law that is asked for a place late; likeliest tokens of the wrong texts."""
    monkeypatch.setattr(module, "before_answers", lambda mask, ends: mask)
    with must_fail():
        test_what_the_target_says("llama")
    monkeypatch.undo()
    honest = Reader._prefill
    monkeypatch.setattr(Reader, "_prefill", lambda self, samples: honest(self, samples).flip(0))
    with must_fail():
        check_law(tiny, samples_of(*MASKS), abs=1e-4)
