"""The rows of docs/evidence.csv, and the headlines of docs/evidence.md drawn from them."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

Row = dict[str, str]

DATA = Path(__file__).parent.parent / "docs" / "evidence.csv"
PAGE = DATA.with_suffix(".md")
FIELDS = ("claim", "count", "measured", "refused", "date", "commit", "numpy")
# Figures that say how many cases were tried, not what came out.
COUNTED = ("runs", "trials", "targets", "layers", "networks", "kills", "problems", "heads")


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
