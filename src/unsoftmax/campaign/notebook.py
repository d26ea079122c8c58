"""What a notebook shows of a result: the answer in a sentence, then a table, then what to know.

Everything is escaped: a target's own words may be among it.
"""

from collections.abc import Iterable, Sequence
from html import escape


def shown(
    answer: str,
    rows: Iterable[Sequence[str]],
    notes: Iterable[str] = (),
    *,
    heads: Sequence[str] = (),
) -> str:
    """Return it as HTML; the first cell of each row names it.

    Examples
    --------
    >>> shown("Yes.", [("misses", "< 1")])
    '<p><b>Yes.</b></p><table><tr><th>misses</th><td>&lt; 1</td></tr></table>'
    """
    table = [_cells("th", heads)] * bool(heads)
    table += [_cells("th", row[:1]) + _cells("td", row[1:]) for row in rows]
    sentences = "".join(f"<p>{escape(note)}</p>" for note in notes)
    lines = "".join(f"<tr>{line}</tr>" for line in table)
    return f"<p><b>{escape(answer)}</b></p><table>{lines}</table>{sentences}"


def _cells(kind: str, texts: Sequence[str]) -> str:
    return "".join(f"<{kind}>{escape(text)}</{kind}>" for text in texts)
