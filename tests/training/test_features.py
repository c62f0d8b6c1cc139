"""Recorded once or computed at each use: the same features, in the same order; and no stale file is ever used."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from outpace.errors import UsageError, WeightsError
from outpace.models.toy import tiny_transformer
from outpace.models.transformer import Transformer
from outpace.training import features as module
from outpace.training.batch import Batch
from outpace.training.features import Features, estimate, fitting, online, record
from outpace.training.masks import Sample
from outpace.training.reader import Reader
from outpace.training.shards import shards_in
from toys import lively, must_fail

TAPS = (0, 1)
TENSORS = ("ids", "loss_mask", "features", "last_normed", "argmax", "logsumexp")


def sample(place: int, length: int, answer: int = 3) -> Sample:
    ids = torch.randint(64, (length,), generator=torch.Generator().manual_seed(place), dtype=torch.int32)
    return Sample(f"s{place}", ids, torch.arange(length) >= length - answer)


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    """Thirty texts of 4 to 23 tokens."""
    return [sample(place, 4 + (7 * place) % 20) for place in range(30)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARD_TOKENS", 60)


def equal(left: Batch, right: Batch) -> None:
    assert left.lengths == right.lengths
    for name in TENSORS:
        if getattr(left, name).is_floating_point():
            assert_close(getattr(left, name), getattr(right, name), atol=1e-4, rtol=1e-4)
        else:
            assert torch.equal(getattr(left, name), getattr(right, name)), name


def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts every call of a reader is given, from now on."""
    found: list[int] = []
    honest = Reader.read

    def noted(self: Reader, texts: Sequence[Sample]) -> Any:
        found.append(len(texts))
        return honest(self, texts)

    monkeypatch.setattr(Reader, "read", noted)
    return found


def check_batches(features: Features, tiny: Transformer, samples: list[Sample]) -> None:
    """Every sample once an epoch, and each as the target reads it alone."""
    reader = Reader(tiny, TAPS)
    for epoch in range(2):
        seen = []
        order = features.order(3, epoch, 64)
        for places, batch in zip(order, features.batches(3, epoch, 64), strict=True):
            assert batch.ids.numel() <= 64
            for row, place in enumerate(places):
                alone = reader.read([samples[place]])
                length = batch.lengths[row]
                equal(
                    Batch(*(getattr(batch, name)[row : row + 1, :length] for name in TENSORS), [length]),
                    Batch(*(getattr(alone, name)[None] for name in TENSORS), [length]),
                )
                assert not batch.loss_mask[row, length:].any() and (batch.argmax[row, length:] == -1).all()
                seen.append(place)
        assert sorted(seen) == list(range(len(samples)))


@pytest.mark.usefixtures("small")
def test_recorded_features(tiny: Transformer, samples: list[Sample], tmp_path: Path) -> None:
    features = record(tiny, samples, tmp_path / "features", taps=TAPS)
    assert len(shards_in(tmp_path / "features")) > 5 and features.taps == TAPS
    check_batches(features, tiny, samples)


def test_computed_features(tiny: Transformer, samples: list[Sample]) -> None:
    check_batches(online(tiny, samples, taps=TAPS), tiny, samples)


@pytest.mark.usefixtures("small")
def test_without_taps(tiny: Transformer, samples: list[Sample], tmp_path: Path) -> None:
    """Recorded and computed alike, with no room for states that nobody reads; never taken for a recording with taps."""
    made = record(tiny, samples, tmp_path, taps=()), online(tiny, samples, taps=())
    for places in made[0].order(3, 0, 64):
        recorded, computed = (each.fetch(places) for each in made)
        equal(recorded, computed)
        assert recorded.features.shape == (*recorded.ids.shape, 0, 32)
    files = shards_in(tmp_path)
    record(tiny, samples, tmp_path, taps=TAPS)
    assert len(shards_in(tmp_path)) == 2 * len(files)


@pytest.mark.usefixtures("small")
def test_both_can_be_learnt_from(tiny: Transformer, samples: list[Sample], tmp_path: Path) -> None:
    """Gradients flow into what reads them: no tensor is one of inference alone."""
    for features in (online(tiny, samples, taps=TAPS), record(tiny, samples, tmp_path / "f", taps=TAPS)):
        batch = next(features.batches(0, 0, 64))
        weight = torch.ones(32, requires_grad=True)
        ((batch.features * weight).sum() + (batch.last_normed * weight).sum()).backward()
        assert weight.grad is not None


@pytest.mark.usefixtures("small")
def test_a_place_in_the_data(tiny: Transformer, samples: list[Sample], tmp_path: Path) -> None:
    """A run that is gone on with reads the batches that are left; processes share an epoch without a gap."""
    features = record(tiny, samples, tmp_path / "f", taps=TAPS)
    whole = list(features.batches(1, 2, 64))
    for start in (0, 1, 4, len(whole)):
        rest = list(features.batches(1, 2, 64, start=start))
        assert len(rest) == len(whole) - start
        for left, right in zip(rest, whole[start:], strict=True):
            equal(left, right)
    shares = [list(features.batches(1, 2, 64, start=rank, step=3)) for rank in range(3)]
    for place, batch in enumerate(whole):
        equal(shares[place % 3][place // 3], batch)
    with pytest.raises(UsageError, match="start is -1 and step 1; allowed: 0 or more, and 1 or more"):
        features.batches(1, 2, 64, start=-1)
    with pytest.raises(UsageError, match="tokens_per_batch is 22 and the longest sample has 23 tokens"):
        features.batches(1, 2, 22)


# ---- files ---------------------------------------------------------------------------------------------------------


class Stopped(Exception):
    pass


@pytest.mark.usefixtures("small")
def test_a_recording_that_was_stopped_is_gone_on_with(
    tiny: Transformer, samples: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, told = tmp_path / "f", []

    def stop(done: int, total: int, what: str) -> None:
        told.append((done, total, what))
        if len(told) == 5:
            raise Stopped

    with pytest.raises(Stopped):
        record(tiny, samples, folder, taps=TAPS, progress=stop)
    stood = {path: path.read_bytes() for path in folder.iterdir()}
    assert len(stood) == 4
    assert told[0][:2] == (0, sum(map(len, samples))) and "texts, 0.00 GB to write" in told[0][2]
    read = reads(monkeypatch)
    features = record(tiny, samples, folder, taps=TAPS)
    assert all(path.read_bytes() == whole for path, whole in stood.items())
    assert len(read) == len(shards_in(folder)) - 4
    check_batches(features, tiny, samples)
    read.clear()
    record(tiny, samples, folder, taps=TAPS)
    assert read == []


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("fault", ["cut off", "one bit", "empty"])
def test_a_file_that_is_not_whole_is_named_and_recorded_again(
    fault: str, tiny: Transformer, samples: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tiny, samples, tmp_path, taps=TAPS)
    path = sorted(tmp_path.glob("*.safetensors"))[2]
    honest = path.read_bytes()
    path.write_bytes({"cut off": honest[:-5], "one bit": honest[:-1] + bytes([honest[-1] ^ 4]), "empty": b""}[fault])
    read = reads(monkeypatch)
    with pytest.warns(UserWarning, match=f"{path} was cut off or changed.*recorded again"):
        features = record(tiny, samples, tmp_path, taps=TAPS)
    assert len(read) == 1 and path.read_bytes() == honest
    check_batches(features, tiny, samples)


@pytest.mark.usefixtures("small")
def test_a_file_that_is_lost_under_way_is_named(tiny: Transformer, samples: list[Sample], tmp_path: Path) -> None:
    features = record(tiny, samples, tmp_path / "f", taps=TAPS)
    shutil.rmtree(tmp_path / "f")
    with pytest.raises(WeightsError, match=r"the features in .*safetensors cannot be read"):
        list(features.batches(0, 0, 64))


@pytest.mark.usefixtures("small")
def test_what_a_file_depends_on(
    tiny: Transformer, samples: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another target, dtype, tap, token or mask finds no file of the first; more samples find all full ones."""
    record(tiny, samples, tmp_path, taps=TAPS)
    count = len(shards_in(tmp_path))
    other = Sample(samples[0].key, samples[0].ids, torch.arange(len(samples[0])) >= 2)
    moved = Sample(samples[0].key, samples[0].ids.flip(0).contiguous(), samples[0].loss_mask)
    read = reads(monkeypatch)
    for target, texts, taps, anew in (
        (lively(seed=4), samples, TAPS, count),
        (tiny_transformer(seed=3, dtype=torch.float64), samples, TAPS, count),
        (tiny, samples, (0, 2), count),
        (tiny, [other, *samples[1:]], TAPS, 1),
        (tiny, [moved, *samples[1:]], TAPS, 1),
        (tiny, [*samples, sample(99, 9)], TAPS, 1),
        (tiny, samples, TAPS, 0),
    ):
        read.clear()
        record(target, texts, tmp_path, taps=taps)
        assert len(read) == anew
    read.clear()
    record(tiny, [Sample("renamed", one.ids, one.loss_mask) for one in samples], tmp_path, taps=TAPS)
    assert read == []


@pytest.mark.usefixtures("small")
def test_the_estimate(tiny: Transformer, samples: list[Sample], tmp_path: Path) -> None:
    """What the files hold, but for their heads and the lengths of texts; and what is still missing of it."""
    before = estimate(tiny, samples, tmp_path / "f", taps=TAPS)
    assert (before.samples, before.tokens) == (30, sum(map(len, samples)))
    assert before.answer_tokens == 90 and before.num_bytes == before.missing_bytes
    record(tiny, samples, tmp_path / "f", taps=TAPS)
    files = list((tmp_path / "f").iterdir())
    written = sum(path.stat().st_size for path in files)
    assert 0 < written - before.num_bytes - 4 * 30 < 1000 * len(files)
    assert estimate(tiny, samples, tmp_path / "f", taps=TAPS).missing_bytes == 0
    files[0].unlink()
    assert 0 < estimate(tiny, samples, tmp_path / "f", taps=TAPS).missing_bytes < before.num_bytes / 3


def test_a_disk_without_room(
    tiny: Transformer, samples: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said before anything is read; nothing is needed for what stands already."""
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    read = reads(monkeypatch)
    with pytest.raises(WeightsError, match=r"the features take 0.00 GB and the disk of .* has 0.00 GB free"):
        record(tiny, samples, tmp_path / "f", taps=TAPS)
    assert read == []
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: SimpleNamespace(free=10**9))
    record(tiny, samples, tmp_path / "f", taps=TAPS)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    record(tiny, samples, tmp_path / "f", taps=TAPS)


def test_a_target_without_a_name_is_computed_only(samples: list[Sample], tmp_path: Path) -> None:
    nameless = tiny_transformer(seed=5)
    nameless.fingerprint = ""
    with pytest.raises(UsageError, match="has no fingerprint to tell its features from others'"):
        record(nameless, samples, tmp_path, taps=TAPS)
    assert next(online(nameless, samples, taps=TAPS).batches(0, 0, 64)).lengths


# ---- what is left out ------------------------------------------------------------------------------------------------


def test_what_cannot_be_trained_on(tiny: Transformer, tmp_path: Path) -> None:
    """Counted and named by a notice, never cut; a first token that no draft can speak of is no answer."""
    early = Sample("early", torch.arange(5, dtype=torch.int32), torch.tensor([False, True, False, False, False]))
    silent = Sample("silent", torch.arange(5, dtype=torch.int32), torch.zeros(5, dtype=torch.bool))
    texts = [sample(0, 9), sample(1, 10), sample(2, 11), early, silent, sample(3, 30)]
    found = fitting(texts, 10)
    assert [one.key for one in found.samples] == ["s0", "s1"]
    assert found.too_long == ["s2", "s3"] and found.unanswered == ["early", "silent"]
    assert [len(one) for one in found.samples] == [9, 10]
    for make in (
        lambda: online(tiny, texts, taps=TAPS, limit=10),
        lambda: record(tiny, texts, tmp_path, taps=TAPS, limit=10),
    ):
        with pytest.warns(UserWarning) as notices:
            features = make()
        assert [str(one.message) for one in notices] == [
            "2 of 6 samples are too long and are left out, s2 first",
            "2 of 6 samples have no answer to learn from and are left out, early first",
        ]
        assert features.fitting == found and sum(len(batch.lengths) for batch in features.batches(0, 0, 32)) == 2


@pytest.mark.parametrize(
    ("limit", "message"), [(0, "limit is 0; allowed: 1 token or more"), (3, "2 are longer than 3")]
)
def test_limits_that_are_refused(limit: int, message: str, tiny: Transformer, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        record(tiny, [sample(0, 9), sample(1, 10)], tmp_path, taps=TAPS, limit=limit)


def test_the_context_is_a_limit(tmp_path: Path) -> None:
    short = lively(max_position_embeddings=48)
    with pytest.warns(UserWarning, match="1 of 2 samples are too long"):
        assert len(online(short, [sample(0, 48), sample(1, 49)], taps=TAPS, limit=10**6).samples) == 1


def test_few_files_are_open_at_once(
    tiny: Transformer, samples: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: None
) -> None:
    monkeypatch.setattr(module, "OPEN_SHARDS", 2)
    check_batches(record(tiny, samples, tmp_path, taps=TAPS), tiny, samples)


def test_planted_faults(
    tiny: Transformer, samples: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: None
) -> None:
    """A name that forgets the taps; rows of a file that are counted from its end; a checksum that nobody looks at."""
    honest = module.name_of
    monkeypatch.setattr(module, "name_of", lambda settings, part: honest({**settings, "taps": []}, part))
    with must_fail():
        test_what_a_file_depends_on(tiny, samples, tmp_path / "a", monkeypatch)
    monkeypatch.setattr(module, "name_of", honest)
    fetch = module._Shelf.fetch
    monkeypatch.setattr(module._Shelf, "fetch", lambda self, places: fetch(self, places[::-1]))
    with must_fail():
        test_recorded_features(tiny, samples, tmp_path / "b")
    monkeypatch.setattr(module._Shelf, "fetch", fetch)
    monkeypatch.setattr(module, "is_whole", lambda path: True)
    (tmp_path / "c").mkdir()
    with must_fail():
        test_a_file_that_is_not_whole_is_named_and_recorded_again("one bit", tiny, samples, tmp_path / "c", monkeypatch)
