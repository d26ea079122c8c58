"""The registry: every place that answers can come from, for the laws that all oracles keep."""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.oracles.http_server import BINARY, failing_as_500, in_binary, in_json, serving
from tests.oracles.other_side import DIM, KINDS, WIDTH, OtherSide, V, W
from tests.oracles.servers import MLSERVER, mlserver


@dataclass(frozen=True)
class Asked:
    """An oracle, and what is at its other side."""

    oracle: Any
    other: OtherSide


def _exact() -> Any:
    return us.learners.ExactHead(DIM)


def _plain(other: OtherSide, parts: Any) -> Any:
    return lambda X: other(X)


def _models(y: Any, truth: Any) -> bool:
    return bool(us.equivalent(y, truth, rtol=1e-9))


def _labelled(y: Any, truth: Any) -> bool:
    """Whether W is right, which labels determine to the bits that were asked for."""
    return bool(np.linalg.norm(y.W - truth.W) < 0.05)


@dataclass(frozen=True)
class Place:
    """A kind of oracle: how one is made to ask the other side."""

    name: str
    make: Callable[[OtherSide, Any], Any]
    """From the other side, and what `parts` gives."""
    needs: tuple[str, ...] = ()
    """Packages without which it is skipped."""
    parts: Callable[[Any], Any] | None = None
    """What is costly and made once: a context manager, from a factory of folders."""
    kinds: tuple[str, ...] = KINDS
    """What its other side can do."""
    knows_dim: bool = False
    pickles: bool = True
    learner: Callable[[], Any] = _exact
    recovered: Callable[[Any, Any], bool] = _models
    batch: int = 8
    exact: bool = True
    """Whether answers are the other side's own, to rounding."""
    cuts: bool = False
    """Whether it ends connections after a failure: the next call is paid and may never arrive."""

    @contextmanager
    def open(self, folder, kind, parts):
        """Make an oracle, and close what it needs."""
        other = OtherSide(folder, kind)
        with ExitStack() as stack:
            oracle = self.make(other, parts)
            if hasattr(oracle, "__enter__"):
                oracle = stack.enter_context(oracle)
            yield Asked(oracle, other)


# -- modules and files


def _torch(other, parts):
    import torch

    class Module(torch.nn.Module):  # type: ignore[misc]
        def __init__(self):
            super().__init__()
            for name, array in {"W": W, "V": V}.items():
                self.register_buffer(name, torch.tensor(array))

        def forward(self, X):
            other.note(*X.shape[:2])
            return other.answers(X, self.W, self.V, torch)

    return us.oracles.from_torch(Module().eval())


def onnx_graph(kind):
    """Write the head in ONNX's operators."""
    from onnx import TensorProto, helper, numpy_helper

    arrays = {"WT": W.T, "VT": V.T, "last": np.int64(-1), "first": np.array([0])}
    arrays |= {f"axis{k}": np.array([k]) for k in (1, 2)}
    steps = [
        ("Gather", "X last", "query", {"axis": 1}),
        ("MatMul", "query WT", "key", {}),
        ("Unsqueeze", "key axis2", "column", {}),
        ("MatMul", "X column", "scores", {}),
        ("Softmax", "scores", "weights", {"axis": 1}),
        ("MatMul", "X VT", "values", {}),
        ("Mul", "weights values", "weighed", {}),
        ("ReduceSum", "weighed axis1", "vectors", {"keepdims": 0}),
    ]
    if kind != "vectors":
        steps.append(("Gather", "vectors first", "column0", {"axis": 1}))
        steps.append(("Squeeze", "column0 axis1", "number", {}))
    if kind == "too many":
        steps.append(("Gather", "number first", "once", {"axis": 0}))
        steps.append(("Concat", "number once", "more", {"axis": 0}))
    nodes = [helper.make_node(op, i.split(), [o], **more) for op, i, o, more in steps]
    shape = ["batch", WIDTH] if kind == "vectors" else [None]
    graph = helper.make_graph(
        nodes,
        "head",
        [helper.make_tensor_value_info("X", TensorProto.DOUBLE, ["batch", "length", DIM])],
        [helper.make_tensor_value_info(steps[-1][2], TensorProto.DOUBLE, shape)],
        [numpy_helper.from_array(np.asarray(x), name) for name, x in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


@contextmanager
def _onnx(other, parts):
    """Note in onnxruntime's own session, since a graph cannot, what it is asked."""
    import onnxruntime

    session = onnxruntime.InferenceSession

    class Noting(session):  # type: ignore[misc, valid-type]
        def run(self, names, inputs, *more):
            [X] = inputs.values()
            other.note(*X.shape[:2])
            return super().run(names, inputs, *more)

    path = other.folder / "head.onnx"
    path.write_bytes(onnx_graph(other.kind))
    onnxruntime.InferenceSession = Noting
    try:
        yield us.oracles.from_onnx(path)
    finally:
        onnxruntime.InferenceSession = session


# -- servers and clusters


def _http(protocol, extensions=()):
    @contextmanager
    def make(other, parts):
        metadata = {
            "inputs": [{"name": "X", "datatype": "FP64", "shape": [-1, -1, DIM]}],
            "outputs": [{"name": "y", "datatype": "FP64", "shape": [-1]}],
        }
        with serving(failing_as_500(protocol(other)), metadata, extensions) as (url, _):
            yield us.oracles.from_url(url)

    return make


@contextmanager
def _mlserver_parts(folders):
    """Start one server with a model of every kind; each keeps its account in its own folder."""
    folder = folders.mktemp("served")
    here = os.path.dirname(__file__)
    for name in ("other_side.py", "mlserver_runtime.py"):
        shutil.copy(os.path.join(here, name), folder)
    for kind in KINDS:
        model = folder / kind.replace(" ", "-")
        model.mkdir()
        settings = {
            "name": model.name,
            "implementation": "mlserver_runtime.Noting",
            "parameters": {"uri": str(model), "extra": {"kind": kind}},
            "inputs": [{"name": "X", "datatype": "FP64", "shape": [-1, -1, DIM]}],
            "outputs": [{"name": "answers", "datatype": "FP64", "shape": [-1]}],
        }
        (model / "model-settings.json").write_text(json.dumps(settings))
    server = mlserver(folder, [kind.replace(" ", "-") for kind in KINDS])
    server.start()
    try:
        yield server
    finally:
        server.kill()


def _mlserver(other, server):
    name = other.kind.replace(" ", "-")
    other.folder = server.folder / name
    for account in other.folder.glob("*.txt"):
        account.unlink()
    return us.oracles.from_url(server.url_of(name))


@contextmanager
def _dask_parts(folders):
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def _dask(other, client):
    return us.oracles.on_dask(client, other)


# -- wrappers, so mild that a learner does not mind


def _wrapped(wrap):
    return lambda other, parts: wrap(other)


PLACES = [
    Place("a function", _plain, pickles=False),
    Place("from_torch", _torch, ("torch",), pickles=False),
    Place("from_onnx", _onnx, ("onnxruntime", "onnx"), knows_dim=True),
    Place("from_url", _http(in_json), ("httpx", "orjson"), knows_dim=True),
    Place("from_url, binary", _http(in_binary, BINARY), ("httpx", "orjson"), knows_dim=True),
    Place(
        "from_url, MLServer",
        _mlserver,
        ("httpx", "orjson", "MLSERVER"),
        _mlserver_parts,
        knows_dim=True,
        cuts=True,
    ),
    Place("on_dask", _dask, ("distributed",), _dask_parts, pickles=False),
    Place(
        "coordinate",
        lambda other, parts: us.oracles.coordinate(OtherSide(other.folder, "vectors"), 0),
        kinds=("number",),
    ),
    Place("rounded", _wrapped(lambda other: us.oracles.rounded(other, 12))),
    Place("noisy", _wrapped(lambda other: us.oracles.noisy(other, 1e-15, 0))),
    Place("clipped", _wrapped(lambda other: us.oracles.clipped(other, -1e6, 1e6))),
    Place("norm_capped", _wrapped(lambda other: us.oracles.norm_capped(other, 1e6))),
    Place("within", _wrapped(lambda other: us.oracles.within(other, 1e-15))),
    Place(
        "labels",
        _wrapped(us.oracles.labels),
        learner=lambda: us.learners.LabelHead(DIM, 12),
        recovered=_labelled,
        batch=32,
        exact=False,
        kinds=("number", "failing", "too many"),
    ),
]


def skip_without(place):
    """Skip where an extra is absent."""
    for package in place.needs:
        if package == "MLSERVER":
            if not MLSERVER:
                pytest.skip("MLSERVER names no installed mlserver")
        else:
            pytest.importorskip(package, reason=f"{place.name} is an extra")
