"""A head is served as it is: fused, packed, in any dtype, whatever becomes of the weights it was copied from."""

import pytest
import torch
from torch import Tensor

from heads import LEGAL, literal, random_head, shape_of
from outpace.drafters.head import Head
from outpace.drafters.walk import Walker
from outpace.models.packing import Packed

GENERATOR = torch.Generator().manual_seed(2)
EMBEDDINGS = torch.randn(64, 32, generator=GENERATOR)
FEATURES = torch.randn(6, 3, 32, generator=GENERATOR)
TEXT, PATH = [3, 1, 4, 1, 5, 9, 2], [6, 5]


def walked(walker: Walker) -> Tensor:
    """Logits after the text and along the path."""
    cache = walker.open(1, 16)
    cache.admit(1)
    residual, queries = walker.read(cache, [0], [FEATURES.to(walker.dtype)], [TEXT[1:]])
    out = walker.attend(cache, residual[None, -1:], queries[None, -1:])
    said = [walker.logits(out)]
    for step, token in enumerate(PATH):
        place = torch.tensor([[len(FEATURES) + step]])
        out = walker.step(cache, walker.feed(out), torch.tensor([[token]]), place, step)
        said.append(walker.logits(out))
    assert cache.lengths == [len(FEATURES)]
    return torch.cat(said)[:, 0]


def served(head: Head, dtype: torch.dtype = torch.float32, packed: bool | None = False) -> Walker:
    return Walker(head, EMBEDDINGS.to(dtype), dtype=dtype, packed=packed)


@pytest.mark.parametrize("flags", LEGAL, ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_it_is_the_head(flags: dict[str, bool], packed: bool) -> None:
    """Packed and plain within rounding, 1e-5 where logits spread by 2; and packed means packed."""
    if packed and not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no packed layout")
    head = random_head(shape_of(**flags))
    walker = served(head, packed=packed)
    anew = torch.stack(literal(head, EMBEDDINGS, FEATURES, TEXT, PATH))
    torch.testing.assert_close(walked(walker), anew, rtol=0, atol=1e-4)
    layers = [part for part in walker.head.modules() if isinstance(part, torch.nn.Linear | Packed)]
    assert len(layers) == 6, "fc, queries with keys and values, out, gate with up, down, head"
    assert all(isinstance(part, Packed) == packed for part in layers)


def test_dtypes() -> None:
    """In bf16 matrices are multiplied, and nothing else: near what fp32 says; in fp64 nearer."""
    head = random_head()
    exact = torch.stack(literal(head.double(), EMBEDDINGS.double(), FEATURES.double(), TEXT, PATH))
    apart = {}
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        walker = served(head, dtype)
        logits = walked(walker)
        assert logits.dtype == torch.promote_types(dtype, torch.float32) == walker.head.norm.weight.dtype
        assert walker.head.fc.weight.dtype == dtype
        apart[dtype] = float((logits.double() - exact).abs().amax())
    assert apart[torch.float64] < 1e-5 and apart[torch.float32] < 1e-4  # the angles are tabled in fp32
    assert apart[torch.bfloat16] < 0.5 < float(exact.std())


def test_training_goes_on_beside_it() -> None:
    """The weights are a copy: a step of training changes nothing here, and serving changes nothing there."""
    head = random_head()
    before = {name: weight.clone() for name, weight in head.state_dict().items()}
    walker = served(head, torch.bfloat16)
    logits = walked(walker)
    assert all(torch.equal(weight, before[name]) for name, weight in head.state_dict().items())
    assert all(weight.requires_grad for weight in head.parameters())
    with torch.no_grad():
        for weight in head.parameters():
            weight.mul_(2)
    assert torch.equal(walked(walker), logits)


def test_a_larger_cache_holds_what_the_smaller_held() -> None:
    walker = served(random_head())
    small = walker.open(2, 6)
    small.admit(2)
    walker.read(small, [0, 1], [FEATURES, FEATURES[:2]], [TEXT[1:], TEXT[1:3]])
    assert walker.roomy(small, 6) is small
    large = walker.roomy(small, 7)
    assert large.positions >= 7 and large.slots == 2 and large.lengths == [6, 2]
    assert torch.equal(large.entries[:, :, :, :6], small.entries)
