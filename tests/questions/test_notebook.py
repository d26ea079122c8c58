"""What a notebook shows of results: the answer first, and nothing that a browser would run."""

import re
from dataclasses import replace
from html import unescape
from xml.etree import ElementTree

import numpy as np
import pytest

import unsoftmax as us

rng = np.random.default_rng(5)
HEAD = us.SingleHead(rng.standard_normal((3, 3)) / 2, rng.standard_normal(3))
OTHER = us.SingleHead(HEAD.W + np.eye(3), HEAD.v)
COMPARED = us.DefenceComparison(
    "a head", 3, 12, 0, 1.0, 5.0, 4096, 0.1, 0.5, (), "Recommended: noise.", ("A note.",)
)


def read(html):
    """Return the page's first line and its table; what is no well-formed HTML is an error."""
    page = ElementTree.fromstring(f"<div>{re.sub(r'<img[^>]*>', '', html)}</div>")
    rows = [["".join(cell.itertext()) for cell in row] for row in page.iter("tr")]
    return "".join(page[0].itertext()), rows


@pytest.mark.parametrize(
    ("served", "verdict", "answer"),
    [
        (HEAD, "same", "The target serves these weights."),
        (OTHER, "different", "The target does not serve these weights."),
        (lambda X: np.sign(HEAD(X)), "undecided", "Whether the target serves these weights is"),
    ],
    ids=["same", "different", "labels"],
)
def test_a_verification_shows_its_verdict_first(served, verdict, answer):
    result = us.verify(served, HEAD)
    assert result.verdict == verdict
    line, rows = read(result._repr_html_())
    assert line.startswith(answer)
    assert ["queries", str(result.queries)] in rows
    assert (["changed", "W"] in rows) == (result.tensor == "W")


def test_a_verification_of_many_tensors_shows_the_worst_of_them():
    power = {f"W of head {k}": 10.0 ** (k - 9) for k in range(9)} | {"b": np.inf}
    result = replace(us.verify(HEAD, HEAD), power=power)
    _, rows = read(result._repr_html_())
    changes = [row for row in rows if "smallest change" in row[0]]
    assert [row[1] for row in changes[:2]] == ["none: not testable", "1.0e-01"]
    assert rows[-1] == ["of 4 others, at most", "1.0e-06"]


def test_an_audit_shows_the_class_first_and_what_was_recovered():
    result = us.audit(HEAD, 3, recover=True)
    line, rows = read(result._repr_html_())
    assert line == "Class of the target: single head (certain)."
    assert ["paid", f"{result.queries:,} queries, {result.tokens:,} tokens"] in rows
    assert "hold-out" in [row[0] for row in rows]
    found = us.audit(lambda X: np.stack([HEAD(X), OTHER(X)], axis=1), 3)
    assert found.cost is not None
    _, rows = read(found._repr_html_())
    assert any(row[0] == "recovering it" and "queries" in row[1] for row in rows)


@pytest.mark.parametrize(
    "result",
    [
        replace(us.verify(HEAD, HEAD), notes=("<script>alert(1)</script>",), tensor="<script>"),
        replace(COMPARED, recommendation="<script>", notes=("<script>",)),
    ],
    ids=["verification", "defences"],
)
def test_what_is_shown_is_escaped(result):
    html = result._repr_html_()
    assert "<script>" not in html
    assert "<script>" in unescape(html)
    read(html)
