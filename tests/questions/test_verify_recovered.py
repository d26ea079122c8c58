"""`us.verify` of weights that `us.learn` recovered: their own error is no difference."""

import json
from collections import Counter

import numpy as np
import pytest

import unsoftmax as us
from tests.commands import run
from tests.heads import several
from tests.questions.services import network, transformer
from unsoftmax.questions.claim import Claim
from unsoftmax.questions.verification import WITHIN_CERTIFICATE


def biased(dim, seed):
    rng = np.random.default_rng([dim, seed, 31])
    W, v = rng.standard_normal((dim, dim)) / np.sqrt(dim), rng.standard_normal(dim)
    return us.SingleHead(W, v, rng.standard_normal(dim) / 4, rng.standard_normal())


def drawn(kind, seed):
    """Draw a target, and a learner of it."""
    rng, L = np.random.default_rng([seed, 32]), us.learners
    if kind.startswith("a head"):
        dim = int(kind.split()[-1])
        return biased(dim, seed), L.ExactHead(dim, biases=True)
    if kind == "three heads":
        return several(3, 8, seed, biases=True), L.MultiHeadLearner(8, 4, biases=True)
    if kind == "a network":
        return network(rng, 4, 12), L.ReluNetworkLearner(4)
    return transformer(rng, 4, 8), L.TransformerLearner(4, head=L.ExactHead(4, biases=True))


def beyond(model, errors):
    """The model, one tensor changed by ten times what its certificate allows."""
    arrays = {name: np.array(x) for name, x in model.arrays().items()}
    if "W" in errors:
        step = np.random.default_rng(0).standard_normal(arrays["W"].shape)
        arrays["W"] = arrays["W"] + 10 * errors["W"] * step / np.linalg.norm(step[-2:])
    else:
        arrays["c"] = arrays["c"] + 100 * (errors["constant"] + errors["slope"])
    return type(model).from_arrays(arrays)


CASES = {"a head of 4": (10, 200), "a head of 16": (4, 200), "three heads": (1, 30)}
CASES |= {"a network": (2, 30), "a transformer": (1, 30)}


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", CASES)
def test_a_recovery_is_served_by_its_target(kind, trials, evidence):
    runs, verdicts, told, worst = trials(*CASES[kind]), Counter[str](), Counter[str](), 0.0
    for seed in range(runs):
        target, learner = drawn(kind, seed)
        recovery = us.learn(target, learner)
        errors = recovery.certificate.errors
        result = us.verify(target, recovery.model, errors=errors, seed=seed)
        assert result.verdict != "different", seed
        assert WITHIN_CERTIFICATE in result.notes
        verdicts[result.verdict] += 1
        worst = max(worst, result.largest_miss)
        other = beyond(recovery.model, errors)
        told[us.verify(other, recovery.model, errors=errors, locate=False).verdict] += 1
    assert verdicts["same"] >= 0.95 * runs - trials(1, 0)
    assert told["different"] >= (0.9 * runs if kind != "three heads" else 1) - trials(1, 0)
    evidence(
        f"verify, a recovery's weights against its target: {kind}",
        verdicts["undecided"],
        runs=runs,
        called_different=0,
        called_the_same=verdicts["same"],
        largest_miss=worst,
        changed_by_10_times_its_certificate=f"{told['different']} different",
    )


def test_errors_as_large_as_the_certificate_are_allowed(trials):
    """Random directions, as far as the bounds go in all tensors at once."""
    for seed in range(trials(4, 1000)):
        model, rng = several(2, 8, seed, biases=True), np.random.default_rng([seed, 33])
        arrays, errors = {name: np.array(x) for name, x in model.arrays().items()}, {}
        for name, size in (("W", 1e-7), ("v", 1e-8), ("w", 1e-7), ("c", 1e-9)):
            step = rng.standard_normal(arrays[name].shape)
            each = np.linalg.norm(step.reshape(2, -1), axis=1) if step.ndim else np.abs(step)
            arrays[name] = arrays[name] + size * step / np.max(each)
            errors[name] = size
        target = us.MultiHead.from_arrays(arrays)
        assert us.verify(target, model, locate=False).verdict == "different"
        assert us.verify(target, model, errors=errors, seed=seed).verdict != "different", seed


def test_the_function_s_bound_counts_with_the_longest_token():
    model, X = several(2, 6, 0), np.random.default_rng(0).standard_normal((3, 5, 6))
    left_open = Claim(model, {"constant": 1e-3, "slope": 1e-2}).at(X).open
    longest = np.linalg.norm(X, axis=2).max(axis=1)
    np.testing.assert_allclose(left_open, 1e-3 + 1e-2 * longest)


def test_a_certificate_without_bounds_decides_nothing():
    model = several(2, 6, 0)
    result = us.verify(model, model, errors={"W": np.inf, "v": 1e-12})
    assert result.verdict == "undecided"
    said = "The certificate leaves too much undetermined to show a change of "
    assert any(note.startswith(said) and "W of head 0" in note for note in result.notes)
    assert not any("Answers are too coarse" in note for note in result.notes)
    json.dumps(result.to_json(), allow_nan=False)
    for bound in (-1.0, np.nan):
        with pytest.raises(ValueError, match="the bound on W must be 0 or more"):
            us.verify(model, model, errors={"W": bound})
    nothing = Claim(model, {"slope": np.inf}).at(np.zeros((2, 1, 6)))
    assert not nothing.open.any()


def test_a_ledger_belongs_to_its_certificate(tmp_path):
    model, ledger = several(2, 6, 0), tmp_path / "ledger.sqlite"
    for _ in range(2):
        assert us.verify(model, model, errors={"W": 1e-9}, ledger=ledger)
    with pytest.raises(us.LedgerMismatch):
        us.verify(model, model, ledger=ledger)


def test_undecided_is_never_without_a_reason(trials):
    verdicts = Counter[str]()
    for seed in range(trials(6, 300)):
        rng = np.random.default_rng([seed, 34])
        model = several(2, 6, seed, biases=True)
        arrays = {name: np.array(x) for name, x in model.arrays().items()}
        arrays["v"] = arrays["v"] * (1 + 10.0 ** rng.uniform(-15.5, -14))
        result = us.verify(us.MultiHead.from_arrays(arrays), model, seed=seed)
        verdicts[result.verdict] += 1
        if result.verdict == "undecided":
            assert any("times the allowed error: up to 1" in note for note in result.notes)
    assert verdicts["undecided"]


@pytest.mark.parametrize(
    ("claim", "budget", "why"),
    [
        (several(5, 3, 0), None, "with more heads than dimensions no question shows one head"),
        (several(2, 16, 0, biases=True), 22, "the budget is spent"),
        (several(30, 40, 0), None, "too few questions are left to look at 30 heads"),
        (us.SingleHead(np.zeros((6, 6)), np.ones(6)), None, "the scores of some heads are 0"),
    ],
)
def test_why_a_tensor_is_not_named_is_said(claim, budget, why):
    arrays = {name: np.array(x) for name, x in claim.arrays().items()}
    arrays["W"] = arrays["W"] + 1e-5 * np.random.default_rng(1).standard_normal(arrays["W"].shape)
    result = us.verify(type(claim).from_arrays(arrays), claim, budget=budget)
    assert (result.verdict, result.tensor) == ("different", None)
    [said] = [note for note in result.notes if "could not be told" in note]
    assert why in said


def test_another_dimension_is_said_of_the_weights():
    with pytest.raises(us.DimensionRefused, match=r"of dimension 8, the target takes 16"):
        us.verify(several(2, 16, 0), several(2, 8, 0))
    with pytest.raises(us.DimensionRefused) as refused:
        us.verify(lambda X: several(2, 16, 0)(X), several(2, 8, 0))
    assert "These weights take tokens of dimension 8." in refused.value.__notes__


def test_the_command_reads_the_certificate(tmp_path):
    biased(4, 1).save(tmp_path / "secret.safetensors")
    learned = run(
        tmp_path, "learn", "secret.safetensors", "--model", "exact", "--biases", "--out", "found"
    )
    assert learned.returncode == 0, learned.stderr
    found = tmp_path / "found"
    done = run(tmp_path, "verify", "secret.safetensors", "--weights", found, "--out", "checked")
    assert done.returncode == 0, done.stdout
    assert WITHIN_CERTIFICATE[:20] in done.stdout
    assert "Written: checked/verification.json" in done.stdout
    assert "smallest change of W that would show" in done.stdout
    (tmp_path / "empty").mkdir()
    for weights in ("empty", "absent"):
        refused = run(tmp_path, "verify", "secret.safetensors", "--weights", weights)
        assert (refused.returncode, "Traceback" in refused.stderr) == (2, False)
    (found / "recovery.json").write_text("{")
    refused = run(tmp_path, "verify", "secret.safetensors", "--weights", found)
    assert (refused.returncode, "cannot be read" in refused.stderr) == (2, True)


def test_a_bias_that_may_be_0_is_told_absolutely():
    rng = np.random.default_rng(5)
    target = us.SingleHead(rng.standard_normal((4, 4)), rng.standard_normal(4))
    recovery = us.learn(target, us.learners.ExactHead(4, biases=True))
    bound, model = recovery.certificate.errors["w"], recovery.model
    assert model.parameter_norm("w") <= bound
    if not model.parameter_norm("w"):  # rounding left nothing of it
        model = us.SingleHead(model.W, model.v, np.full(4, bound / 4), model.c)
    result = us.verify(target, model, errors=recovery.certificate.errors)
    assert result.verdict == "same"
    assert result.power["w"] < 1e-9
    assert any(note.startswith("May be 0 within their bounds: w") for note in result.notes)
