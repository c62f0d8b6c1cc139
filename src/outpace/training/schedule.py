"""The learning rate of every step: a rise, then a fall, by the number of the step alone.

Knows nothing of optimisers. There is no state to be lost: a run that is gone on with has the rates it would have had.
"""

import math

from outpace.training.recipe import TrainSettings


def rate(settings: TrainSettings, step: int, steps: int) -> float:
    """The learning rate of one step.

    Args:
        settings: the highest rate, the share of steps that rise, and the shape of the fall.
        step: its number, from 0 on.
        steps: of the whole run.
    """
    rising = math.ceil(settings.warmup * steps)
    if step < rising:
        return settings.learning_rate * (step + 1) / rising
    done = (step - rising) / max(1, steps - rising)
    falls = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}
    low = settings.final_rate
    share = 1.0 if settings.schedule == "constant" else low + (1 - low) * falls[settings.schedule]
    return settings.learning_rate * share
