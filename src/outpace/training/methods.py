"""The methods that can be trained, by name.

Knows nothing of what they do. A method that is added here has its line in the tables of recipes and of cards too.
"""

from collections.abc import Mapping

from outpace.training.eagle3 import Eagle3
from outpace.training.method import Method

METHODS: Mapping[str, type[Method]] = {"eagle3": Eagle3}
