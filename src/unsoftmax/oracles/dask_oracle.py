"""Replicas of an oracle on a Dask cluster, behind the same callable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unsoftmax.oracles.layer_outputs import missing_extra
from unsoftmax.oracles.wrapped import WrappedOracle
from unsoftmax.probes import Array
from unsoftmax.protocol import Oracle


def on_dask(client: Any, oracle: Oracle) -> DaskOracle:
    """Ask copies of an oracle, one in every worker process of a Dask cluster.

    Every call is a future; so many calls are under way as `learn` has ``workers``. A call whose
    worker dies is made again by another one: the runner does not notice, and the oracle may have
    been asked twice.

    Parameters
    ----------
    client : dask.distributed.Client
        Of a cluster of any kind, as ``Client()`` for this machine, or
        ``Client("tcp://scheduler:8786")``. unsoftmax must be installed where its workers run.
    oracle : callable
        From (B, N, d) to (B,) or (B, m); it must be possible to pickle it.

    Returns
    -------
    callable
        From (B, N, d) to (B,) or (B, m).

    Raises
    ------
    ImportError
        distributed is not installed.
    TypeError
        ``client`` is none, or the oracle is not callable.

    Examples
    --------
    >>> from dask.distributed import Client  # doctest: +SKIP
    >>> client = Client(n_workers=2)  # doctest: +SKIP
    >>> us.learn(on_dask(client, oracle), learner, workers=4)  # doctest: +SKIP
    """
    if not isinstance(client, _client_class()):
        raise TypeError(f"client must be a dask.distributed.Client; it is {type(client).__name__}.")
    return DaskOracle(oracle, client)


@dataclass(frozen=True, eq=False)
class DaskOracle(WrappedOracle):
    """An oracle that is asked on a cluster; see `on_dask`."""

    client: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        # sent once, not with every call
        object.__setattr__(self, "_replicas", self.client.scatter(self.oracle, broadcast=True))

    def __call__(self, X: Array, /) -> Any:
        """Answer a batch of sequences (B, N, d) on some worker."""
        # never a cached result: the same question may be asked twice on purpose
        future = self.client.submit(_ask, self._replicas, X, pure=False)  # type: ignore[attr-defined]
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise


def _ask(oracle: Oracle, X: Array) -> Any:
    return oracle(X)


def _client_class() -> Any:
    try:
        from distributed import Client
    except ImportError as error:
        raise missing_extra("distributed", "dask") from error
    return Client
