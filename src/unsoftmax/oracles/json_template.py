"""Any endpoint that speaks JSON: where the numbers go in its request and come in its answer.

A request is JSON with {X}, a batch of sequences, or {x}, one sequence, where nested lists of
numbers go. The answer's numbers stand at a path: names of members, indices of lists, and * for
every element of a list, joined by points. No network here: requests and answers as bytes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from unsoftmax.oracles.open_inference import ProtocolError, as_json, parsed
from unsoftmax.probes import Array

BATCH, ONE = "{X}", "{x}"


@dataclass(frozen=True, slots=True)
class JsonTemplate:
    """What is sent, and where in the answer its numbers are.

    Raises
    ------
    ValueError
        ``request`` is no JSON around one {X} or {x}, or ``answer`` names nothing.
    """

    request: str
    answer: str

    def __post_init__(self) -> None:
        here = [place for place in (BATCH, ONE) if place in self.request]
        whole = self.request
        try:
            # a string that holds the place would be sent as text
            known = len(here) == 1 and _lists(parsed(whole.replace(here[0], "[]").encode())) == (
                1 + _lists(parsed(whole.replace(here[0], "0").encode()))
            )
        except ProtocolError:
            known = False
        if not known:
            raise ValueError(
                f"The request {whole!r} must be JSON with {BATCH} (a batch of sequences) or {ONE} "
                f'(one sequence) once where numbers go, such as {{"inputs": {BATCH}}}.'
            )
        if not all(self.answer.split(".")):
            raise ValueError(
                f"The answer's place is {self.answer!r}; it must be names and indices joined by "
                "points, such as outputs.0.hidden."
            )

    @property
    def one_by_one(self) -> bool:
        """Whether a request takes one sequence."""
        return ONE in self.request

    def body(self, X: Array) -> bytes:
        """Write a batch (B, N, d), or one sequence (N, d), with all digits."""
        place = ONE if self.one_by_one else BATCH
        return self.request.encode().replace(place.encode(), as_json(np.ascontiguousarray(X)))

    def numbers(self, received: bytes) -> Array:
        """Read the numbers of an answer.

        Raises
        ------
        ProtocolError
            There is nothing at the path, or no numbers in equal rows.
        """
        found = _at(parsed(received), self.answer.split("."), "")
        try:
            return np.array(found, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ProtocolError(f"What is at {self.answer} is no array of numbers.") from error


def _at(content: Any, path: list[str], before: str) -> Any:
    if not path:
        return content
    [step, *rest] = path
    here = f"{before}.{step}".lstrip(".")
    if step == "*" and isinstance(content, list):
        return [_at(element, rest, here) for element in content]
    try:
        inside = content[int(step) if isinstance(content, list) else step]
    except (KeyError, IndexError, ValueError, TypeError):
        known = (
            ", ".join(map(str, content)) if isinstance(content, dict) else type(content).__name__
        )
        raise ProtocolError(
            f"It has nothing at {here}; at {before or 'its top'} is {known}."
        ) from None
    return _at(inside, rest, here)


def _lists(content: Any) -> int:
    """Count lists in JSON."""
    if isinstance(content, dict):
        return sum(map(_lists, content.values()))
    return 1 + sum(map(_lists, content)) if isinstance(content, list) else 0
