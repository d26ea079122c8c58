"""A flipped bit in a learner's ledger: it has no effect, or it is named before paying.

One learner per kind of answer is attacked; in `make evidence` every learner of `tests.laws`.
`test_ledger_damage` tries other damage, on a script.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import unsoftmax as us
from tests.campaign.lives import account, checkpoint_once, one_by_one
from tests.laws import kinds
from unsoftmax.campaign.ledger import Ledger
from unsoftmax.campaign.ledger_salvage import salvage
from unsoftmax.protocol import Oracle

CALLS = 40
"""About how many calls a run is made of."""


@dataclass
class Counting:
    """A target asked sequence by sequence, so that bits do not depend on the batch."""

    oracle: Oracle
    at_call: Callable[[int], None] | None = None
    calls: int = 0
    queries: int = 0

    def __call__(self, X):
        if self.at_call is not None:
            self.at_call(self.calls)
        self.calls += 1
        self.queries += len(X)
        return one_by_one(self.oracle, X)


def run(case, ledger, at_call=None, batch=None):
    """Run a learner; return what it recovered and the target that was asked."""
    counted = Counting(case.oracle(case.target(0)), at_call)
    return us.learn(counted, case.learner(0), ledger=ledger, batch=batch), counted


def killed(case, folder, monkeypatch, checkpoints):
    """Return the files that kill -9 would leave in the midst of a run."""
    batch = max(2, run(case, None)[1].queries // CALLS)
    calls = run(case, None, batch=batch)[1].calls
    (folder / "run").mkdir()

    def look(call):
        if call == calls // 2:
            shutil.copytree(folder / "run", folder / "killed")

    with monkeypatch.context() as patch:
        if not checkpoints:
            patch.setattr(Ledger, "checkpoint", Ledger.checkpoint)  # and put back afterwards
            checkpoint_once()
        run(case, folder / "run" / "ledger", look, batch)
    shutil.rmtree(folder / "run")
    return taken(folder / "killed")


def finished(case, folder):
    """Return the file of a finished run."""
    run(case, folder / "ledger")
    return taken(folder)


def taken(folder):
    """Read the files of a folder, and delete it."""
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    shutil.rmtree(folder)
    return contents


def put(folder, contents):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return folder / "ledger"


def flipped(rng, contents):
    """Flip one bit: the file is drawn first, so that small ones have their share."""
    names = sorted(name for name, data in contents.items() if data and not name.endswith("-shm"))
    name = rng.choice(names)
    data = bytearray(contents[name])
    place = int(rng.integers(len(data)))
    data[place] ^= 1 << int(rng.integers(8))
    return {**contents, name: bytes(data)}, f"{name} {place}"


def same(mine, other):
    mine, other = mine.model.arrays(), other.model.arrays()
    return mine.keys() == other.keys() and all(
        np.asarray(mine[name]).tobytes() == np.asarray(other[name]).tobytes() for name in mine
    )


@pytest.mark.few
@pytest.mark.parametrize("state", ["finished", "killed", "killed, all in the WAL"])
@kinds
def test_a_flipped_bit_has_no_effect_or_is_named(
    case, state, tmp_path, monkeypatch, trials, evidence
):
    folder, seen = tmp_path / "damaged", Counter[str]()
    (tmp_path / "first").mkdir()
    if state == "finished":
        sound = finished(case, tmp_path / "first")
    else:
        sound = killed(case, tmp_path / "first", monkeypatch, state == "killed")
        assert {"ledger", "ledger-wal", "ledger-paid"} <= sound.keys()
    before = account(put(folder, sound))
    expected, asked = run(case, folder / "ledger")
    for trial in range(trials(1, 5)):
        damaged, where = flipped(np.random.default_rng([trial, len(case.name)]), sound)
        ledger = put(folder, damaged)
        counted = Counting(case.oracle(case.target(0)))
        try:
            recovery = us.learn(counted, case.learner(0), ledger=ledger)
        except us.LedgerError:
            assert counted.queries == 0, where
            seen["named"] += 1
            go_on(case, ledger, tmp_path / f"{trial}", before, expected)
            continue
        assert same(recovery, expected), where
        assert counted.queries == asked.queries, where
        assert recovery.counts == expected.counts, where
        seen["no effect"] += 1
    evidence(
        f"one bit of a ledger flipped, {case.name}, {state}",
        flips=seen["named"] + seen["no effect"],
        silent_losses=0,
        salvaged=seen["named"],
        **seen,
    )


def go_on(case, ledger, new, before, expected):
    """Salvage a damaged ledger and go on with what is sound: the bill is the whole one."""
    copied = salvage(ledger, new)
    assert not copied.damage
    assert copied.paid >= before.paid
    recovery, counted = run(case, new)
    assert same(recovery, expected)
    assert recovery.queries == copied.paid + counted.queries
