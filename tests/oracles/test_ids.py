"""Oracles of ids: what they are asked, and who is refused before anything is paid."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.behind_vocabularies import LayerServer, Server
from unsoftmax.oracles import model_runtimes

HEAD = us.SingleHead(np.eye(3), np.ones(3))


def never(X):
    raise AssertionError("asked")


def test_a_learner_of_vectors_is_refused_on_ids_and_the_reverse():
    oracle: Any = us.oracles.from_ids(never, 60)
    tokens = us.learners.TokenHead(60)
    for target in (oracle, us.oracles.rounded(oracle, 3), us.oracles.coordinate(oracle, 0)):
        with pytest.raises(us.ModelMismatch) as refusal:
            us.learn(target, us.learners.ExactHead(3))
        assert refusal.value.reason == "TAKES_IDS"
    vectors: tuple[Any, ...] = (HEAD, us.oracles.rounded(HEAD, 3))
    for target in vectors:
        with pytest.raises(us.ModelMismatch) as refusal:
            us.learn(target, tokens)
        assert refusal.value.reason == "TAKES_VECTORS"
    with pytest.raises(us.ModelMismatch) as refusal:
        us.learn(oracle, us.learners.LowRankHead(3, table=np.eye(61, 3)))
    assert refusal.value.reason == "OTHER_VOCABULARY"
    with pytest.raises(ValueError, match="sampler"):
        us.learn(oracle, tokens, sampler=lambda rng: np.zeros((2, 1)))


def test_learners_around_others_take_none_of_ids():
    head = us.learners.LowRankHead(3, table=np.eye(3))
    with pytest.raises(ValueError, match="ids have no"):
        us.learners.Antisymmetric(head)
    with pytest.raises(ValueError, match="leave its table out"):
        us.learners.TransformerLearner(3, head=head)


@pytest.mark.parametrize(
    ("table", "said"),
    [(np.ones((4, 2)), "vectors of 2"), (np.ones(3), "shape"), (np.ones((1, 4, 3)), "two pos")],
)
def test_tables_of_other_shapes_are_refused(table, said):
    for learner in (us.learners.LowRankHead, us.learners.ExactHead):
        with pytest.raises(ValueError, match=said):
            learner(3, table=table)
    with pytest.raises(ValueError, match="beside table"):
        us.learners.LowRankHead(3, table=np.eye(3), rotary=True)


def test_from_ids_checks_what_it_is_given():
    for wrong in ((3,), (never, 2.5)):
        with pytest.raises(TypeError):
            us.oracles.from_ids(*wrong)
    with pytest.raises(ValueError, match="1 or more"):
        us.oracles.from_ids(never, 0)
    assert us.oracles.from_ids(never).vocabulary is None


def test_a_ledger_of_ids_goes_on_and_knows_its_target(tmp_path):
    learner, ledger = us.learners.TokenHead(30, context=64), tmp_path / "ledger.sqlite"
    whole = us.learn(Server(1, ids=30), learner)
    server = Server(1, ids=30)
    for share in (0.3, 0.7):
        with pytest.raises(us.BudgetExceeded):
            us.learn(server, learner, budget=int(share * whole.queries), ledger=ledger)
    again = us.learn(server, learner, ledger=ledger)
    assert us.equivalent(again.model, whole.model)
    assert server.queries == again.queries <= whole.queries + 2 * 32
    with pytest.raises(us.LedgerMismatch, match="another target"):
        us.learn(Server(2, ids=30), learner, ledger=ledger)


def test_torch_modules_of_ids():
    torch: Any = pytest.importorskip("torch")

    class Bag(torch.nn.Module):  # type: ignore[misc]
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(20, 4).double()

        def forward(self, ids):
            x = self.table(ids)
            weights = torch.softmax(torch.einsum("bnd,bd->bn", x, x[:, -1]), dim=1)
            return torch.einsum("bn,bn->b", weights, x[:, :, 0])

    oracle = us.oracles.from_torch(Bag().eval(), ids=True)
    found = us.learn(oracle, us.learners.TokenHead(20, context=32))
    assert found.evidence.passed
    with pytest.raises(us.ModelMismatch):
        us.learn(oracle, us.learners.ExactHead(4))
    assert not hasattr(us.oracles.from_torch(torch.nn.Linear(4, 1).eval()), "vocabulary")


def test_onnx_files_of_ids(tmp_path):
    helper: Any = pytest.importorskip("onnx").helper
    pytest.importorskip("onnxruntime", reason="the extra onnx")
    from onnx import TensorProto, numpy_helper

    table = np.random.default_rng(5).standard_normal((20, 4))
    arrays = {"table": table, "last": np.int64(-1), "axis2": np.array([2]), "v": np.ones((4, 1))}
    arrays["axes"] = np.array([1, 2])
    steps = [
        ("Gather", "table ids", "x", {"axis": 0}),
        ("Gather", "x last", "query", {"axis": 1}),
        ("Unsqueeze", "query axis2", "column", {}),
        ("MatMul", "x column", "scores", {}),
        ("Softmax", "scores", "weights", {"axis": 1}),
        ("MatMul", "x v", "values", {}),
        ("Mul", "weights values", "weighed", {}),
        ("ReduceSum", "weighed axes", "y", {"keepdims": 0}),
    ]
    graph = helper.make_graph(
        [helper.make_node(op, i.split(), [o], **more) for op, i, o, more in steps],
        "head",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["batch"])],
        [numpy_helper.from_array(np.asarray(x), name) for name, x in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    (tmp_path / "ids.onnx").write_bytes(model.SerializeToString())
    oracle = us.oracles.from_onnx(tmp_path / "ids.onnx")
    found = us.learn(oracle, us.learners.TokenHead(20, context=32))
    truth = us.SingleHead(np.eye(4), np.ones(4))
    ids = np.random.default_rng(6).integers(20, size=(30, 9))
    np.testing.assert_allclose(found.model(ids), truth(table[ids]), rtol=0, atol=1e-9)


def test_a_server_of_ids():
    pytest.importorskip("httpx", reason="the extra http")
    pytest.importorskip("orjson", reason="the extra http")
    from tests.oracles.http_server import in_json, serving

    server = LayerServer(0)
    takes = [{"name": "input_ids", "datatype": "INT64", "shape": [-1, -1]}]
    metadata = {"inputs": takes, "outputs": [{"name": "y", "datatype": "FP64", "shape": [-1, 8]}]}
    with serving(in_json(server), metadata) as (url, _):
        oracle = us.oracles.from_url(url)
        learner = us.learners.AttentionLayerLearner(8, table=server.table, context=64)
        layer = us.learn(oracle, learner)
        assert layer.queries == server.queries
        assert max(server.misses(layer.model).values()) < 1e-8


class Session:
    """What onnxruntime opens: a model of ids that adds up positions under a mask."""

    def __init__(self, *names):
        self._names = names

    def get_inputs(self):
        return [
            SimpleNamespace(name=n, type="tensor(int64)", shape=["B", "N"]) for n in self._names
        ]

    def get_outputs(self):
        return [SimpleNamespace(name="y")]

    def run(self, outputs, given):
        assert {*given} == {*self._names}
        assert all(x.dtype == np.int64 for x in given.values())
        others = [given[n] for n in self._names[1:]] or [np.ones_like(given[self._names[0]])]
        return [np.sum(given[self._names[0]] * others[0] + sum(others[1:]), axis=1)]


def test_onnx_models_of_ids_get_a_mask_and_positions(tmp_path, monkeypatch):
    names = ("input_ids", "attention_mask", "position_ids", "token_type_ids")
    (tmp_path / "ids.onnx").touch()
    for given in (names, names[:1], ("words",)):
        session = Session(*given)
        monkeypatch.setattr(model_runtimes, "_session", lambda *_, opened=session: opened)
        oracle: Any = us.oracles.from_onnx(tmp_path / "ids.onnx")
        assert oracle.vocabulary is None
        assert not hasattr(oracle, "dim")
        places = 3 if len(given) > 1 else 0
        np.testing.assert_array_equal(oracle(np.array([[1, 4, 2]])), [1 + 4 + 2 + places])
    monkeypatch.setattr(model_runtimes, "_session", lambda *_: Session("words", "mask"))
    with pytest.raises(ValueError, match="name one"):
        us.oracles.from_onnx(tmp_path / "ids.onnx")


@pytest.mark.parametrize("binary", [False, True])
def test_tensors_of_ids_in_the_open_inference_protocol(binary):
    pytest.importorskip("orjson")
    from unsoftmax.oracles.open_inference import HEADER_LENGTH, request, signature

    takes = [
        {"name": "attention_mask", "datatype": "INT32", "shape": [-1, -1]},
        {"name": "input_ids", "datatype": "INT64", "shape": [-1, -1]},
    ]
    server = {"extensions": ["binary_tensor_data"]} if binary else {}
    to = signature({"inputs": takes, "outputs": [{"name": "y"}]}, server)
    assert to.beside == {"attention_mask": "INT32"}
    body, headers = request(np.array([[5, 7]]), to)
    if binary:
        numbers = body[int(headers[HEADER_LENGTH]) :]
        assert np.frombuffer(numbers[:16], "<i8").tolist() == [5, 7]
        assert np.frombuffer(numbers[16:], "<i4").tolist() == [1, 1]
    else:
        assert b'"datatype":"INT64","data":[5,7]' in body
        assert b'"datatype":"INT32","data":[1,1]' in body


def test_questions_of_vectors_are_refused_on_ids():
    with pytest.raises(ValueError, match="give vocabulary"):
        us.audit(us.oracles.from_ids(never), 3)
    with pytest.raises(us.ModelMismatch) as refusal:
        us.defend(us.oracles.from_ids(never), 3)
    assert refusal.value.reason == "TAKES_IDS"
    with pytest.raises(us.ModelMismatch):
        us.verify(us.oracles.from_ids(never), HEAD)
