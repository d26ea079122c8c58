"""How fast endpoints are asked, and what of the time is ours.

Needs the extras torch, onnx, http and dask, and $MLSERVER and $KSERVE: `make bench-endpoints`.
Prints three tables and writes them, with the date and the commit, to a markdown file:

1. a head served over HTTP: queries per second of `learn`, beside the server's own limit, which is
   its throughput under a plain load generator that sends requests made beforehand;
2. the same head as a NumPy function, a torch module, an ONNX file, over HTTP and on a cluster;
3. replicas on a Dask cluster of one and two processes of this machine, for a target that is slow.

Only ratios within one table mean something: everything runs on the same cores, servers included,
and what is compared takes turns.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import httpx
import numpy as np
import torch
from distributed import Client, LocalCluster

import unsoftmax as us
from measuring import ROOT, environment, publish, table
from serving import kserve, mlserver
from unsoftmax.oracles.open_inference import request
from unsoftmax.probes import Array

Labels = us.learners.LabelHead

DIM = 64
DIMS = (64, 128)
WORKERS = (1, 2, 4)
LOADS = ((512, 1), (512, 2), (1024, 1), (1024, 2), (2048, 2))
"""Sequences per request, and connections, that the load generator tries."""
BITS = 4
SLOW_S = 0.02
SLOW_BATCH = 64


def head(dim: int) -> us.SingleHead:
    rng = np.random.default_rng(dim)
    return us.SingleHead(rng.standard_normal((dim, dim)) / np.sqrt(dim), rng.standard_normal(dim))


# -- one run


class InFlight:
    """An oracle's own account: its queries, and the time in which some of them are in flight."""

    def __init__(self, target: Callable[[Array], Array]) -> None:
        self.target, self.lock = target, threading.Lock()
        self.queries = self.calls = self.flying = 0
        self.seconds = self.since = 0.0
        self.asked: list[Array] = []

    def __call__(self, X: Array) -> Array:
        """Answer, and note when."""
        with self.lock:
            self.queries, self.calls = self.queries + len(X), self.calls + 1
            self.asked.append(X)
            self.since = self.since if self.flying else time.perf_counter()
            self.flying += 1
        try:
            return self.target(X)
        finally:
            with self.lock:
                self.flying -= 1
                if not self.flying:
                    self.seconds += time.perf_counter() - self.since


@dataclass(frozen=True)
class Run:
    """What one recovery took."""

    queries: int
    calls: int
    seconds: float
    oracle_s: float
    asked: list[Array]

    @property
    def rate(self) -> float:
        """Queries per second."""
        return self.queries / self.seconds

    @property
    def share(self) -> float:
        """Share of the time in which nothing was in flight."""
        return 1 - self.oracle_s / self.seconds


def recover(
    target: Callable[[Array], Any],
    learner: Any,
    workers: int = 1,
    batch: int | None = None,
    ledger: bool = False,
) -> Run:
    oracle = InFlight(target)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "ledger.sqlite") if ledger else None
        start = time.perf_counter()
        recovery = us.learn(oracle, learner, workers=workers, batch=batch, ledger=file)
        seconds = time.perf_counter() - start
    off = float(np.linalg.norm(recovery.model.W - head(learner.dim).W))
    assert off <= recovery.certificate.W_error
    return Run(oracle.queries, oracle.calls, seconds, oracle.seconds, oracle.asked)


# -- a server and its limit

Body: TypeAlias = tuple[bytes, dict[str, str]]


def send_all(url: str, bodies: Sequence[Body], connections: int) -> float:
    """Send every body over so many connections; return the seconds that takes."""
    waiting = iter(bodies)
    lock = threading.Lock()
    with httpx.Client(timeout=60) as client:
        start = time.perf_counter()

        def send() -> None:
            while True:
                with lock:
                    one = next(waiting, None)
                if one is None:
                    return
                client.post(f"{url}/infer", content=one[0], headers=one[1]).raise_for_status()

        threads = [threading.Thread(target=send) for _ in range(connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - start


@dataclass
class Contest:
    """A server's limit and recoveries from it, taking turns."""

    url: str
    learner: Any
    rounds: int

    def row(self) -> list[str]:
        """Measure everything so often; ratios are of one round each, and then medians."""
        endpoint = us.oracles.from_url(self.url)
        oracle = us.oracles.labels(endpoint) if isinstance(self.learner, Labels) else endpoint
        first = recover(oracle, self.learner)
        own = self.bodies(first.asked, endpoint)
        bulk = np.concatenate([X for X in first.asked if X.shape[1:] == (2, self.learner.dim)])
        loads: list[list[float]] = []
        runs: list[list[float]] = []
        replayed, kept, used = [], [], []
        for _ in range(self.rounds):
            loads.append([self.limit(bulk, endpoint, *choice) for choice in LOADS])
            replayed.append(first.queries / send_all(self.url, own, WORKERS[-1]))
            began = time.process_time()
            taken = [recover(oracle, self.learner, workers) for workers in WORKERS]
            used.append((time.process_time() - began) / sum(run.queries for run in taken))
            runs.append([run.rate for run in taken])
            kept.append(recover(oracle, self.learner, WORKERS[-1], ledger=True).rate)
        # the best choice is one choice for all rounds: the best of each would be the luckiest
        limits, best = (max(zip(*rates, strict=True), key=median) for rates in (loads, runs))
        speeds = [limits, replayed, *zip(*runs, strict=True), kept]
        ratios = [
            median(x / y for x, y in zip(*pair, strict=True))
            for pair in ((replayed, limits), (best, limits), (best, replayed))
        ]
        return [
            f"{first.queries:,}",
            *(f"{median(rates):,.0f}" for rates in speeds),
            f"{1e6 * median(used):.0f}",
            *(f"{ratio:.2f}" for ratio in ratios),
        ]

    def limit(self, bulk: Array, endpoint: Any, size: int, connections: int) -> float:
        """Return queries per second for all of a run's two-token questions, sent in such calls."""
        calls = [bulk[k : k + size] for k in range(0, len(bulk), size)]
        return len(bulk) / send_all(self.url, self.bodies(calls, endpoint), connections)

    def bodies(self, asked: Sequence[Array], oracle: Any) -> list[Body]:
        """Write requests beforehand."""
        made = (request(X, oracle.signature) for X in asked)
        return [(body, {**headers, "Accept-Encoding": "identity"}) for body, headers in made]


def contests(dims: Sequence[int], rounds: int) -> str:
    rows = []
    for form, serve, dim, learner in (
        *(("JSON", mlserver, dim, us.learners.ExactHead(dim)) for dim in dims),
        ("JSON", mlserver, DIM, Labels(DIM, bits=BITS)),
        ("binary", kserve, DIM, us.learners.ExactHead(DIM)),
    ):
        with serve(head(dim)) as url:
            server = httpx.get(url.partition("/models/")[0]).json()
            row = Contest(url, learner, rounds).row()
        name = f"{server['name']} {server['version']}, {form}"
        rows.append([name, str(dim), type(learner).__name__, *row])
    header = ["server", "d", "learner", "queries", "limit", "own calls"]
    header += [f"{workers} worker{'s' * (workers > 1)}" for workers in WORKERS]
    header += ["with a ledger", "µs each", "own calls / limit", "best / limit", "best / own calls"]
    return table(header, rows)


# -- one target, many ways


class TorchHead(torch.nn.Module):  # type: ignore[misc]
    """The same head in torch, in float64."""

    def __init__(self, true: us.SingleHead) -> None:
        super().__init__()
        for name in ("W", "v", "w", "c"):
            self.register_buffer(name, torch.tensor(np.array(getattr(true, name))))

    def forward(self, X: Any) -> Any:
        """Answer a batch of sequences."""
        scores = (X @ (X[:, -1] @ self.W.T + self.w)[:, :, None])[:, :, 0]
        return (torch.softmax(scores, 1) * (X @ self.v)).sum(1) + self.c


def exported(true: us.SingleHead, folder: str) -> Path:
    path = Path(folder, "head.onnx")
    dynamic = ({0: torch.export.Dim("batch"), 1: torch.export.Dim("length")},)
    example = (torch.randn(2, 5, true.dim, dtype=torch.float64),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecated parts
        torch.onnx.export(TorchHead(true), example, str(path), dynamo=True, input_names=["X"],
                          dynamic_shapes=dynamic, verbose=False)  # fmt: skip
    return path


@contextmanager
def cluster(processes: int) -> Iterator[Any]:
    """Start processes of this machine."""
    with (
        LocalCluster(
            n_workers=processes, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0"
        ) as local,
        Client(local) as client,
    ):
        yield client


def ways(rounds: int) -> str:
    """Ask the same head in every way, in turns."""
    true = head(DIM)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        oracles: dict[str, tuple[Any, int]] = {
            "NumPy function": (true, 1),
            "torch module": (us.oracles.from_torch(TorchHead(true).eval()), 1),
            "ONNX file": (us.oracles.from_onnx(exported(true, folder)), 1),
        }
        for name, serve in (("HTTP, MLServer", mlserver), ("HTTP, KServe", kserve)):
            oracles[name] = us.oracles.from_url(stack.enter_context(serve(true))), 4
        for processes in (1, 2):
            client = stack.enter_context(cluster(processes))
            name = f"Dask, {processes} process{'es' * (processes > 1)}"
            oracles[name] = us.oracles.on_dask(client, true), 4
        runs: dict[str, list[Run]] = {name: [] for name in oracles}
        for _ in range(rounds + 1):
            for name, (oracle, workers) in oracles.items():
                runs[name].append(recover(oracle, us.learners.ExactHead(DIM), workers))
    rows = [
        [
            name,
            str(oracles[name][1]),
            f"{median(run.calls for run in taken[1:]):.0f}",
            f"{1e3 * median(run.seconds for run in taken[1:]):,.0f}",
            f"{median(run.rate for run in taken[1:]):,.0f}",
            f"{100 * median(run.share for run in taken[1:]):.0f} %",
        ]
        for name, taken in runs.items()
    ]
    return table(["target", "workers", "calls", "ms", "queries /s", "learner's share"], rows)


# -- a cluster, and a target worth one


@dataclass(frozen=True)
class Slow:
    """A head that computes for a while at every call."""

    true: us.SingleHead
    turns: int

    @classmethod
    def of(cls, true: us.SingleHead, seconds: float) -> Slow:
        """Compute for so long on this machine, as it is now."""
        slow, turns = cls(true, 100), 100
        start = time.process_time()
        slow.compute()
        return cls(true, round(turns * seconds / (time.process_time() - start)))

    def compute(self) -> None:
        """Multiply matrices."""
        A = np.full((128, 128), 1 / 128)
        for _ in range(self.turns):
            A = A @ A

    def __call__(self, X: Array) -> Array:
        """Answer a batch of sequences."""
        self.compute()
        return self.true(X)


def scaling(rounds: int) -> str:
    """Ask a slow target here, and on one and two processes."""
    true = head(DIM)
    slow = Slow.of(true, SLOW_S)
    with ExitStack() as stack:
        oracles: dict[str, tuple[Any, int]] = {"this process": (slow, 1)}
        for processes in (1, 2):
            client = stack.enter_context(cluster(processes))
            name = f"Dask, {processes} process{'es' * (processes > 1)}"
            oracles[name] = us.oracles.on_dask(client, slow), 2 * processes
        runs: dict[str, list[Run]] = {name: [] for name in oracles}
        for _ in range(rounds):
            for name, (oracle, workers) in oracles.items():
                runs[name].append(recover(oracle, us.learners.ExactHead(DIM), workers, SLOW_BATCH))
    one = median(run.seconds for run in runs["Dask, 1 process"])
    rows = [
        [
            name,
            str(oracles[name][1]),
            f"{median(run.calls for run in taken):.0f}",
            f"{median(run.seconds for run in taken):.2f}",
            f"{one / median(run.seconds for run in taken):.2f}",
            f"{100 * median(run.share for run in taken):.0f} %",
        ]
        for name, taken in runs.items()
    ]
    return table(["where", "workers", "calls", "s", "speed-up", "learner's share"], rows)


def versions() -> str:
    names = ("torch", "onnxruntime", "httpx", "distributed")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def document(dims: Sequence[int], rounds: int) -> str:
    busy = os.getloadavg()[0] > (os.cpu_count() or 1)
    note = "The machine was busy with other work: this will be measured again.\n" if busy else ""
    return f"""# Endpoints: how fast they are asked

{environment()}
Also {versions()}.
{note}Medians of {rounds} rounds in which everything takes turns; servers, processes and learner
share the cores, and so does what else runs: compare within a table. One BLAS thread of ours.
`python benchmarks/endpoints.py --help` says how.

## A server's limit

Queries per second of `learn` through `from_url`, beside what the server answers at most. Its
*limit* is what a plain load generator gets: all two-token questions of a run, made beforehand, at
the best of {len(LOADS)} choices of batch and connections. *Own calls* are all requests of a run,
made beforehand and sent by {WORKERS[-1]} connections as fast as they are answered: small rounds,
and sequences of up to 512 tokens, are among them and cost the server more. *With a ledger*:
{WORKERS[-1]} workers, every answer on disk before the learner sees it. *µs each*: processor time of
our side per query, learner and encoding included. Ratios are medians of those of each round.

{contests(dims, rounds)}

- At d = 64 one head takes a few thousand questions, which a server answers in a thirtieth of a
  second. Two fifths of that time go to small rounds, which follow each other, and to sequences of
  512 tokens (*own calls / limit*). So no client reaches the limit with them.
- Longer runs, larger heads and binary tensors reach 0.73 to 0.78 of the limit, as much as the same
  requests made beforehand.
- Threads of our own linear algebra take the server's core. With two of them, NumPy's default, the
  same rows are 0.35, 0.56, 0.37 and 0.62. Set `OMP_NUM_THREADS=1` if both run on one machine.
- Batches of 128 to 2,048 questions, with one to four workers, gave 30,000 to 45,000 queries per
  second in the first row, in a run of their own; 1,024 gave the most.

## One head, many ways

d = {DIM}, `ExactHead`, the default batch. *Learner's share* is the share of the time in
which no question is in flight.

{ways(rounds)}

## A cluster

The same head, which computes for {1e3 * SLOW_S:.0f} ms of processor time at every call, asked in
batches of {SLOW_BATCH}. Speed-up is over one process of Dask. Rounds follow each other, and small
ones do not fill two processes; the learner needs a share of a core as well.

{scaling(rounds)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dims", type=int, nargs="+", default=DIMS, help="dimensions of table 1")
    parser.add_argument("--rounds", type=int, default=5, help="how many rounds (default 5)")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "docs" / "benchmarks" / "endpoints.md",
        help="markdown file to write",
    )
    options = parser.parse_args()
    publish(document(options.dims, options.rounds), options.out)


if __name__ == "__main__":
    main()
