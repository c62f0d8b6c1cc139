"""outpace: a language model speaks faster and says the same words.

Importing it loads no weights and no optional package.
"""

from importlib.metadata import version

from outpace.decoding.generate import Piece, Result, Stats, generate, speculative_decode, stream
from outpace.decoding.options import Options
from outpace.drafters.drafter import Drafter, Proposal
from outpace.drafters.load import load_drafter
from outpace.errors import NumericsError, OutpaceError, UnsupportedError, UsageError, WeightsError
from outpace.models.load import load_target
from outpace.models.target import Target
from outpace.verification.probabilities import Sampling
from outpace.verification.tree import DraftTree
from outpace.verification.verdict import Rule, Verdict

__all__ = [
    "DraftTree",
    "Drafter",
    "NumericsError",
    "Options",
    "OutpaceError",
    "Piece",
    "Proposal",
    "Result",
    "Rule",
    "Sampling",
    "Stats",
    "Target",
    "UnsupportedError",
    "UsageError",
    "Verdict",
    "WeightsError",
    "__version__",
    "generate",
    "load_drafter",
    "load_target",
    "speculative_decode",
    "stream",
]

__version__ = version("outpace")
