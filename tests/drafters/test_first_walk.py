"""An EAGLE-1 head is served as it is: fused, packed, in any dtype, and through the target's own head without a copy."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from cards import model_folder
from first_heads import first_shape, literal_first, random_first
from hosts import hosted
from outpace.drafters.eagle import Eagle
from outpace.drafters.first_head import FirstHead
from outpace.drafters.walk import Walker
from outpace.errors import WeightsError
from outpace.models.ends import SharedHead, share_head
from outpace.models.load import load_target
from outpace.models.packing import Packed
from outpace.models.shape import Shape
from outpace.models.target import Target
from outpace.models.toy import tiny_config, tiny_tensors
from outpace.models.transformer import Transformer
from toys import Watched

GENERATOR = torch.Generator().manual_seed(2)
EMBEDDINGS, ROWS = (torch.randn(64, 32, generator=GENERATOR) for _ in range(2))
FEATURES = torch.randn(6, 1, 32, generator=GENERATOR)
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


def served(head: FirstHead, dtype: torch.dtype = torch.float32, packed: bool | None = False) -> Walker:
    shared = SharedHead.of_rows(ROWS.to(dtype))
    return Walker(head, EMBEDDINGS.to(dtype), dtype=dtype, packed=packed, shared=shared)


def needs_packing(packed: bool) -> None:
    if packed and not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no packed layout")


@pytest.mark.parametrize("fc_bias", [True, False])
@pytest.mark.parametrize("packed", [False, True])
def test_it_is_the_head(fc_bias: bool, packed: bool) -> None:
    """Packed and plain within rounding, 1e-5 where logits spread by more than 5; and packed means packed."""
    needs_packing(packed)
    head = random_first(first_shape(fc_bias=fc_bias))
    walker = served(head, packed=packed)
    anew = torch.stack(literal_first(head, EMBEDDINGS, ROWS, FEATURES, TEXT, PATH))
    torch.testing.assert_close(walked(walker), anew, rtol=0, atol=1e-4)
    layers = [part for part in walker.head.modules() if isinstance(part, torch.nn.Linear | Packed)]
    assert len(layers) == 5, "fc, queries with keys and values, out, gate with up, down: there is no head"
    assert all(isinstance(part, Packed) == packed for part in layers)


def test_dtypes() -> None:
    """In bf16 matrices are multiplied, and nothing else: near what fp32 says; in fp64 nearer."""
    head = random_first()
    exact = torch.stack(literal_first(head.double(), EMBEDDINGS.double(), ROWS.double(), FEATURES.double(), TEXT, PATH))
    apart = {}
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        walker = served(head, dtype)
        logits = walked(walker)
        kept = torch.promote_types(dtype, torch.float32)
        assert logits.dtype == kept == walker.no_states().dtype == walker.head.fuse(FEATURES).dtype
        assert walker.head.fc.weight.dtype == dtype
        apart[dtype] = float((logits.double() - exact).abs().amax())
    assert apart[torch.float64] < 1e-5 and apart[torch.float32] < 1e-4  # the angles are tabled in fp32
    assert apart[torch.bfloat16] < 0.2 * float(exact.std())


def test_training_goes_on_beside_it() -> None:
    """The weights are a copy, and a head that is lent to it is lent to nobody else."""
    head = random_first()
    before = {name: weight.clone() for name, weight in head.state_dict().items()}
    walker = served(head, torch.bfloat16)
    logits = walked(walker)
    assert head.shared is None
    assert all(torch.equal(weight, before[name]) for name, weight in head.state_dict().items())
    assert all(weight.requires_grad for weight in head.parameters())
    with torch.no_grad():
        for weight in head.parameters():
            weight.mul_(2)
    assert torch.equal(walked(walker), logits)


# ---- the target's head -----------------------------------------------------------------------------------------------


@torch.inference_mode()
def speaks_as(target: Target, given: SharedHead) -> None:
    """What it makes of the target's last normed state are the target's logits."""
    ids = torch.tensor([TEXT])
    shown = target.prefill(target.open(1, 16), ids, [len(TEXT)], ("last_normed",))
    assert shown.features is not None
    torch.testing.assert_close(given(shown.features[:, -1:, 0]), shown.logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_a_fast_target_lends_its_own(tied: bool, packed: bool) -> None:
    """Packed or plain, and the embeddings too: the drafter holds not a byte of either."""
    needs_packing(packed)
    config = tiny_config(tie_word_embeddings=tied)
    target = Transformer(Shape.from_config(config), tiny_tensors(config), dtype=torch.float32, packed=packed)
    drafter = Eagle(random_first(), target, packed=packed)
    assert isinstance(drafter.walker.head, FirstHead)
    given = drafter.walker.head.shared
    assert given is not None and given.apply is target.head and given.dtype == target.dtype
    assert drafter.walker.embeddings is target.embeddings
    speaks_as(target, given)


@pytest.mark.parametrize("family", ["gpt2", "phi"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_hosted_target_lends_its_own(family: str, packed: bool) -> None:
    """With its bias, where it has one."""
    needs_packing(packed)
    target = hosted(family, packed=packed)
    given = share_head(target)
    assert given.apply is target.model.get_output_embeddings()  # type: ignore[attr-defined]
    speaks_as(target, given)


def test_of_a_target_that_is_no_model_the_rows_are_read(tmp_path: Path) -> None:
    """A wrapper shows its folder alone; without one it is refused."""
    target = load_target(model_folder(tmp_path / "model"), dtype="fp32")
    wrapper = Watched(target)
    speaks_as(target, share_head(wrapper))
    wrapper.folder = None
    with pytest.raises(WeightsError, match="shows no embeddings: it is no model in memory and has no folder"):
        share_head(wrapper)
