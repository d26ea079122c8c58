"""Answers at all positions, (B, N, m), of every kind of target: used whole, or the last alone.

A block whose positions attend to all tokens is another one than the block claimed, whose positions
attend to those before them, and answers alike at the last position. So whoever reads the last
position alone says "same", and whoever reads all says "different".
"""

import json
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.block_services import claimed, draw
from tests.oracles.http_server import in_binary, in_json, serving

D = 32


@pytest.fixture(scope="module")
def claim(tmp_path_factory):
    """A block whose positions attend to those up to them."""
    folder = tmp_path_factory.mktemp("claim")
    return claimed("llama", draw("llama", 1, 0), folder)


def in_both_directions(claim):
    """The same block, all positions attending to all tokens."""
    return us.Stack(claim.parts, causal=False)


def checked(oracle, claim, last):
    """What reads all positions says "different", what reads the last alone "same"."""
    X = np.random.default_rng(0).standard_normal((3, 4, D))
    np.testing.assert_allclose(oracle(X), last(X)[:, -1], atol=1e-5)
    np.testing.assert_allclose(oracle.all(X), last(X), atol=1e-5)
    found = us.verify(oracle, claim, locate=False)
    assert found.verdict == "different"
    assert any("last position alone" in note for note in found.notes)
    assert us.verify(lambda X: oracle(X), claim).verdict == "same"


def test_a_function_answers_at_all_positions(claim):
    other = in_both_directions(claim)
    assert us.verify(other.all, claim, locate=False).verdict == "different"
    checked(other, claim, other.all)
    assert us.verify(claim.all, claim).verdict == "same"
    # a claim that answers at the last position alone is compared there
    assert us.verify(other.all, lambda X: claim(X), dim=D).verdict == "same"
    assert us.verify(other.all, claim.all, dim=D).verdict == "different"
    # what a causal block's own attention answers at all positions is known by that name
    attention = us.Stack(claim.parts[:1], causal=True)
    found = us.verify(attention.all, claim, alternatives={"attention": claim.parts[0]})
    assert found.alternative == "attention"


@pytest.mark.parametrize("how", [in_json, in_binary])
def test_an_endpoint_of_the_protocol(claim, how):
    pytest.importorskip("httpx", reason="the extra http")
    other = in_both_directions(claim)
    metadata = {
        "inputs": [{"name": "X", "datatype": "FP64", "shape": [-1, -1, D]}],
        "outputs": [{"name": "y", "datatype": "FP64", "shape": [-1, -1, D]}],
    }
    extensions = ("binary_tensor_data",) if how is in_binary else ()
    with serving(how(other.all), metadata, extensions) as (url, _):
        checked(us.oracles.from_url(url), claim, other.all)


@pytest.mark.parametrize("request_", ['{"inputs": {X}}', '{"inputs": [{x}]}'])
def test_an_endpoint_of_any_json(claim, request_):
    pytest.importorskip("httpx", reason="the extra http")
    other = in_both_directions(claim)

    def infer(handler, body):
        y = other.all(np.array(json.loads(body)["inputs"]))
        handler.send(body=json.dumps({"outputs": [{"hidden": one.tolist()} for one in y]}).encode())

    answer = "outputs.*.hidden" if "{X}" in request_ else "outputs.0.hidden"
    with serving(infer) as (url, _):
        checked(us.oracles.from_url(url, request=request_, answer=answer), claim, other.all)


def test_answers_of_another_width_are_said_by_position(claim):
    with pytest.raises(us.DimensionRefused, match=r"186 numbers \(31 at each position, if at all"):
        us.verify(lambda X: claim.all(X)[..., 1:], claim)


@pytest.mark.filterwarnings("ignore")  # the exporter's own deprecated parts
@pytest.mark.parametrize("how", ["torch", "onnx"])
def test_what_other_libraries_run(how, tmp_path):
    torch = pytest.importorskip("torch", reason="the extra torch")
    weights = np.float32(np.random.default_rng(0).standard_normal((D, D)) / 6)

    class Causal(torch.nn.Module):  # type: ignore[misc, name-defined]
        """A sum over the tokens up to each position, through a matrix."""

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor(weights))

        def forward(self, X):
            return torch.cumsum(X, 1) @ self.weight.T

    def same(X):
        return np.cumsum(X, 1) @ weights.T

    def wrong_before(X):
        y = same(X)
        return np.concatenate([y[:, :-1] + 1e-2 * X[:, 1:], y[:, -1:]], 1)

    oracle: Any
    if how == "torch":
        oracle = us.oracles.from_torch(Causal().eval())
    else:
        pytest.importorskip("onnxruntime", reason="the extra onnx")
        pytest.importorskip("onnxscript", reason="torch's exporter")
        dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
        path, example = str(tmp_path / "x.onnx"), (torch.randn(2, 5, D),)
        torch.onnx.export(
            Causal().eval(), example, path, dynamo=True, input_names=["X"], dynamic_shapes=(dims,)
        )
        oracle = us.oracles.from_onnx(path)
    X = np.random.default_rng(0).standard_normal((3, 4, D))
    np.testing.assert_allclose(oracle.all(X), same(X), atol=1e-4)
    np.testing.assert_allclose(oracle(X), same(X)[:, -1], atol=1e-4)
    assert us.verify(oracle, same, dim=D).verdict == "same"
    assert us.verify(oracle, wrong_before, dim=D).verdict == "different"
    assert us.verify(lambda X: oracle(X), wrong_before, dim=D).verdict == "same"
