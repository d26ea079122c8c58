"""The example that reads an antibody model: tensors alone out of a pickle, and a layer of it."""

import importlib.util
import io
import os
import pickle
import zipfile
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.scripts import script

installed = pytest.mark.skipif(
    importlib.util.find_spec("anarcii") is None, reason="needs the weights of anarcii"
)


@pytest.fixture(scope="module")
def example():
    return script("anarcii/antibody_layer")


@pytest.fixture
def state(example):
    return example.read_state(example.package_folder().joinpath(*example.WEIGHTS))


def saved(path, program, storages=()):
    """An archive as torch writes one: a pickle, and a file for each storage."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", program)
        for key, numbers in enumerate(storages):
            archive.writestr(f"model/data/{key}", np.asarray(numbers, dtype="<f4").tobytes())
    return path


class Storage:
    """What torch pickles by reference."""

    def __init__(self, key, count, kind="storage"):
        self.id = (kind, "FloatStorage", str(key), "cpu", count)


class Tensor:
    """What torch pickles as a call of its own function."""

    def __init__(self, storage, offset, shape, strides):
        self.arguments: tuple[Any, ...] = (storage, offset, shape, strides, False, {})


def as_torch_pickles(content):
    """Pickle tensors by name as torch does, without torch: protocol 2, by hand."""
    text = io.BytesIO()
    text.write(b"\x80\x02}(")
    for name, made in content.items():
        storage, offset, shape, strides, *_ = made.arguments
        kind, _, key, device, count = storage.id
        text.write(pickle.dumps(name, 2)[2:-1])
        text.write(b"ctorch._utils\n_rebuild_tensor_v2\n((")
        text.write(pickle.dumps(kind, 2)[2:-1] + b"ctorch\nFloatStorage\n")
        for part in (key, device, count):
            text.write(pickle.dumps(part, 2)[2:-1])
        text.write(b"tQ")
        for part in (offset, shape, strides):
            text.write(pickle.dumps(part, 2)[2:-1])
        text.write(b"\x89}tR")
    text.write(b"u.")
    return text.getvalue()


def test_tensors_come_back(example, tmp_path):
    numbers = np.arange(10, dtype=np.float32)
    content = {
        "a": Tensor(Storage(0, 10), 0, (2, 3), (3, 1)),
        "b": Tensor(Storage(0, 10), 6, (), ()),
    }
    found = example.read_state(saved(tmp_path / "x.pt", as_torch_pickles(content), [numbers]))
    np.testing.assert_array_equal(found["a"], numbers[:6].reshape(2, 3))
    assert found["b"] == 6


class Harm:
    """What a hostile file would have run."""

    def __reduce__(self):
        return os.mkdir, ("harm",)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (pickle.dumps({"a": Harm()}, 2), "mkdir, which is no tensor"),
        (pickle.dumps({"a": 1}, 2), "no state dict"),
        (as_torch_pickles({"a": Tensor(Storage(0, 11), 0, (2,), (1,))}), "should have 11 numbers"),
        (as_torch_pickles({"a": Tensor(Storage(0, 10), 9, (2,), (1,))}), "not in C order"),
        (as_torch_pickles({"a": Tensor(Storage(0, 10), -1, (2,), (1,))}), "not in C order"),
        (as_torch_pickles({"a": Tensor(Storage(0, 10), 0, (2, 3), (1, 2))}), "not in C order"),
        (as_torch_pickles({"a": Tensor(Storage("../0", 10), 0, (2,), (1,))}), "no float32 storage"),
    ],
)
def test_nothing_else_is_read(example, tmp_path, monkeypatch, program, why):
    monkeypatch.chdir(tmp_path)
    path = saved(tmp_path / "x.pt", program, [np.zeros(10)])
    with pytest.raises(ValueError, match=why):
        example.read_state(path)
    assert not (tmp_path / "harm").exists()


@installed
def test_the_target_is_feed_forward_of_attention(example, state):
    model, X = example.served(state, 5), np.random.default_rng(0).standard_normal((9, 6, 128))
    prefix, numbers = "encoder.layers.0", {n: x.astype(np.float64) for n, x in state.items()}
    attention = f"{prefix}.self_attention.multihead_attn"
    q, k, v = np.split(X @ numbers[f"{attention}.in_proj_weight"].T
                       + numbers[f"{attention}.in_proj_bias"], 3, axis=2)  # fmt: skip
    pooled = []
    for h in range(4):
        part = slice(32 * h, 32 * h + 32)
        scores = np.einsum("bd,bnd->bn", q[:, -1, part], k[:, :, part]) / np.sqrt(32)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        pooled.append(np.einsum("bn,bnd->bd", weights, v[:, :, part]))
    x = np.concatenate(pooled, axis=1) @ numbers[f"{attention}.out_proj.weight"].T
    x += numbers[f"{attention}.out_proj.bias"]
    feed = f"{prefix}.positionwise_feedforward"
    z = np.maximum(x @ numbers[f"{feed}.fc_1.weight"].T + numbers[f"{feed}.fc_1.bias"], 0)
    y = z @ numbers[f"{feed}.fc_2.weight"].T + numbers[f"{feed}.fc_2.bias"]
    np.testing.assert_allclose(model(X), y[:, 5], atol=1e-12)
    assert (model.H, model.dim, len(model.b)) == (4, 128, 512)
    assert us.verify(model, model)
    other = example.served(state, 6)
    assert us.verify(other, model).verdict == us.equivalent(other, model).verdict == "different"


@installed
def test_the_script_writes_both_files(example, tmp_path, capsys):
    example.main(str(tmp_path / "out"), "3")
    assert "H=4, d=128" in capsys.readouterr().out
    target = us.load(tmp_path / "out" / "target.safetensors")
    state = us.load_weights(tmp_path / "out" / "state.safetensors")
    assert us.equivalent(target, example.served(state, 3), rtol=0)


@installed
def test_both_sub_layers_of_the_encoder_are_recovered_and_put_back(evidence):
    """The block's own outputs on antibody sequences, before and after."""
    block = script("anarcii/encoder_block")
    off = block.compared(block.package_folder().joinpath(*block.WEIGHTS), "encoder.layers.0")
    assert off < 1e-6
    evidence("An antibody model's encoder block, recovered and put back", outputs=off)


def test_a_block_is_run_on_every_token():
    block = script("anarcii/encoder_block")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 4))
    head = us.LayerHead(rng.standard_normal((4, 4)), rng.standard_normal((4, 4)))
    attention = us.AttentionLayer([head], np.zeros(4), residual=True)
    A, B = rng.standard_normal((2, 4, 4))
    network = us.FeedForward(A, np.zeros(4), B, np.zeros(4), residual=True)
    scores = x @ (x @ head.W.T).T  # column j: those of query token j
    weights = np.exp(scores) / np.sum(np.exp(scores), axis=0)
    h = x + weights.T @ x @ head.M.T
    expected = h + np.maximum(h @ A.T, 0) @ B.T
    np.testing.assert_allclose(block.block(attention, network, x), expected, rtol=1e-9)
