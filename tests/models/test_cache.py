"""The cache is a list of tokens a row, whatever is appended, kept, rewound, moved or lies stale behind it."""

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from outpace.errors import UsageError
from outpace.models.cache import Cache

LAYERS, SLOTS, HEADS, POSITIONS, WIDTH = 2, 4, 2, 16, 3
POISON = 1e4


def empty(slots: int = SLOTS, positions: int = POSITIONS) -> Cache:
    return Cache(
        layers=LAYERS,
        slots=slots,
        heads=HEADS,
        positions=positions,
        width=WIDTH,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def entries(tokens: torch.Tensor, layer: int) -> torch.Tensor:
    """What a layer writes for tokens ``[..., time]``: another number for each head and place in it."""
    inside = torch.arange(HEADS * WIDTH).view(HEADS, WIDTH) / 100 + layer / 10
    return tokens[..., None, None].float() + inside


def write(cache: Cache, rows: range, starts: list[int], tokens: torch.Tensor) -> None:
    places = cache.places(rows, starts, tokens.shape[1])
    for layer in range(LAYERS):
        new = entries(tokens, layer)
        cache.write(layer, places, torch.cat((new, -new), 2))


def poison(cache: Cache) -> None:
    """Spoil all that no row holds."""
    for row in range(cache.slots):
        length = cache.lengths[row] if row < len(cache.lengths) else 0
        cache.keys[:, row, :, length:] = POISON
        cache.values[:, row, :, length:] = POISON


class AgainstLists(RuleBasedStateMachine):
    """Random histories; after every step each row reads as its list."""

    @initialize()
    def start(self) -> None:
        self.cache, self.texts, self.fresh = empty(), [], iter(range(1, 10**6))

    @rule(count=st.integers(0, SLOTS), time=st.integers(1, 6))
    def prefill(self, count: int, time: int) -> None:
        free = SLOTS - len(self.texts)
        if count > free:
            with pytest.raises(UsageError, match=f"{count} more rows .* with {free} of {SLOTS} slots free"):
                self.cache.admit(count)
            return
        rows = self.cache.admit(count)
        assert rows == range(len(self.texts), len(self.texts) + count)
        new = [[next(self.fresh) for _ in range(time)] for _ in range(count)]
        write(self.cache, rows, [0] * count, torch.tensor(new).view(count, time))
        self.cache.lengths[rows.start :] = [time] * count
        self.texts += new

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), nodes=st.integers(0, 4))
    def turn(self, data: st.DataObject, nodes: int) -> None:
        """A root and ``nodes`` nodes are written behind each row; any ascending nodes may be the accepted path."""
        cache, starts = self.cache, list(self.cache.lengths)
        if max(starts) + 1 + nodes > POSITIONS:
            with pytest.raises(UsageError, match=f"holds {POSITIONS} positions .* and {max(starts) + 1 + nodes} are"):
                cache.require(starts, 1 + nodes)
            return
        cache.require(starts, 1 + nodes)
        new = [[next(self.fresh) for _ in range(1 + nodes)] for _ in self.texts]
        write(cache, range(len(new)), starts, torch.tensor(new))
        assert cache.lengths == starts
        paths = [
            sorted(data.draw(st.sets(st.integers(0, nodes - 1), max_size=nodes))) if nodes else [] for _ in self.texts
        ]
        depth = max(map(len, paths))
        path = torch.tensor([[*nodes, *[-1] * (depth - len(nodes))] for nodes in paths], dtype=torch.int64)
        cache.keep(path.view(len(paths), depth), list(map(len, paths)))
        for text, written, kept in zip(self.texts, new, paths, strict=True):
            text += [written[0], *(written[1 + node] for node in kept)]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        lengths = [data.draw(st.integers(0, len(text))) for text in self.texts]
        self.cache.rewind(lengths)
        self.texts = [text[:length] for text, length in zip(self.texts, lengths, strict=True)]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def select(self, data: st.DataObject) -> None:
        """Some rows in any order."""
        order = data.draw(st.permutations(range(len(self.texts))))
        rows = order[: data.draw(st.integers(0, len(order)))]
        self.cache.select(rows)
        self.texts = [self.texts[row] for row in rows]

    @rule()
    def spoil(self) -> None:
        poison(self.cache)

    @invariant()
    def reads_as_lists(self) -> None:
        assert self.cache.lengths == [len(text) for text in self.texts]
        for layer in range(LAYERS):
            for row, text in enumerate(self.texts):
                keys, values = self.cache.read(range(row, row + 1), len(text))[layer]
                expected = entries(torch.tensor(text, dtype=torch.float32), layer).transpose(0, 1)
                assert torch.equal(keys[0], expected)
                assert torch.equal(values[0], -expected)


TestAgainstLists = AgainstLists.TestCase
TestAgainstLists.settings = settings(max_examples=40, stateful_step_count=12)


@pytest.mark.parametrize("kept", [0, 1, 3, 7, -2])
def test_rewind_of_three(kept: int) -> None:
    """Of 3 entries 0, 1 and 3 can be kept. 7, or the -2 of taking 5 away, is an error and changes nothing."""
    cache = empty(slots=1)
    cache.admit(1)
    write(cache, range(1), [0], torch.tensor([[5, 6, 7]]))
    cache.lengths = [3]
    if kept in (0, 1, 3):
        cache.rewind([kept])
        assert cache.lengths == [kept]
    else:
        with pytest.raises(UsageError, match=f"row 0 holds 3 tokens and cannot be rewound to {kept}; allowed: 0 to 3"):
            cache.rewind([kept])
        assert cache.lengths == [3]


def test_an_accepted_path_is_all_that_is_copied() -> None:
    """A chain lies in order already: keeping it moves a length and touches no entry."""
    cache = empty(slots=1)
    cache.admit(1)
    write(cache, range(1), [0], torch.tensor([[5, 6, 7, 8]]))
    before = cache.keys._version
    cache.keep(torch.tensor([[0, 1, -1]]), [2])
    assert cache.lengths == [3]
    assert cache.keys._version == before
    cache.rewind([0])
    cache.keep(torch.tensor([[0, 2]]), [2])
    assert cache.keys[0, 0, 0, :3, 0].tolist() == [5, 6, 8]


def test_errors_hint_at_the_way_out() -> None:
    cache = empty(slots=1, positions=4)
    with pytest.raises(UsageError, match="the cache holds 4 positions a row and 5 are needed\nhint: open it with more"):
        cache.require([1, 3], 2)
    with pytest.raises(UsageError, match=r"2 more rows .* 1 of 1 slots free\nhint: open it with more slots, or wait"):
        cache.admit(2)
    assert cache.lengths == []
