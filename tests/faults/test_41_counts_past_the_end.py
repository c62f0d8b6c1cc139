"""41: figures of a request count the whole accepted run, though the text was cut within it."""

from typing import Any

import pytest

from outpace.decoding.generate import Piece, Result, stream
from outpace.decoding.stats import Tally
from outpace.models.transformer import Transformer
from toys import Scripted, must_fail, reference, right_then_wrong

PROMPT = (5, 6, 7)


def case(target: Transformer) -> None:
    """Whether a limit or an end-of-text token cuts the run: every count is one of the ids that were returned."""
    said = reference(target, PROMPT, 25)
    script = right_then_wrong([[*PROMPT, *said]], [5])
    cuts: list[dict[str, Any]] = [{"max_new_tokens": cap} for cap in range(1, 13)]
    cuts += [{"eos_ids": [token]} for token in said[:13]]
    for cut in cuts:
        *pieces, result = stream(target, Scripted(script), list(PROMPT), num_draft_tokens=5, logprobs=0, **cut)
        assert isinstance(result, Result) and result.logprobs is not None
        drafted = sum(len(piece.ids) for piece in pieces if isinstance(piece, Piece) and piece.drafted)
        stats, total = result.stats.speculation, len(result.token_ids)
        assert stats.accepted == drafted < total
        assert stats.accepted <= stats.matched <= stats.drafted
        assert (stats.tau or 0) * stats.turns == pytest.approx(total - 1)  # the first token is the prompt's
        assert len(result.logprobs) == total


def test_counts_end_with_the_text(tiny: Transformer) -> None:
    case(tiny)


def test_planted_fault(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Tally.add
    monkeypatch.setattr(Tally, "add", lambda self, **of: honest(self, **(of | {"emitted": of["matched"] + 1})))
    with must_fail():
        case(tiny)
