"""A head that knows a text by heart is always right, before and after every way out and in."""

from functools import cache
from pathlib import Path

import pytest
import torch

from cards import USUAL, card_for, exported, target_of
from heads import features_of, random_head, says, shape_of, unrolled
from outpace.decoding.generate import generate
from outpace.drafters.card import write_card
from outpace.drafters.head import Head
from outpace.drafters.load import load_drafter
from outpace.models.ends import read_embeddings
from toys import reference

PROMPT, NEW, DEPTH, PASSES = (1, 2, 3), 32, 3, 60


@cache
def memorised() -> Head:
    """Trained on one text of the tiny target, three tokens ahead."""
    target = target_of()
    text = [*PROMPT, *reference(target, PROMPT, NEW + 8)]
    head = random_head(shape_of(taps=USUAL, draft_vocab_size=48), seed=1)
    said = sorted(set(text))
    says(head, [*said, *(token for token in range(64) if token not in said)][:48])
    places = {token: place for place, token in enumerate(head.target_ids.tolist())}
    shown, rows = features_of(target, text, USUAL).clone(), read_embeddings(target)
    optimiser = torch.optim.Adam(head.parameters(), lr=5e-3)
    for _ in range(PASSES):
        loss = torch.zeros(())
        for step, logits in enumerate(unrolled(head, rows, shown, text, DEPTH)):
            labels = torch.tensor([places[token] for token in text[2 + step :]])
            loss = loss + torch.nn.functional.cross_entropy(logits[: len(labels)], labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return head.eval()


@pytest.mark.parametrize("layout", ["card", "safeailab", "sglang", "speculators", "vllm"])
def test_it_is_always_right(layout: str, tmp_path: Path) -> None:
    """Acceptance 1 over a whole text, which is that of plain decoding."""
    head, target, folder = memorised(), target_of(), tmp_path / layout
    if layout == "card":
        write_card(folder, head, card_for(head), dtype=torch.float32)
    else:
        exported(folder, layout, head)
    drafter = load_drafter(str(folder), target)
    found = generate(target, drafter, list(PROMPT), max_new_tokens=NEW, num_draft_tokens=DEPTH)
    assert found.token_ids == reference(target, PROMPT, NEW)
    speculation = found.stats.speculation
    assert speculation.acceptance == 1.0 and speculation.drafted == speculation.accepted > 20
    assert speculation.tau is not None and speculation.tau > DEPTH
