"""`us.verify`: right weights are never called different, wrong ones are, and by their name."""

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import unsoftmax as us
from tests.commands import run
from tests.heads import several
from tests.questions import layer_services
from tests.questions.services import (
    LADDER,
    changed,
    heads,
    joint,
    moved,
    network,
    served,
    swapped,
    through_values,
    transformer,
)
from tests.truth import Counted
from unsoftmax.cli.commands import app
from unsoftmax.cli.minilm import minilm_head, minilm_heads


def noisy(model, rng):
    size = 10.0 ** rng.uniform(-12, -4) * float(np.linalg.norm(model.arrays()["v"]))
    return us.oracles.noisy(model, size, int(rng.integers(1000)))


def jitter(model, rng):
    size = 10.0 ** rng.uniform(-15, -4)
    return lambda X: model(X) * (1 + size * rng.standard_normal(len(X)))


def in_tensor_cores(model, bits):
    """Products of operands that are rounded to so many bits, added up in float32."""
    heads = [us.LayerHead(v[None], W, w) for W, v, w in zip(model.W, model.v, model.w, strict=True)]
    layer = layer_services.in_tensor_cores(us.AttentionLayer(heads, [model.c]), bits)
    return lambda X: layer(X)[:, 0]


SERVICES: dict[str, Any] = {
    "float64": lambda m, rng: (served(m, np.float64), m),
    "float32": lambda m, rng: (served(m, np.float32), m),
    "float32 inside": lambda m, rng: (lambda X: served(m, np.float32)(X).astype(np.float64), m),
    "float64, X → V → output": lambda m, rng: through_values(m, np.float64, rng),
    "float32, X → V → output": lambda m, rng: through_values(m, np.float32, rng),
    "float16": lambda m, rng: (served(m, np.float16), m),
    "decimals": lambda m, rng: (us.oracles.rounded(m, int(rng.integers(1, 9))), m),
    "noise": lambda m, rng: (noisy(m, rng), m),
    "jitter": lambda m, rng: (jitter(m, rng), m),
}


@pytest.mark.parametrize("service", SERVICES)
def test_right_weights_are_never_called_different(service, trials, evidence):
    runs, verdicts, most = trials(2, 1112), Counter[str](), 0
    for seed in range(runs):
        rng = np.random.default_rng([seed, 15])
        target, claim = SERVICES[service](heads(rng, 0.7 if service == "float16" else 3.0), rng)
        oracle = Counted(target)
        with np.errstate(all="ignore"):
            try:
                result = us.verify(oracle, claim, seed=seed)
            except us.OracleError:
                assert service == "float16", "float16 overflows"
                verdicts["no answer"] += 1
                continue
        assert result.verdict != "different", (seed, result)
        assert result.queries == oracle.queries <= 64
        verdicts[result.verdict] += 1
        most = max(most, oracle.queries)
    evidence(
        f"verify, right weights of heads, service: {service}",
        verdicts["undecided"] + verdicts["no answer"],
        runs=runs,
        called_different=0,
        called_the_same=verdicts["same"],
        queries=most,
    )


@pytest.mark.parametrize("bits", [8, 11])
def test_operands_of_few_bits_behind_float32_answers(bits, trials, evidence):
    """TF32 and autocast: identities show only some of what rounds, two tokens beside one do."""
    runs, verdicts = trials(4, 500), Counter[str]()
    for seed in range(runs):
        rng = np.random.default_rng([seed, 24])
        H, d = int(rng.choice([1, 4])), int(rng.choice([4, 16, 32, 128]))
        model = several(H, d, seed, biases=bool(seed % 2))
        result = us.verify(in_tensor_cores(model, bits), model, seed=seed)
        verdicts[result.verdict] += 1
        assert result.verdict != "different", seed
    evidence(
        f"verify, right weights, operands of {bits} bits behind float32 answers",
        verdicts["undecided"],
        runs=runs,
        called_different=0,
        called_the_same=verdicts["same"],
    )


@pytest.mark.parametrize("service", ["float64", "float32", "float32 inside"])
def test_operands_are_not_taken_for_rounded_where_they_are_not(service, trials):
    for seed in range(trials(4, 500)):
        rng = np.random.default_rng([seed, 27])
        target, claim = SERVICES[service](heads(rng), rng)
        notes = us.verify(target, claim, seed=seed, locate=False).notes
        assert not any("rounds what it multiplies" in note for note in notes), seed


@pytest.mark.parametrize("kind", [network, transformer, joint])
def test_right_networks_are_never_called_different(kind, trials):
    for seed in range(trials(1, 500)):
        rng = np.random.default_rng([seed, 16])
        model = kind(rng, biases=bool(seed % 2))
        for oracle in (
            model,
            lambda X, model=model: model(X).astype(np.float32),
            us.oracles.noisy(model, 10.0 ** rng.uniform(-10, -4), seed),
            us.oracles.rounded(model, 6),
        ):
            assert us.verify(oracle, model, seed=seed).verdict == "same"


# -- wrong weights


def claimed(kind, seed):
    rng = np.random.default_rng([seed, 17])
    if kind == "three heads":
        return several(3, 16, seed, biases=True)
    if kind == "a head without biases":
        return several(1, 16, seed).heads[0]
    kinds = {"network": network, "transformer": transformer, "three heads before it": joint}
    return kinds[kind](rng)


KINDS = ("three heads", "a head without biases", "network", "transformer", "three heads before it")


@pytest.mark.few
@pytest.mark.parametrize("rung", LADDER)
@pytest.mark.parametrize("kind", KINDS)
def test_a_ladder_of_changes_is_noticed_where_answers_are_exact(kind, rung, trials, evidence):
    only, change = LADDER[rung]
    if kind == "network" and only is not None:
        pytest.skip("a network has no such tensor")
    runs, most, asked, noticed = trials(1, 200), 0, 0, 0
    for seed in range(runs):
        model, rng = claimed(kind, seed), np.random.default_rng([seed, 18])
        if kind in ("transformer", "three heads before it") and only == ("v",):
            pytest.skip("its network is on the ladder by itself")
        target = changed(model, only, change, rng)
        if bool(us.equivalent(target, model, 0)):
            continue  # nothing was small enough to be pruned
        oracle = Counted(target)
        result = us.verify(oracle, model, locate=False, seed=seed)
        asked, noticed = asked + 1, noticed + (result.verdict == "different")
        most = max(most, oracle.queries)
    assert most <= 20
    assert noticed == asked
    evidence(f"verify, {kind}: {rung}", changed=asked, noticed=noticed, queries=most)


TRAINED = {
    "one head of MiniLM": lambda: (minilm_head(0, 0), minilm_head(1, 3), 200),
    "12 heads of MiniLM": lambda: (minilm_heads(0), minilm_heads(1), 20),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("service", ["float64", "float32"])
@pytest.mark.parametrize(
    "which", ["one head of MiniLM", pytest.param("12 heads of MiniLM", marks=pytest.mark.claimed)]
)
def test_a_ladder_of_changes_of_trained_weights(which, service, trials, evidence):
    model, other, claimed_runs = TRAINED[which]()
    runs, noticed, most = trials(1, claimed_runs), Counter[str](), 0
    for seed in range(runs):
        rng = np.random.default_rng([seed, 19])
        rungs = {rung: changed(model, *how, rng) for rung, how in LADDER.items()}
        rungs["another layer"] = other
        if isinstance(model, us.MultiHead):
            assert isinstance(other, us.MultiHead)
            rungs["a swapped head"] = swapped(model, other, int(rng.integers(model.H)))
        for rung, target in {**rungs, "unchanged": model}.items():
            oracle = Counted(served(target, np.dtype(service)))
            result = us.verify(oracle, model, locate=rung != "one entry of W by 1 %", seed=seed)
            noticed[rung] += result.verdict == "different"
            most = max(most, oracle.queries)
            assert result.verdict == "same" or rung != "unchanged"
    assert most <= 100
    for rung in rungs:
        share = f"{noticed[rung] / runs:.0%}".replace("%", " %")
        evidence(f"verify, {which} in {service}: {rung}", runs=runs, noticed=share)
        # float32 hides what is as small as its own rounding
        small = ("1e-5", "1e-6", "2⁻¹⁵", *(("1e-4",) if isinstance(model, us.MultiHead) else ()))
        hidden = service == "float32" and any(word in rung for word in small)
        if not hidden and not (service == "float32" and rung.startswith("one entry")):
            assert noticed[rung] == runs, rung


@pytest.mark.few
@pytest.mark.parametrize("H", [1, 2, 5])
@pytest.mark.parametrize("biases", [False, True])
def test_the_tensor_is_named(H, biases, trials, evidence):
    runs, most, right = trials(1, 100), 0, 0
    asked = 0
    for seed in range(runs):
        rng = np.random.default_rng([seed, 20])
        model, h = several(H, 16, seed, biases=biases), int(rng.integers(H))
        for tensor in ("v", "W", *(("w", "c") if biases else ())):
            arrays = {name: np.array(x) for name, x in model.arrays().items()}
            if tensor == "c":
                arrays["c"] = arrays["c"] * (1 + 1e-4)
            else:
                arrays[tensor][h] = moved(1e-4)(arrays[tensor][h], rng)
            oracle = Counted(us.MultiHead.from_arrays(arrays))
            result = us.verify(oracle, model, seed=seed)
            assert result.verdict == "different"
            name = tensor if tensor == "c" else f"{tensor} of head {h}"
            right, asked = right + (result.tensor == name), asked + 1
            assert result.tensor == name, (seed, name, result.tensor)
            most = max(most, oracle.queries)
    assert most <= 100
    which = "with" if biases else "without"
    evidence(f"verify names the tensor, {H} heads {which} biases", runs=asked, queries=most)


def test_a_bias_that_the_claim_does_not_have_is_named(trials):
    for seed in range(trials(1, 50)):
        model, rng = several(3, 16, seed), np.random.default_rng([seed, 21])
        w = np.zeros((3, 16))
        w[1] = 1e-3 * rng.standard_normal(16)
        target = us.MultiHead(model.W, model.v, w)
        assert us.verify(target, model, seed=seed).tensor == "w of head 1"


@pytest.mark.few(3)
@pytest.mark.parametrize("tensor", ["W", "w", "network.A", "network.w_o", "network.b", "network.c"])
def test_attention_and_network_are_told_apart(tensor, trials):
    for seed in range(trials(1, 100)):
        rng = np.random.default_rng([seed, 22])
        model = transformer(rng)
        arrays = {name: np.array(x) for name, x in model.arrays().items()}
        arrays[tensor] = moved(1e-4)(arrays[tensor], rng)
        name = tensor if tensor in "Ww" else "the network"
        result = us.verify(us.Transformer.from_arrays(arrays), model, seed=seed)
        assert (result.verdict, result.tensor) == ("different", name), seed


@pytest.mark.few(3)
@pytest.mark.parametrize("tensor", ["W", "w", "B", "w_o", "b", "c", "division"])
def test_heads_and_network_are_told_apart(tensor, trials):
    """How B is divided among the heads shows only where these pool different tokens."""
    for seed in range(trials(1, 100)):
        rng = np.random.default_rng([seed, 27])
        biases = bool(seed % 2)
        model = joint(rng, biases=biases)
        arrays = {name: np.array(x) for name, x in model.arrays().items()}
        if tensor == "division":
            some = 1e-3 * rng.standard_normal(arrays["B"][0].shape)
            arrays["B"][:2] += [some, -some]
        elif not np.any(arrays[tensor]):
            arrays[tensor] = arrays[tensor] + 1e-3 * rng.standard_normal(arrays[tensor].shape)
        else:
            arrays[tensor] = moved(1e-4)(arrays[tensor], rng)
        result = us.verify(us.MultiHeadTransformer.from_arrays(arrays), model, seed=seed)
        first = "the network"
        if tensor in ("W", "w", "division"):
            scored = "w" if tensor == "w" or (biases and tensor == "division") else "W"
            alone = "W" if biases else "w"
            first = scored if scored == alone else f"{scored}, or how B is divided among heads"
        assert (result.verdict, result.tensor) == ("different", first), seed


@pytest.mark.few(2)
@pytest.mark.parametrize("tensor", ["residual", "its division", "division", "none"])
def test_a_residual_before_a_network_is_told(tensor, trials):
    """Single tokens show it beside the sum of B; how these are divided two tokens show."""
    for seed in range(trials(1, 100)):
        rng = np.random.default_rng([seed, 28])
        biases = bool(seed % 2)
        model = joint(rng, biases=biases, residual=True)
        assert us.verify(model, model, seed=seed)
        arrays = {name: np.array(x) for name, x in model.arrays().items()}
        some = 1e-3 * rng.standard_normal(arrays["residual"].shape)
        if tensor == "none":
            del arrays["residual"]
        elif tensor == "division":
            arrays["B"][:2] += [some, -some]
        else:
            arrays["residual"] += some
            arrays["B"][0] -= some if tensor == "its division" else 0
        result = us.verify(us.MultiHeadTransformer.from_arrays(arrays), model, seed=seed)
        moved = "w, or how B and the residual connection are divided"
        among = moved if biases else "W, or how B is divided among heads"
        named = {"its division": moved, "division": among}
        assert (result.verdict, result.tensor) == ("different", named.get(tensor, "the network"))


IMPOSTORS: dict[str, Any] = {
    "a sliding window": lambda m: lambda X: m(X[:, -3:]),
    "negative answers cut off": lambda m: us.oracles.clipped(m, 0.0, 1e9),
    "the mean": lambda m: lambda X: X.mean(axis=1) @ m.v[0],
    "another seed": lambda m: several(3, 16, 1000),
}


@pytest.mark.parametrize("impostor", IMPOSTORS)
def test_what_is_no_such_model_is_different(impostor, trials, evidence):
    """Undecided, now and then, where what it misses could be a coarse arithmetic's."""
    verdicts = Counter[str]()
    for seed in range(runs := trials(1, 100)):
        model = several(3, 16, seed)
        verdicts[us.verify(IMPOSTORS[impostor](model), model, seed=seed).verdict] += 1
    told = {name: verdicts[name] for name in ("different", "undecided", "same")}
    evidence(f"verify, no such model: {impostor}", runs=runs, **told)
    assert not verdicts["same"]
    assert verdicts["undecided"] <= runs / 50


STRANGE: dict[str, Any] = {
    "tanh behind": lambda m, seed: lambda X: np.tanh(m(X) / 50) * 50,
    "tanh, nearly straight": lambda m, seed: lambda X: np.tanh(m(X) / 100) * 100,
    "within ±1e-4": lambda m, seed: us.oracles.within(m, 1e-4, seed=seed),
}


@pytest.mark.parametrize("strange", STRANGE)
def test_what_no_arithmetic_explains_is_never_the_same(strange, trials):
    for seed in range(trials(2, 100)):
        model = several(3, 16, seed)
        result = us.verify(STRANGE[strange](model, seed), model, seed=seed)
        # tanh may be told from the claim; a disturbed answer of the right weights must not
        assert result.verdict == "undecided" or strange.startswith("tanh"), seed
        assert result.verdict != "same", seed
        if result.verdict == "different":
            continue
        assert any("computes something else as well" in note for note in result.notes)


@pytest.mark.parametrize(
    "coarse", [us.oracles.labels, lambda m: us.oracles.rounded(m, -3), lambda m: lambda X: 0 * m(X)]
)
def test_a_few_numbers_decide_nothing(coarse):
    model = several(2, 8, 0)
    result = us.verify(coarse(model), model)
    assert (result.verdict, bool(result)) == ("undecided", False)
    assert "take only a few values" in result.notes[-1]


def test_power_is_what_is_caught(trials, evidence):
    """Changes of twice the power are caught; a twentieth of it is not."""
    runs, caught = trials(4, 500), Counter[str]()
    for seed in range(runs):
        model, rng = several(2, 12, seed, biases=True), np.random.default_rng([seed, 23])
        oracle = us.oracles.rounded(model, 6)
        power = us.verify(oracle, model, seed=seed, locate=False).power
        for share in (1.0, 0.02):
            arrays = {name: np.array(x) for name, x in model.arrays().items()}
            step = rng.standard_normal(arrays["W"][1].shape)
            size = share * power["W of head 1"] * np.linalg.norm(arrays["W"][1])
            arrays["W"][1] += size * step / np.linalg.norm(step)
            target = us.oracles.rounded(us.MultiHead.from_arrays(arrays), 6)
            result = us.verify(target, model, seed=seed, locate=False)
            caught[str(share)] += result.verdict == "different"
    assert caught["1.0"] >= 0.8 * runs
    assert caught["0.02"] <= 0.02 * runs
    evidence(
        "verify, changes as large as its power", runs=runs, caught=f"{caught['1.0'] / runs:.0%}"
    )


def one_neuron(model, change, rng):
    """The same model but for one of its neurons."""
    arrays = {name: np.array(x) for name, x in model.arrays().items()}
    before = "network." if "network.A" in arrays else ""
    b, w_o, A = f"{before}b", f"{before}w_o", "B" if "B" in arrays else f"{before}A"
    k = int(rng.integers(arrays[w_o].size))
    if change == "w_o doubled":
        arrays[w_o][k] *= 2
    elif change == "w_o negated":
        arrays[w_o][k] *= -1
    elif change == "b":
        arrays[b][k] += 0.1
    else:  # z = relu(z) − relu(−z): the neuron without its bend
        negated = -arrays[A][:, [k]]  # a neuron is a column of A, and a row of every B_h
        arrays[A] = np.concatenate([arrays[A], negated], axis=1)
        arrays[b], arrays[w_o] = (np.append(arrays[x], -arrays[x][k]) for x in (b, w_o))
    return type(model).from_arrays(arrays)


@pytest.mark.few
@pytest.mark.parametrize("m", [8, 64, 256])
@pytest.mark.parametrize("d", [4, 16, 64])
@pytest.mark.parametrize("kind", [network, transformer, joint])
def test_a_change_of_one_neuron_is_noticed(kind, d, m, trials, evidence):
    runs, noticed, most, said = trials(1, 200), Counter[str](), 0, 0
    changes = ("w_o doubled", "w_o negated", "b", "made linear")
    for seed in range(runs):
        for change in changes:
            rng = np.random.default_rng([seed, d, m, 25])
            model = kind(rng, d, m)
            oracle = Counted(one_neuron(model, change, rng))
            result = us.verify(oracle, model, locate=False, seed=seed)
            different = result.verdict == "different"
            noticed[change] += different
            most = max(most, oracle.queries)
            # what is not noticed is said
            told = any(f"of {m} neurons are o" in note for note in result.notes)
            said += told
            assert different or told, (seed, change)
    assert most <= 20
    for change in changes:
        assert noticed[change] >= 0.85 * (runs - 1), change
    evidence(
        f"verify, {kind.__name__}, d = {d}, m = {m}: one neuron changed",
        runs=runs,
        **{change: f"{noticed[change] / runs:.1%}".replace("%", " %") for change in changes},
        with_a_note=f"{said / (4 * runs):.0%}".replace("%", " %"),
        queries=most,
    )


@pytest.mark.parametrize("kind", [network, transformer, joint])
def test_neurons_that_no_question_meets_are_said(kind):
    model = kind(np.random.default_rng(0))
    arrays = {name: np.array(x) for name, x in model.arrays().items()}
    b, w_o = ("network.b", "network.w_o") if kind is transformer else ("b", "w_o")
    # near, far, and so light that answers do not show it
    for bias, weight, verdict in (
        (-0.5, 1, "different"),
        (-1e6, 1, "different"),
        (0, 1e-25, "same"),
    ):
        arrays[b][3], arrays[w_o][3] = bias, weight
        claim = type(model).from_arrays(arrays)
        other = {**arrays, w_o: arrays[w_o] * (1 + (np.arange(20) == 3))}
        result = us.verify(type(model).from_arrays(other), claim)
        assert result.verdict == verdict, bias
        said = any("1 of 20 neurons are off at every sequence" in note for note in result.notes)
        assert said == (verdict == "same")


# -- how it is run


def test_it_is_a_run_like_others(tmp_path):
    model = several(2, 8, 0)
    with pytest.raises(us.BudgetExceeded):
        us.verify(model, model, budget=10, ledger=tmp_path / "ledger.sqlite")
    oracle = Counted(model)
    assert us.verify(oracle, model, ledger=tmp_path / "ledger.sqlite", batch=1)
    once = oracle.queries
    assert us.verify(oracle, model, ledger=tmp_path / "ledger.sqlite", batch=1)
    assert oracle.queries - once <= 8  # recognised, and nothing asked again
    with pytest.raises(us.LedgerMismatch):
        us.verify(oracle, several(2, 8, 1), ledger=tmp_path / "ledger.sqlite")


@pytest.mark.parametrize("H", [2, 5])
def test_with_a_larger_budget_a_ledger_goes_on(H, tmp_path):
    """What is asked does not depend on the budget: only how far."""
    model = several(H, 16, 0, biases=True)
    arrays = {name: np.array(x) for name, x in model.arrays().items()}
    arrays["W"][1] *= 1.0001
    target, found = us.MultiHead.from_arrays(arrays), []
    for budget in (25, 100):
        result = us.verify(target, model, budget=budget, ledger=tmp_path / "ledger.sqlite")
        assert result.verdict == "different"
        found.append(result.tensor)
    assert found == [None, "W of head 1"]
    few = us.verify(target, model, budget=us.Budget(tokens=240))
    assert (few.verdict, few.tensor) == ("different", None)


def test_weights_of_a_class_that_is_not_known_are_refused_in_a_sentence(tmp_path, monkeypatch):
    several(2, 8, 0).save(tmp_path / "heads.safetensors")
    weights = str(tmp_path / "heads.safetensors")
    monkeypatch.setattr("unsoftmax.questions.claim.can_be_claimed", lambda model: False)
    done = CliRunner().invoke(app, ["verify", weights, "--weights", weights])
    assert done.exit_code == 2
    assert "verify does not know MultiHeads: recover the target" in done.stderr


def test_wrong_arguments_are_sentences():
    model = several(2, 8, 0)
    with pytest.raises(TypeError, match="model must be one of SingleHead"):
        us.verify(model, np.eye(3))
    with pytest.raises(us.DimensionRefused):
        us.verify(several(2, 9, 0), model)
    with pytest.raises(us.OracleError):
        us.verify(lambda X: np.zeros((len(X), 3)), model)


def test_one_output_of_a_layer_is_verified_by_itself():
    q, k, v, o = np.random.default_rng(0).standard_normal((4, 6, 6)) / 2
    layer = us.from_projections(q, k, v, o, heads=2)
    seen = us.from_projections(q, k, v, o, heads=2, coordinate=1)
    assert us.verify(us.oracles.coordinate(layer, 1), seen)


def test_the_command(tmp_path):
    model = several(2, 8, 0, biases=True)
    model.save(tmp_path / "claimed.safetensors")
    arrays = {name: np.array(x) for name, x in model.arrays().items()}
    arrays["v"][1] *= 1.001
    us.MultiHead.from_arrays(arrays).save(tmp_path / "other.safetensors")
    (tmp_path / "service.py").write_text(
        'import unsoftmax as us\nlabel = us.oracles.labels(us.load("claimed.safetensors"))\n'
    )
    weights = ("--weights", "claimed.safetensors")
    same = run(tmp_path, "verify", "claimed.safetensors", *weights)
    assert (same.returncode, "same" in same.stdout) == (0, True), same.stderr
    other = run(tmp_path, "verify", "other.safetensors", *weights, "--json")
    content = json.loads(other.stdout)
    assert (other.returncode, content["tensor"]) == (1, "v of head 1")
    assert run(tmp_path, "verify", "service:label", *weights).returncode == 3
    assert run(tmp_path, "verify", "other.safetensors", *weights, "--budget", 5).returncode == 4
    for missing in ("absent.safetensors", "layer.npz"):
        refused = run(tmp_path, "verify", "other.safetensors", "--weights", missing)
        assert (refused.returncode, "Traceback" in refused.stderr) == (2, False)


SLOW = """
from pathlib import Path
import unsoftmax as us
model, answered = us.load("claimed.safetensors"), 0
def head(X):
    global answered
    answered += len(X)
    with open("asked.txt", "a") as file:
        file.write(f"{len(X)}\\n")
    if answered > 10 and Path("how.txt").read_text():
        raise ConnectionError("gone")
    return model(X)
"""


def test_an_interrupted_command_goes_on(tmp_path):
    several(2, 8, 0).save(tmp_path / "claimed.safetensors")
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "how.txt").write_text("--fail")
    target = ("verify", "slow:head", "--weights", "claimed.safetensors")
    said = "--batch 1 --workers 2 --retries 1 --timeout 60 --token-budget 2000 --longest-wait 5"
    words = (*target, "--ledger", "ledger.sqlite", *said.split())
    stopped = run(tmp_path, *words)
    assert (stopped.returncode, "Traceback" in stopped.stderr) == (5, False), stopped.stderr
    (tmp_path / "how.txt").write_text("")
    done = run(tmp_path, *words, "--json")
    assert done.returncode == 0, done.stderr
    asked = sum(map(int, (tmp_path / "asked.txt").read_text().split()))
    assert json.loads(done.stdout)["queries"] == asked <= 20 + 2 + 8
    short = run(tmp_path, *target, "--token-budget", "30")
    assert short.returncode == 4
    refused = run(tmp_path, *target, "--timeout", "1e300", "--ledger", "l2")
    assert (refused.returncode, "Traceback" in refused.stderr) == (2, False), refused.stderr
