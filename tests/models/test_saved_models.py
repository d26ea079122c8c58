"""Files, pickles and copies of every class are what they were, an earlier version's too."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

import unsoftmax as us
from tests.models.test_linearise import MODELS
from tests.models.test_stack import STACKS

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


@pytest.mark.parametrize("model", [*(one.model for one in MODELS), *STACKS.values()], ids=repr)
def test_files_pickles_and_copies_keep_every_bit(model, tmp_path):
    model.save(tmp_path / "model")
    X = np.random.default_rng(0).standard_normal((4, 1, model.dim))
    for again in (
        us.load(tmp_path / "model"),
        pickle.loads(pickle.dumps(model)),
        copy.copy(model),
        copy.deepcopy(model),
        type(model).from_arrays(model.arrays()),
        us.models.from_parameters(model.arrays()),
    ):
        assert type(again) is type(model)
        assert repr(again) == repr(model)
        assert again.arrays().keys() == model.arrays().keys()
        for name, array in again.arrays().items():
            assert array.tobytes() == model.arrays()[name].tobytes()
            assert not array.flags.writeable
        np.testing.assert_array_equal(again(X), model(X))
    assert us.models.has_parameters(model.arrays())
