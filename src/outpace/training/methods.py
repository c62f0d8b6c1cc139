"""The methods that can be trained, by name.

Knows nothing of what they do. A method that is added here has its line in the tables of recipes and of cards too.
"""

from collections.abc import Mapping

from outpace.training.eagle1 import Eagle1
from outpace.training.eagle3 import Eagle3
from outpace.training.medusa import Medusa
from outpace.training.method import Method
from outpace.training.student import Distillation

METHODS: Mapping[str, type[Method]] = {
    "eagle3": Eagle3,
    "eagle1": Eagle1,
    "medusa": Medusa,
    "distil": Distillation,
}
