"""A model that stands already as a student: it must be able to draft for the target before it is taught.

Knows nothing of how it is taught.
"""

from outpace.drafters.small import Small
from outpace.models.load import load_target
from outpace.models.student import Student, open_student, tell_size
from outpace.models.target import Target
from outpace.models.weights import find_weights


def existing_student(name: str, target: Target) -> Student:
    """A model's weights to be trained on, fp32, of a model that drafts for the target as it is.

    Args:
        name: a folder or a Hugging Face id, or the default's name.
        target: whose law it is to learn. It may have another padded vocabulary: what either lacks is not taught.

    Warns:
        UserWarning: it is no smaller than its target; or as for ``load_target``.

    Raises:
        UsageError: an id means another token to it than to the target, the first such is named; or as for ``Small``.
        WeightsError, UnsupportedError: as for ``load_target`` and ``open_student``.
    """
    Small(load_target(name, dtype="fp32"), target)
    student = open_student(find_weights(name), name)
    tell_size(student, target)
    return student
