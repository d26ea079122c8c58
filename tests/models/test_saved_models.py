"""Files and pickles that an earlier version wrote, of every class, are what they were."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import unsoftmax as us

FILES = sorted(Path(__file__).with_name("data").glob("*.safetensors"))
CLASSES = {
    us.AttentionLayer, us.FeedForward, us.MultiHead, us.MultiHeadTransformer, us.ReluNetwork,
    us.RotaryHead, us.RotaryHeads, us.RotaryLayer, us.SingleHead, us.Transformer,
}  # fmt: skip


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_earlier_file_is_loaded_and_written_again(file, tmp_path):
    model, pickled = us.load(file), pickle.loads(file.with_suffix(".pickle").read_bytes())
    assert type(model) is type(pickled)
    assert model.arrays().keys() == pickled.arrays().keys()
    for name, array in model.arrays().items():
        assert array.tobytes() == pickled.arrays()[name].tobytes()
    model.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == file.read_bytes()
    X = np.random.default_rng(0).standard_normal((4, 1, model.dim))
    np.testing.assert_array_equal(model(X), pickled(X))


def test_every_class_has_an_earlier_file():
    assert {type(us.load(file)) for file in FILES} == CLASSES
