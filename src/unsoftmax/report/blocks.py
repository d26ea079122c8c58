"""What a page is made of: text as it is, never HTML, and panels that the page draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Section:
    """What a page says of one result.

    Attributes
    ----------
    name : str
        Unique on the page, of letters and hyphens.
    title : str
        Its heading.
    summary : str
        What came out, in a sentence or two, for a reader who reads no further.
    parts : tuple of Part
        The rest.
    settings : dict
        What it was made with, as nested JSON, for whoever makes it again.
    versions : dict of str to str
        What computed it, where the result says so itself.
    """

    name: str
    title: str
    summary: str
    parts: tuple[Part, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
