"""Files from somebody else: opened without running anything, bounded, and refused in a sentence."""

import io
import json
import os
import sqlite3
import struct
import zipfile

import numpy as np
import pytest

import unsoftmax as us
from tests.truth import Counted
from unsoftmax.campaign.ledger_format import COLUMNS, insertion
from unsoftmax.campaign.ledger_salvage import salvage
from unsoftmax.models import files

HEAD = us.SingleHead(np.eye(2), [1.0, 2.0])
LEARNER = us.learners.ExactHead(2)


class Runs:
    """What a pickle would run."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def npy(header, data=b""):
    """An .npy with this header."""
    text = repr(header).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def zipped(path, method=zipfile.ZIP_STORED, **members):
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


def bomb(path):
    """32 MiB of zeros in 150 kB: larger ones take long to make."""
    packer = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with packer as file, file.open("q.npy", "w", force_zip64=True) as member:
        member.write(npy({"descr": "<f8", "fortran_order": False, "shape": (2**22,)}))
        for _ in range(32):
            member.write(bytes(2**20))


@pytest.mark.parametrize("header", [
    {"descr": "<f8", "fortran_order": False, "shape": (10**14,)},
    {"descr": "<f8", "fortran_order": False, "shape": (2**62, 2**62)},
    {"descr": "<f8", "fortran_order": False, "shape": (-1,)},
    {"descr": "O", "fortran_order": False, "shape": (1,)},
    {"descr": "<U99999999", "fortran_order": False, "shape": (10**9,)},
    {"descr": "<f8", "shape": (1,)},
    "__import__('os').mkdir('ran')",
])  # fmt: skip
def test_an_array_that_claims_anything(header, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = zipped(tmp_path / "x.npz", q=npy(header, b"\x00" * 64))
    with pytest.raises(ValueError, match=r"q cannot be read"):
        us.load_weights(path)["q"]
    assert not (tmp_path / "ran").exists()


def test_a_zip_bomb_is_not_unpacked(tmp_path, monkeypatch):
    bomb(tmp_path / "x.npz")
    assert us.load_weights(tmp_path / "x.npz")["q"].shape == (2**22,)
    monkeypatch.setattr(files, "FREE", 2**20)
    with pytest.raises(ValueError, match=r"unpacks 33,\d+,\d+ bytes out of 1\d\d,"):
        us.load_weights(tmp_path / "x.npz")["q"]


def test_what_is_compressed_honestly_is_read(tmp_path):
    rng = np.random.default_rng(0)
    np.savez_compressed(tmp_path / "x.npz", q=rng.standard_normal((300, 300)), b=np.zeros(10**6))
    weights = us.load_weights(tmp_path / "x.npz")
    assert weights["q"].shape == (300, 300)
    assert not weights["b"].any()


def test_no_pickle_is_run(tmp_path):
    import pickle

    mark = tmp_path / "ran"
    payload = pickle.dumps(Runs(mark))
    np.save(tmp_path / "one.npy", np.array([Runs(mark)], dtype=object), allow_pickle=True)
    (tmp_path / "raw.npz").write_bytes(payload)
    (tmp_path / "one.npz").write_bytes((tmp_path / "one.npy").read_bytes())
    (tmp_path / "raw.safetensors").write_bytes(payload)
    (tmp_path / "raw.onnx").write_bytes(payload)
    zipped(tmp_path / "inner.npz", q=payload)
    for name in ("raw.npz", "one.npz", "raw.safetensors", "inner.npz"):
        with pytest.raises(ValueError, match=r"\w"):
            dict(us.load_weights(tmp_path / name))
    with pytest.raises(ValueError, match="safetensors"):
        us.load(tmp_path / "raw.safetensors")
    assert not mark.exists()


def test_any_flipped_byte_of_weights_is_a_value_error_or_a_number(tmp_path, trials):
    buffer = io.BytesIO()
    np.savez_compressed(buffer, q=np.eye(4), k=np.ones((4, 4)))
    whole = bytearray(buffer.getvalue())
    us.SingleHead(np.eye(2), [1.0, 2.0]).save(tmp_path / "m.safetensors")
    tensors = bytearray((tmp_path / "m.safetensors").read_bytes())
    rng = np.random.default_rng(0)
    for trial in range(trials(60, 20_000)):
        for content, name in ((whole, "x.npz"), (tensors, "x.safetensors")):
            bad = bytearray(content)
            for at in rng.integers(len(bad), size=1 + trial % 3):
                bad[at] = rng.integers(256)
            (tmp_path / name).write_bytes(bad)
            try:
                weights = us.load_weights(tmp_path / name)
                for key in weights:
                    weights[key]
                us.load(tmp_path / name)
            except ValueError:
                pass


# -- what lies beside a model


def saved(folder):
    us.learn(HEAD, LEARNER).save(folder)
    return json.loads((folder / "recovery.json").read_text())


@pytest.mark.parametrize("text", [
    "[" * 100_000, '{"a":' * 100_000, "", "5", "null", "[]", '"' + "x" * 100, "{}",
    '{"format_version": "9"}', '{"format_version": 1e400}',
])  # fmt: skip
def test_a_recovery_of_any_form(text, tmp_path):
    saved(tmp_path)
    (tmp_path / "recovery.json").write_text(text)
    with pytest.raises(ValueError, match="cannot be read"):
        us.Recovery.load(tmp_path)


@pytest.mark.parametrize("error", [float("nan"), -1.0, "1", [1]])
def test_a_bound_that_is_none(error, tmp_path):
    content = saved(tmp_path)
    content["certificate"]["errors"]["W"] = error
    (tmp_path / "recovery.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="cannot be read"):
        us.Recovery.load(tmp_path)


def test_a_bound_that_is_infinite_is_read_back(tmp_path):
    content = saved(tmp_path)
    content["certificate"]["errors"]["W"] = None
    (tmp_path / "recovery.json").write_text(json.dumps(content))
    assert us.Recovery.load(tmp_path).certificate.W_error == np.inf


def test_a_recovery_writes_no_html_of_its_own(tmp_path):
    content = saved(tmp_path)
    content["certificate"]["errors"]["<script>alert(1)</script>"] = 1.0
    (tmp_path / "recovery.json").write_text(json.dumps(content))
    assert "<script>" not in us.Recovery.load(tmp_path)._repr_html_()


# -- ledgers


def ledger(tmp_path):
    path = tmp_path / "ledger.sqlite"
    with pytest.raises(us.BudgetExceeded):
        us.learn(HEAD, LEARNER, budget=20, ledger=path)
    return path


@pytest.mark.parametrize("statement", [
    "CREATE TRIGGER t AFTER INSERT ON asked BEGIN DELETE FROM answers; END",
    "CREATE VIEW v AS WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k FROM n) SELECT k FROM n",
    "CREATE INDEX i ON asked (abs(queries))",
    "CREATE TABLE more (a)",
])  # fmt: skip
@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_ledger_with_code_in_it_is_refused(statement, version, tmp_path):
    path = ledger(tmp_path)
    with sqlite3.connect(path) as db:
        if version < 3:
            db.execute("DROP TABLE file")
        db.execute(statement)
        db.execute(f"PRAGMA user_version = {version}")
    db.close()
    counted = Counted(HEAD)
    with pytest.raises(us.LedgerError):
        us.learn(counted, LEARNER, ledger=path)
    assert not counted.queries


def rewritten(path, table, column, value):
    """Write a value into every row of a table, with the checksum that belongs to it."""
    names = COLUMNS[table].split(", ")
    with sqlite3.connect(path) as db:
        rows = db.execute(f"SELECT {COLUMNS[table]} FROM {table}").fetchall()
        db.execute(f"DELETE FROM {table}")
        for row in rows:
            changed = [value if name == column else x for name, x in zip(names, row, strict=True)]
            db.execute(*insertion(table, *changed, verb="INSERT OR REPLACE"))
    db.close()


DEEP = "[" * 50_000


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("runs", "run", DEEP), ("runs", "run", "5"), ("runs", "environment", DEEP),
        ("parts", "arrays", DEEP), ("parts", "arrays", "[]"), ("parts", "arrays", '{"X": "zz"}'),
        ("parts", "head", DEEP), ("parts", "head", "{}"),
        ("designs", "dtype", "O"), ("designs", "dtype", "nonsense"), ("designs", "dtype", "<U1"),
        ("designs", "shape", DEEP), ("designs", "shape", "[1e9]"), ("designs", "shape", "[-1]"),
        ("designs", "data", None), ("answers", "data", b"123"), ("answers", "width", 10**12),
        ("asked", "outcome", "\x1b[2J"),
    ],
)  # fmt: skip
def test_a_ledger_whose_rows_say_anything(table, column, value, tmp_path):
    """The attacker knows how checksums are made."""
    path = ledger(tmp_path)
    rewritten(path, table, column, value)
    with pytest.raises(us.LedgerError, match="make no sense") as refused:
        us.learn(HEAD, LEARNER, ledger=path)
    assert str(refused.value).isprintable()
    assert salvage(path, tmp_path / "new.sqlite").paid == 20


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="no links to refuse")
@pytest.mark.parametrize("name", ["ledger.sqlite-paid", "ledger.sqlite-wal"])
@pytest.mark.parametrize("dangling", [True, False])
def test_links_that_lie_in_wait_are_not_written_through(name, dangling, tmp_path):
    out, victim = tmp_path / "out", tmp_path / "victim"
    out.mkdir()
    if not dangling:
        victim.write_text("mine")
    (out / name).symlink_to(victim)
    with pytest.raises(us.LedgerError):
        us.learn(HEAD, LEARNER, ledger=out / "ledger.sqlite")
    assert victim.read_text() == "mine" if not dangling else not victim.exists()


@pytest.mark.parametrize("name", ["model.safetensors", "recovery.json"])
def test_links_in_the_folder_of_results_are_replaced(name, tmp_path):
    out, victim = tmp_path / "out", tmp_path / "victim"
    out.mkdir()
    victim.write_text("mine")
    (out / name).symlink_to(victim)
    us.learn(HEAD, LEARNER).save(out)
    assert victim.read_text() == "mine"
    assert not (out / name).is_symlink()
