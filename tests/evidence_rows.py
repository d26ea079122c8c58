"""The rows of docs/evidence.csv, and the headlines of docs/evidence.md drawn from them."""

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Row = dict[str, str]

DATA = Path(__file__).parent.parent / "docs" / "evidence.csv"
PAGE = DATA.with_suffix(".md")
FIELDS = ("claim", "count", "measured", "refused", "date", "commit", "numpy")
# Figures that say how many cases were tried, not what came out.
COUNTED = ("runs", "trials", "targets", "layers", "networks", "kills", "problems", "heads")


# What is said of figures that several nodes of a test have parts of.
JOINED: dict[str, Callable[[Any], Any]] = {"max": np.max, "median": np.median}


class Part(NamedTuple):
    """What one node of a test adds to a row: of so many targets in all it tried some.

    ``figures`` is a list of (name, how they are joined, values, how that is written).
    """

    claim: str
    of: int
    tried: int
    figures: list[tuple[str, str, list[float], str]]


def joined(parts: Sequence[Part]) -> list[str] | None:
    """Return the row that parts of one claim make, or None where targets are missing.

    Examples
    --------
    >>> figures = [[("queries", "median", asked, "{:.1f}")] for asked in ([1, 2], [3, 6])]
    >>> halves = [Part("blocks", 4, 2, each) for each in figures]
    >>> joined(halves), joined(halves[:1])
    (['blocks', '4 targets', 'broken 0, queries 2.5', '0'], None)
    """
    first = parts[0]
    if sum(part.tried for part in parts) < first.of:
        return None
    said = ["broken 0"]
    for place, (name, how, _, written) in enumerate(first.figures):
        values = np.concatenate([part.figures[place][2] for part in parts])
        said.append(f"{name} {written.format(JOINED[how](values))}")
    return [first.claim, f"{first.of} targets", ", ".join(said), "0"]


def read_rows(path: Path = DATA) -> dict[str, Row]:
    """Return the rows by their claims."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {row["claim"]: row for row in csv.DictReader(file)}


def write_rows(rows: Iterable[Row], path: Path = DATA) -> None:
    """Write the rows, sorted by claim."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: row["claim"]))


def renewed(page: str, rows: dict[str, Row]) -> str:
    """Return the page with the figures of every headline taken from its row.

    A headline is a row of a table: what was tried, in words; how many cases; the figures; how
    many were refused; the date; and last the claim in italics, by which its row is found.
    """
    lines = page.split("\n")
    for number, line in enumerate(lines):
        if line.startswith("| ") and line.endswith("* |"):
            words = line.split("|")[1].strip()
            claim = line.rsplit("| *", 1)[1].removesuffix("* |")
            row = rows[claim]
            cells = (words, row["count"], row["measured"], row["refused"], row["date"])
            lines[number] = f"| {' | '.join(cells)} | *{claim}* |"
    return "\n".join(lines)
