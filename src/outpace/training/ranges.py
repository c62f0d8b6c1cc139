"""What the values of a recipe may be, by the name of their setting: every number has a range, every choice its names.

Knows nothing of tables. A setting has one range in whatever table it stands.
"""

from itertools import pairwise

from outpace.models.student import EMBEDDINGS
from outpace.training.losses import LOSSES
from outpace.training.strict import Ranges

FEATURES = ("recorded", "online")
SCHEDULES = ("cosine", "linear", "constant")
PRECISIONS = ("bf16", "fp32")
HARD = "hard"
"""A loss of Medusa alone: the cross-entropy of the text's own token."""
ADAMW, MUON = "adamw", "muon"
OPTIMISERS = (ADAMW, MUON)
FACTOR = 8.0
"""The rate of Muon's matrices, as so many times the learning rate, unless a recipe says another."""

RANGES: Ranges = {
    **{
        name: (f"one of {', '.join(allowed)}", allowed.__contains__)
        for name, allowed in (
            ("features", FEATURES), ("schedule", SCHEDULES), ("optimiser", OPTIMISERS), ("precision", PRECISIONS),
            ("loss", LOSSES), ("embeddings", EMBEDDINGS),
        )
    },
    "held_out": ("0 up to, not including, 1", lambda value: 0 <= value < 1),
    "warmup": ("0 up to, not including, 1", lambda value: 0 <= value < 1),
    "final_rate": ("0 to 1", lambda value: 0 <= value <= 1),
    "on_policy": ("0 to 1", lambda value: 0 <= value <= 1),
    "decay": ("above 0, up to 1", lambda value: 0 < value <= 1),
    "places": ("above 0, up to 1", lambda value: 0 < value <= 1),
    "vocabulary": ("8 or more", lambda value: value >= 8),
    "betas": ("two numbers from 0 to below 1", lambda value: len(value) == 2 and all(0 <= each < 1 for each in value)),
    "temperatures": ("one or more, each 0 or above", lambda value: len(value) > 0 and min(value) >= 0),
    "taps": ("one or more, each beyond the one before", lambda value: _rising(value)),
    "prompts": ("0 or more", lambda value: isinstance(value, tuple) or value >= 0),  # files, or how many
    **{
        name: ("0 or more", lambda value: value >= 0)
        for name in (
            "most_prompts", "invent", "weight_decay", "max_bad_steps", "seed",
            "feature_weight", "token_weight", "noise", "temperature",
        )
    },
    **{
        name: ("above 0", lambda value: value > 0)
        for name in ("learning_rate", "muon_factor", "clip", "checkpoint_minutes")
    },
    **{
        name: ("1 or more", lambda value: value >= 1)
        for name in (
            "draft_vocab_size", "heads", "kv_heads", "head_width", "feed_forward", "max_positions", "depth", "epochs",
            "tokens_per_batch", "batches_per_step", "new_tokens", "max_new_tokens", "limit", "batch_size",
            "layers", "width",
        )
    },
}  # fmt: skip


def _rising(value: tuple[int, ...]) -> bool:
    return len(value) > 0 and value[0] >= 0 and all(left < right for left, right in pairwise(value))
