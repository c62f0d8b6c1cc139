"""One family of exceptions: the offending value, what is allowed, and a hint.

Knows nothing of models, files or terminals; the command line turns these into one sentence and an exit code.
"""


class OutpaceError(Exception):
    """Something outpace refuses, in one sentence, with an optional hint.

    Args:
        message: one sentence that names the offending value and what is allowed.
        hint: what the reader can do about it; shown on a line of its own.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"


class UsageError(OutpaceError):
    """An argument or an option outside what is allowed; raised before any work starts."""


class WeightsError(OutpaceError):
    """Weights, a tokenizer or a configuration that are missing, corrupt or not what they claim to be."""


class UnsupportedError(OutpaceError):
    """Something well-formed that outpace cannot honour, refused by name rather than dropped."""


class NumericsError(OutpaceError):
    """A target row that is not a distribution: NaN, plus infinity, or minus infinity everywhere."""
