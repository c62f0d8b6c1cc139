"""What tokens say: the text of ids, from the tokenizer of the target that a trace names.

Knows nothing of turns. Nothing is fetched: where the target is not on this machine, or has another tokenizer, a token
is shown by its number.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from outpace.decoding.text import Text, TextStream, text_of
from outpace.errors import OutpaceError
from outpace.models.weights import compare_fingerprints, find_weights, fingerprint


class Pieces:
    """Texts of tokens.

    Args:
        text: the tokenizer; None shows numbers.
        known: what tokens say that nobody has to be asked for.
    """

    def __init__(self, text: Text | None, known: Mapping[int, str] | None = None) -> None:
        self.text = text
        self.known = dict(known or {})
        self.tells_words = text is not None or bool(known)

    @classmethod
    def of(cls, target: str, print_: str | None, folder: Path | None = None) -> "Pieces":
        """Of the target of this name and fingerprint, if it is here.

        Args:
            target: its name, as ``load_target`` takes it.
            print_: its fingerprint; another tokenizer is not asked. None where nobody knows.
            folder: where its tokenizer lies; None looks for the target.
        """
        try:
            found = find_weights(target, offline=True) if folder is None else folder
            if print_ and folder is None and compare_fingerprints(print_, fingerprint(found)) not in _ALIKE:
                return cls(None)
            return cls(text_of(found))
        except (OutpaceError, OSError):
            return cls(None)

    def piece(self, token: int) -> str:
        """What one token says by itself; a special one by its name, and half a character as a mark."""
        if token not in self.known:
            self.known[token] = self._piece(token)
        return self.known[token]

    def _piece(self, token: int) -> str:
        if self.text is None:
            return f"#{token}"
        if token in self.text.silent:
            return str(self.text.tokenizer.convert_ids_to_tokens(token))
        once = self.text.decode([token])  # of two, the second has the space that a text may lose at its begin
        return self.text.decode([token, token])[len(once) :] or f"#{token}"

    def said(self, ids: Sequence[int]) -> list[str]:
        """What each token adds to the text; a character of several tokens is said by its last one."""
        if self.text is None:
            return [self.piece(token) for token in ids]
        stream, found = TextStream(self.text), []
        for token in ids:
            piece = stream.push([token])
            found.append(self.piece(token) if token in self.text.silent else piece)
        if found and (tail := stream.finish()):
            found[-1] += tail
        return found


_ALIKE = ("same", "weights differ")
