"""What a page is made of: text as it is, never HTML, and panels that the page draws."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, TypeAlias

from unsoftmax.figures.panel import Panel


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph."""

    text: str
    kind: ClassVar[str] = "paragraph"


@dataclass(frozen=True, slots=True)
class Listing:
    """Sentences, one below the other; nothing where there are none."""

    items: tuple[str, ...]
    kind: ClassVar[str] = "listing"


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values."""

    rows: tuple[tuple[str, str], ...]
    kind: ClassVar[str] = "facts"


@dataclass(frozen=True, slots=True)
class DataTable:
    """A table, whose first column names its rows."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    kind: ClassVar[str] = "table"
    MOST: ClassVar[int] = 200
    """Rows shown: nobody reads more on a page, and files have all."""

    @property
    def shown(self) -> tuple[tuple[str, ...], ...]:
        """The rows that a page has."""
        left = len(self.rows) - self.MOST
        empty = ("",) * (len(self.columns) - 1)
        return self.rows if left <= 0 else (*self.rows[: self.MOST], (f"and {left:,} more", *empty))


@dataclass(frozen=True, slots=True)
class CodeText:
    """What is typed, or printed, character by character; ``label`` says what it is."""

    label: str
    text: str
    kind: ClassVar[str] = "code"


@dataclass(frozen=True, slots=True)
class Pictures:
    """Panels, as many beside each other as there is room for."""

    panels: tuple[Panel, ...]
    kind: ClassVar[str] = "pictures"


Block: TypeAlias = Paragraph | Listing | Facts | DataTable | CodeText | Pictures


@dataclass(frozen=True, slots=True)
class Part:
    """Blocks under a heading."""

    title: str
    blocks: tuple[Block, ...]


class Severity(Enum):
    """How much a result should worry whoever owns the target: one scale for every command."""

    UNKNOWN = "not decided"
    LOW = "nothing was found"
    MEDIUM = "in part"
    HIGH = "likely, not shown"
    CRITICAL = "shown, and checked"


@dataclass(frozen=True, slots=True)
class Section:
    """What a page says of one result.

    Attributes
    ----------
    name : str
        Unique on the page, of letters and hyphens.
    answer : str
        The result in a sentence, for a reader who knows no mathematics.
    severity : Severity
        How bad that is.
    cost : tuple of (str, str)
        What an attack, or this command, takes, in questions.
    questions : int
        The questions that have a price: those of the attack.
    advice : tuple of str
        What to do next, in sentences.
    pictures : tuple of Panel
        For the same reader; the note of each says in a sentence what it shows.
    title, summary : str
        The appendix on it: its heading, and what came out in the field's words.
    parts : tuple of Part
        The appendix: numbers, formulas, certificates.
    money : str
        What the attack costs in money, where the result says so; "" where it does not.
    covers : str
        The section whose answer this one gives as well; "" for none.
    settings : dict
        What it was made with, as nested JSON, for whoever makes it again.
    versions : dict of str to str
        What computed it, where the result says so itself.
    """

    name: str
    answer: str
    severity: Severity
    cost: tuple[tuple[str, str], ...]
    questions: int
    advice: tuple[str, ...]
    pictures: tuple[Panel, ...]
    title: str
    summary: str
    parts: tuple[Part, ...]
    money: str = ""
    covers: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


PROTECT = (
    "Find the cheapest protection, and what it costs ordinary users: unsoftmax defend TARGET "
    "--out DIR."
)
"""What to do where a model can be copied."""


def copied(questions: int, *, shown: bool) -> str:
    """Say that a model can be copied.

    Examples
    --------
    >>> copied(1700, shown=True)
    'Anyone who may ask 1,700 questions can copy this model.'
    """
    many = f"{questions:,}" if shown else f"about {questions:,}"
    return f"Anyone who may ask {many} questions can {'' if shown else 'probably '}copy this model."
