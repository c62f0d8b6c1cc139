"""Every target with every drafter and tree says in fp32 what it says plainly, one prompt at a time, token for token.

Families of both lanes; chains and trees of every kind; ragged batches whose slots are refilled; stops anywhere; greedy
and seeded texts.

False alarms. Weights, prompts and seeds are fixed, so there are 1,584 tokens that can be asked for. Two forwards of one
text differ by less than 3e-5 in their logits, and every token of the reference is checked to win by more than three
times that, greedily or in its race. What is left is a token on the border of top-k or top-p that
also wins, where rounding puts it across: below one chance in 1e5 a token, and in every run alike.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import outpace
from first_heads import first_shape, learnt
from hosts import model_of, random_ids
from medusas import by_heart, mostly_first
from outpace.decoding.control import Fixed
from outpace.decoding.loop import Request, TokenLogprob
from outpace.decoding.options import sampling_of
from outpace.decoding.turn import Turn
from outpace.drafters.budget import Branching
from outpace.drafters.drafter import Drafter
from outpace.drafters.eagle import Eagle
from outpace.drafters.first_head import FirstHead
from outpace.drafters.lookup import Lookup
from outpace.drafters.medusa import Medusa
from outpace.drafters.medusa_heads import MedusaHeads
from outpace.drafters.small import Small
from outpace.models.cache import Cache
from outpace.models.hosted import host
from outpace.models.shape import Shape
from outpace.models.target import Target
from outpace.models.transformer import Transformer
from outpace.verification.coins import Keys
from outpace.verification.probabilities import probability_rows
from outpace.verification.tree import DraftTree
from toys import VOCAB, must_fail, run

FAST = ("llama", "qwen2", "qwen3", "mistral")
HOSTED = ("gpt2", *FAST, "gemma", "mixtral")
TARGETS = [*(f"{family}-hosted" for family in HOSTED), *(f"{family}-fast" for family in FAST)]
DRAFTERS = ("lookup", "other", "itself", "medusa", "eagle1")
NEW = 12
NEAR_TIE = 1e-4  # of two logits, or of two clocks as a share: forwards differ by less
PROMPTS = [random_ids(5, 5), [7, 8, 9] * 4, [3], random_ids(17, 17)]  # within and beyond the windows of 8
LAWS: dict[str, Any] = {
    "greedy": {},
    "top-k": {"temperature": 1.0, "top_k": 8, "seed": 7},
    "top-p": {"temperature": 1.0, "top_p": 0.9, "seed": 12},
}
SHAKEN = 0.07
"""How far the weights of the other model are from the target's, as a share of their spread: it is right now and then,
and its second guesses too. Of a model without kinship one guess in 64 would be."""


@cache
def target_of(name: str, shaken: float = 0.0) -> Target:
    """A tiny lively target, ``family-lane``; both lanes of a family have the same weights."""
    family, _, lane = name.partition("-")
    model = copy.deepcopy(model_of(family))
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters() if shaken else ():
        with torch.no_grad():
            parameter += shaken * parameter.std() * torch.randn(parameter.shape, generator=generator)
    if lane == "hosted":
        return host(model, name=name, packed=False)
    shape = Shape.from_config(model.config.to_dict())
    return Transformer(shape, dict(model.state_dict()), dtype=torch.float32, packed=False, name=name)


@cache
def first_of(name: str) -> FirstHead:
    """An EAGLE-1 head that has begun to learn the greedy texts."""
    texts = [[*PROMPTS[prompt], *plain(name, prompt, "greedy")] for prompt in range(len(PROMPTS))]
    return learnt(target_of(name), texts, first_shape(hidden_size=64, head_width=16), passes=8)


@cache
def heads_of(name: str, law: str) -> MedusaHeads:
    """Medusa heads that know the plain texts, but take another token for a likelier one now and then."""
    texts = [(PROMPTS[prompt], plain(name, prompt, law)) for prompt in range(len(PROMPTS))]
    return by_heart(target_of(name), texts, rank=mostly_first)


def drafter_of(name: str, kind: str, ends: Sequence[int] = (), law: str = "greedy") -> Drafter:
    """A drafter, and the ids that end a text as far as it knows; what was learnt by heart are the texts of a law."""
    if kind == "lookup":
        return Lookup(eos_ids=tuple(ends))
    if kind == "medusa":
        medusa = Medusa(heads_of(name, law), target_of(name), packed=False)
        medusa.eos_ids = frozenset(ends)
        return medusa
    if kind == "eagle1":
        eagle = Eagle(first_of(name), target_of(name), packed=False)
        eagle.eos_ids = frozenset(ends)
        return eagle
    family = name.partition("-")[0]
    other = f"{family}-{'fast' if family in FAST else 'hosted'}"
    small = Small(target_of(name) if kind == "itself" else target_of(other, SHAKEN), target_of(name))
    small.eos_ids = frozenset(ends)
    return small


@cache
def plain(name: str, prompt: int, law: str) -> list[int]:
    """The reference: one prompt alone, without a drafter."""
    result = outpace.generate(
        target_of(name),
        None,
        PROMPTS[prompt],
        max_new_tokens=NEW,
        num_draft_tokens=0,
        eos_ids=None,
        logprobs=VOCAB,
        **LAWS[law],
    )
    assert result.logprobs is not None and len(result.token_ids) == NEW
    for place, token in enumerate(result.logprobs, start=len(PROMPTS[prompt])):
        assert lead(token, law, place) >= NEAR_TIE, f"{name} nearly ties at {place} of {prompt}, {law}: reseed it"
    return result.token_ids


def lead(token: TokenLogprob, law: str, place: int) -> float:
    """How far the token is ahead of the next one: in logits, or in a race by the share that the second comes later."""
    ids, values = zip(*token.top, strict=True)
    if law == "greedy":
        return values[0] - values[1]
    logits = torch.empty(VOCAB).scatter(0, torch.tensor(ids), torch.tensor(values))
    probs = probability_rows(logits, sampling_of(LAWS[law]))[None, None]
    runners = torch.arange(VOCAB)[None, None]
    noise = Keys((LAWS[law]["seed"],), (0,), (place,), (True,)).noise(torch.zeros(1, 1, dtype=torch.int64), runners)
    times = noise.times / probs
    assert int(times.argmin()) == token.token_id
    first, second = times.flatten().topk(2, largest=False).values.tolist()
    return second / first - 1


@dataclass(frozen=True)
class Case:
    """What is asked of a pair.

    Args:
        tree, depth, more: how drafts branch, their longest path, and the nodes beyond it; lookup drafts chains of
            ``depth + more``, others chains of ``depth``.
        prompts: which, in what order.
        slots: how many are decoded at once.
        new: tokens at most.
        stop: None, or the place of a token in the plain text of a prompt: that token ends texts.
        told: whether the drafter knows so.
        law: one of ``LAWS``.
    """

    tree: str = "top-k:3"
    depth: int = 3
    more: int = 9
    prompts: Sequence[int] = (0, 1, 2, 3)
    slots: int | None = 2
    new: int = NEW
    stop: tuple[int, int] | None = None
    told: bool = False
    law: str = "greedy"

    def draft(self, kind: str) -> dict[str, Any]:
        """The options that say so."""
        if kind == "lookup":
            return {"num_draft_tokens": self.depth + self.more}
        if self.tree == "chain":
            return {"num_draft_tokens": self.depth}
        return {"tree": self.tree, "depth": self.depth, "num_draft_tokens": self.depth + self.more}


# The first of every choice is what Hypothesis tries first: a case that asks for much, not one that asks for little.
PROMPT_LISTS = st.tuples(st.permutations(range(4)), st.sampled_from((4, 3, 2, 1))).map(lambda two: two[0][: two[1]])
SLOTS = st.sampled_from((2, 1, None))
CASES = st.builds(
    Case,
    tree=st.sampled_from(("top-k:2", "sampled:2", "chain", "top-p:0.9", "top-k:3")),
    depth=st.sampled_from((3, 2, 4, 1)),
    more=st.sampled_from((4, 9, 1, 0, 15)),
    prompts=PROMPT_LISTS,
    slots=SLOTS,
    new=st.integers(0, NEW).map(lambda less: NEW - less),
    stop=st.none() | st.tuples(st.integers(0, 3), st.integers(0, NEW - 1)),
    told=st.booleans(),
    law=st.sampled_from(tuple(LAWS)),
)


def said_as_plainly(name: str, kind: str, case: Case) -> None:
    """Every text of the batch is the plain one, cut at the first stop or at the limit, and says which it was."""
    eos = () if case.stop is None else (plain(name, case.stop[0], case.law)[case.stop[1]],)
    expected = [until(plain(name, prompt, case.law)[: case.new], eos) for prompt in case.prompts]
    results = outpace.generate(
        target_of(name),
        drafter_of(name, kind, eos if case.told else (), case.law),
        [PROMPTS[prompt] for prompt in case.prompts],
        max_new_tokens=case.new,
        batch_size=case.slots,
        eos_ids=eos,
        **case.draft(kind),
        **LAWS[case.law],
    )
    assert [result.token_ids for result in results] == expected
    for result in results:
        assert result.finish_reason == ("stop" if set(result.token_ids) & set(eos) else "length")


def until(text: list[int], eos: Sequence[int]) -> list[int]:
    """A text up to its first end, which stands in it."""
    return text[: 1 + min(text.index(end) if end in text else len(text) for end in eos)] if eos else text


@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=4)
@given(case=CASES)
def test_drafted_text_is_plain_text(name: str, kind: str, case: Case) -> None:
    said_as_plainly(name, kind, case)


@pytest.mark.parametrize("family", FAST)
@pytest.mark.parametrize("law", LAWS)
def test_both_lanes_say_the_same_plainly(family: str, law: str) -> None:
    for prompt in range(len(PROMPTS)):
        assert plain(f"{family}-fast", prompt, law) == plain(f"{family}-hosted", prompt, law)


# ---- the target as its own drafter -----------------------------------------------------------------------------------

# Whole trees: where nodes are few, a second child near the root may weigh more than the best path's end. A ranked tree
# does not know what a race will choose; a sampled one races with the same noise.
WHOLE = [
    *[("greedy", *draft) for draft in (("top-k:2", 3, 14), ("top-k:3", 2, 12), ("sampled:2", 4, 8))],
    *[(law, "chain", depth, depth) for law in LAWS for depth in (1, 3, 4)],
    *[(law, "sampled:2", 3, 6) for law in ("top-k", "top-p")],
]


def accepted_whole(
    name: str, kind: str, draft: tuple[str, str, int, int], prompts: Sequence[int], slots: int | None, new: int
) -> None:
    """Every turn emits a token more than it is deep, while there is room for that."""
    law, tree, depth, nodes = draft
    results = outpace.generate(
        target_of(name),
        drafter_of(name, kind),
        [PROMPTS[prompt] for prompt in prompts],
        max_new_tokens=new,
        batch_size=slots,
        eos_ids=None,
        tree=tree,
        depth=depth,
        num_draft_tokens=nodes,
        **LAWS[law],
    )
    for prompt, result in zip(prompts, results, strict=True):
        stats = result.stats.speculation
        assert result.token_ids == plain(name, prompt, law)[:new]
        assert stats.turns == math.ceil((new - 1) / (depth + 1))
        assert stats.acceptance == (1.0 if new > 2 else None)  # a second token is the turn's own, without a draft


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=4)
@given(
    draft=st.sampled_from(WHOLE),
    prompts=PROMPT_LISTS,
    slots=SLOTS,
    new=st.integers(0, NEW - 1).map(lambda less: NEW - less),
)
def test_a_target_accepts_itself_whole(
    name: str, draft: tuple[str, str, int, int], prompts: list[int], slots: int | None, new: int
) -> None:
    accepted_whole(name, "itself", draft, prompts, slots, new)


# ---- the fixtures themselves, and planted faults ---------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in TARGETS if name.partition("-")[0] not in FAST or "fast" in name])
@pytest.mark.parametrize("kind", ["other", "medusa", "eagle1"])
def test_guesses_are_right_now_and_then(name: str, kind: str) -> None:
    """Neither the target's nor a stranger's; and children of later ranks come true, which are moved in the cache."""
    later = 0

    def look(turn: Turn, rows: list[int]) -> None:
        nonlocal later
        for (_, parents), path in zip(turn.proposal.tree.to_lists(), turn.paths, strict=True):
            later += sum(parents[node] in parents[:node] for node in path)

    requests = [Request(prompt, max_new_tokens=NEW) for prompt in PROMPTS]
    control = Fixed(Branching.parse("top-k:3"), 3, 12)
    rows = run(target_of(name), drafter_of(name, kind), requests, control=control, observer=look)
    accepted, turns = (sum(getattr(row.stats, part) for row in rows) for part in ("accepted", "turns"))
    assert 0.5 <= accepted / turns <= 2.5 and later >= 4


def _flat(self: DraftTree, lengths: Tensor) -> Tensor:
    return lengths[:, None] + torch.arange(1 + self.tokens.shape[1])


def _lengths_only(self: Cache, path: Tensor, num_accepted: list[int]) -> None:
    self.lengths = [length + 1 + count for length, count in zip(self.lengths, num_accepted, strict=True)]


def _by_turn(self: Keys, depths: Tensor, ids: Tensor) -> Any:
    return HONEST_NOISE(self, torch.zeros_like(depths), ids)


HONEST_NOISE = Keys.noise
FAULTS: dict[str, tuple[type, str, Any, str]] = {
    "nodes stand at their places": (DraftTree, "positions", _flat, "greedy"),
    "kept branches stay where they lie": (Cache, "keep", _lengths_only, "greedy"),
    "noise is that of the turn": (Keys, "noise", _by_turn, "top-k"),
}


@pytest.mark.parametrize(
    ("name", "kind"), [("gpt2-hosted", "other"), ("mixtral-hosted", "itself"), ("mistral-fast", "other")]
)
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault(fault: str, name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, what, wrong, law = FAULTS[fault]
    case = Case(tree="sampled:2" if law == "top-k" else "top-k:3", law=law)
    said_as_plainly(name, kind, case)
    monkeypatch.setattr(where, what, wrong)
    with must_fail():
        said_as_plainly(name, kind, case)


@pytest.mark.parametrize("draft", [WHOLE[0], WHOLE[-3]])
def test_another_model_is_not_accepted_whole(draft: tuple[str, str, int, int]) -> None:
    with must_fail():
        accepted_whole("llama-fast", "other", draft, (0, 1, 2, 3), None, NEW)


def test_a_near_tie_of_the_reference_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With this seed two clocks of one race are 5e-6 apart."""
    monkeypatch.setitem(LAWS, "top-p", LAWS["top-p"] | {"seed": 11})
    with must_fail():
        plain.__wrapped__("mistral-fast", 0, "top-p")
