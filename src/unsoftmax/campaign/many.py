"""Many targets at once: all heads, layers or coordinates of a model, a ledger for each."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from unsoftmax.campaign.recovery import Recovery
from unsoftmax.campaign.runner import learn
from unsoftmax.errors import UnsoftmaxError
from unsoftmax.protocol import Learner, Oracle

Outcome = Recovery[Any] | UnsoftmaxError


@dataclass(frozen=True)
class Recoveries(Mapping[str, Outcome]):
    """What `learn_many` found: by target, a `Recovery` or the error that refused it."""

    outcomes: Mapping[str, Outcome]

    def __getitem__(self, name: str) -> Outcome:
        return self.outcomes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.outcomes)

    def __len__(self) -> int:
        return len(self.outcomes)

    @property
    def recovered(self) -> dict[str, Recovery[Any]]:
        """The targets that were recovered."""
        return {name: x for name, x in self.outcomes.items() if isinstance(x, Recovery)}

    @property
    def refused(self) -> dict[str, UnsoftmaxError]:
        """The targets that were not, and why."""
        return {name: x for name, x in self.outcomes.items() if not isinstance(x, Recovery)}

    def rows(self) -> list[dict[str, Any]]:
        """Return the table: a row per target."""
        return [_row(name, outcome) for name, outcome in self.outcomes.items()]

    def __repr__(self) -> str:
        return f"Recoveries({len(self.recovered)} of {len(self)} targets recovered)"

    def __str__(self) -> str:
        lines = [[str(cell) for cell in row.values()] for row in self.rows()]
        table = [[*_row("", UnsoftmaxError())], *lines]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in table)


def learn_many(
    targets: Mapping[str, Oracle],
    learner: Learner[Any] | Callable[[str], Learner[Any]],
    client: Any = None,
    folder: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Recoveries:
    """Recover many targets, here one after another or on a Dask cluster all at once.

    Parameters
    ----------
    targets : dict of str to callable
        Oracles by name. For a cluster it must be possible to pickle them.
    learner : Learner or callable
        What to learn of each; a function is given the target's name.
    client : dask.distributed.Client, optional
        The cluster; None learns in this process.
    folder : path, optional
        Every target gets a folder of its name there, with ledger, model and recovery.json: the
        same call goes on where an interrupted one stopped. On a cluster it lies on each worker's
        own disk. None keeps everything in memory.
    **settings
        As `learn` takes them: budget, holdout, batch, workers, retries.

    Returns
    -------
    Recoveries
        By name, in the order of ``targets``; printed, a table.

    Raises
    ------
    ValueError
        There is no target, two names are one folder, or a setting is out of range.

    Examples
    --------
    >>> import numpy as np, unsoftmax as us
    >>> heads = {f"head {h}": us.SingleHead(h * np.eye(2), [1.0, 2.0]) for h in (1, 2)}
    >>> print(repr(learn_many(heads, us.learners.ExactHead(2))))
    Recoveries(2 of 2 targets recovered)
    """
    if not targets:
        raise ValueError("There is no target to learn.")
    places = {name: None if folder is None else Path(folder) / _file_name(name) for name in targets}
    if folder is not None and len({str(place).lower() for place in places.values()}) < len(places):
        raise ValueError("Two targets have names that are one folder's: give them others.")

    def job(name: str) -> Callable[[], Outcome]:
        one: Any = learner if hasattr(learner, "steps") else learner(name)
        return partial(_recovered, targets[name], one, places[name], settings)

    jobs = {name: job(name) for name in targets}
    if client is None:
        return Recoveries({name: one() for name, one in jobs.items()})
    futures = {name: client.submit(one, pure=False) for name, one in jobs.items()}
    try:
        return Recoveries({name: future.result() for name, future in futures.items()})
    finally:
        client.cancel(list(futures.values()))


def _recovered(
    oracle: Oracle, learner: Learner[Any], place: Path | None, settings: Mapping[str, Any]
) -> Outcome:
    ledger = None
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
        ledger = place / "ledger.sqlite"
    try:
        recovery = learn(oracle, learner, ledger=ledger, **settings)
    except UnsoftmaxError as error:
        return error
    if place is not None:
        recovery.save(place)
    return recovery


def _file_name(name: str) -> str:
    """Return a name that every file system takes."""
    return re.sub(r"[^\w.-]+", "_", name).strip(".") or "_"


def _row(name: str, outcome: Outcome) -> dict[str, Any]:
    if not isinstance(outcome, Recovery):
        reason = f"{type(outcome).__name__}: {outcome}"
        return {"target": name, "model": "", "queries": "", "errors at most": "", "refused": reason}
    errors = outcome.certificate.errors.items()
    return {
        "target": name,
        "model": repr(outcome.model),
        "queries": outcome.queries,
        "errors at most": ", ".join(f"{which} {error:.0e}" for which, error in errors),
        "refused": "" if outcome.evidence.passed else "unchecked",
    }
