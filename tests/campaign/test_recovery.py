"""What a run leaves behind."""

import json
import pickle

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.protocol import Certificate, Evidence, Plan


def recovery(**changes):
    rng = np.random.default_rng(0)
    target = us.SingleHead(rng.standard_normal((3, 3)), rng.standard_normal(3))
    return us.learn(target, us.learners.ExactHead(3), **changes)


def test_saved_and_read_again(tmp_path):
    found = recovery()
    folder = tmp_path / "made" / "here"
    found.save(folder)
    found.save(folder)
    again = us.load(folder / "model.safetensors")
    assert us.equivalent(found.model, again, rtol=0)
    assert sorted(path.name for path in folder.iterdir()) == ["model.safetensors", "recovery.json"]
    told = json.loads((folder / "recovery.json").read_text(encoding="utf-8"))
    when = {"course": told.pop("course"), "versions": told.pop("versions")}
    assert told == found.to_json()
    assert when["versions"] == found.versions
    assert us.Recovery.load(folder).course == found.course
    assert told["queries"] == sum(told["counts"].values()) == found.queries
    assert told["certificate"]["errors"]["W"] == found.certificate.W_error
    assert told["learner"] == us.learners.ExactHead(3).settings()


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "taken").write_text("mine", encoding="utf-8")
    with pytest.raises(FileExistsError, match="name a folder"):
        recovery().save(tmp_path / "taken")
    assert (tmp_path / "taken").read_text(encoding="utf-8") == "mine"


def test_what_is_infinite_or_missing_is_null_in_json():
    told = recovery(holdout=0).to_json()
    assert told["evidence"]["max_residual"] is None
    certificate = Certificate({"W": np.inf, "v": 0.0}, ("No bound.",))
    found = us.Recovery(
        recovery().model, certificate, Evidence.of(0, np.zeros(0), np.zeros(0)), {}, (), {}
    )
    assert found.to_json()["certificate"]["errors"] == {"W": None, "v": 0.0}
    assert certificate.W_error == np.inf
    assert certificate.v_error == 0.0


def test_shown_in_a_notebook():
    assert "passed" in recovery()._repr_html_()
    assert "not checked" in recovery(holdout=0)._repr_html_()
    assert "12" in us.learners.ExactHead(3).plan()._repr_html_()
    assert "queries" not in Plan(None, 5, 5, 1, "bound")._repr_html_()


@pytest.mark.parametrize(
    "error",
    [
        us.BudgetExceeded("spent", spent=3, needed=4, in_doubt=1),
        us.NotIdentifiable("free", determined={"v": 0.0}),
        us.ModelMismatch("not a head"),
        us.DimensionRefused("another dim"),
        us.OracleError("silent"),
        us.LedgerMismatch("another"),
    ],
)
def test_errors_cross_process_borders(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert isinstance(again, us.UnsoftmaxError)


def test_what_was_saved_is_loaded_as_it_was(tmp_path):
    target = us.SingleHead(np.eye(3), np.ones(3))
    for checks in (32, 0):
        recovery = us.learn(target, us.learners.ExactHead(3), holdout=checks)
        recovery.save(tmp_path)
        again = us.Recovery.load(tmp_path)
        assert us.equivalent(again.model, recovery.model, rtol=0)
        assert again.to_json() == recovery.to_json()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda text: "{", "cannot be read"),
        (lambda text: "[]", "cannot be read"),
        (lambda text: text.replace("evidence", "proof"), "cannot be read"),
        (lambda text: text.replace('"format_version": 1', '"format_version": 2'), "newer than"),
        (lambda text: text.replace('"data": ', '"data": 1e999, "was": '), "1e999 is no finite"),
        (lambda text: text.replace('"data": ', f'"data": 1{"0" * 400}, "was": '), "no finite"),
        (lambda text: text.replace('"data": ', '"data": 1, "data": '), "'data' is there twice"),
    ],
)
def test_a_damaged_recovery_is_refused(tmp_path, damage, sentence):
    us.learn(us.SingleHead(np.eye(3), np.ones(3)), us.learners.ExactHead(3)).save(tmp_path)
    path = tmp_path / "recovery.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(ValueError, match=sentence):
        us.Recovery.load(tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"no recovery\.json"):
        us.Recovery.load(tmp_path)


def test_what_a_killed_save_left_is_deleted_by_the_next(tmp_path):
    names = ["model.safetensors", "recovery.json"]
    mine = tmp_path / ".recovery.json.notes.new"
    for path in (mine, *(tmp_path / f".{name}.a1b2c3d4.new" for name in names)):
        path.write_text("half of a fi")
    us.learn(us.SingleHead(np.eye(3), np.ones(3)), us.learners.ExactHead(3)).save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [mine.name, *names]
