"""`us.defend`: what attacks get of defended services, what defences cost, what is recommended."""

import json
import textwrap
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unsoftmax as us
from tests.commands import run
from tests.truth import Counted, relative
from unsoftmax.cli import console
from unsoftmax.cli.defend import _show
from unsoftmax.questions import AttackOutcome, DefenceTrial
from unsoftmax.questions.defence import attacks, defending
from unsoftmax.questions.defence.coarse_heads import EdgeHead, FittedHead, StretchedHead
from unsoftmax.questions.defence.defence_comparison import left_out, recommendation, recommended
from unsoftmax.questions.defence.defending import DefenceQuestion, DefendTuning
from unsoftmax.questions.defence.legitimate_use import LegitimateUse, Measures, standard_normal

NOTHING = DefendTuning((), (), (), (), (), (), (), ())


def tuned(sequences=128, **ladder: Any) -> DefendTuning:
    """A few defences, few sequences."""
    return replace(NOTHING, sequences=sequences, **ladder)


def head(dim, seed=0, biases=False):
    rng = np.random.default_rng([dim, seed, 47])
    W, v = rng.standard_normal((dim, dim)) / np.sqrt(dim), rng.standard_normal(dim)
    return us.SingleHead(W, v, rng.standard_normal(dim) / 2, 0.7) if biases else us.SingleHead(W, v)


def parameters_error(truth, found):
    return attacks.structure_of(truth).error(truth, found)


def of(result, kind):
    return [trial for trial in result.trials if trial.kind == kind]


# -- the attacks, each by itself


@pytest.mark.parametrize("dim", [1, 2, 5, 12])
def test_rounding_is_undone_by_where_it_steps(dim, trials, evidence):
    """Within a cap, from answers of two digits and of less than one."""
    worst, runs = 0.0, trials(2, 200)
    for seed in range(runs):
        target, radius = head(dim, seed), 1.5 * np.sqrt(dim)
        step = [1e-3, 0.1, 0.3][seed % 3] * float(np.linalg.norm(target.v)) * radius / 3
        defended = us.oracles.norm_capped(
            lambda X, step=step, f=target: np.round(f(X) / step) * step, radius * (1 + 1e-12)
        )
        counted, learner = Counted(defended), EdgeHead(dim, step, radius)
        found = us.learn(counted, learner, holdout=0).model
        assert counted.queries <= learner.plan().at_most
        worst = max(worst, relative(found.W, target.W))
    assert worst < 1e-6
    evidence(
        f"answers rounded to a thousandth to a tenth of the largest one, tokens capped: W by where "
        f"answers step, d = {dim}",
        runs=runs,
        largest_relative_error=worst,
    )


def test_a_low_rank_needs_fewer_steps():
    rng = np.random.default_rng(3)
    K, Q = rng.standard_normal((2, 2, 12)) / 3
    target = us.SingleHead.from_factors(K, Q, rng.standard_normal(12))
    learner = EdgeHead(12, 0.1, 6.0, rank=2)
    assert learner.entries == 6 * 18
    counted = Counted(us.oracles.norm_capped(us.oracles.rounded(target, 1), 6.0 * (1 + 1e-12)))
    found = us.learn(counted, learner, holdout=0).model
    assert counted.queries == learner.plan().at_most
    assert relative(found.W, target.W) < 1e-6
    tuning = tuned(capped_decimals=(1,), capped_noise=(0.1,), both_caps=(1.0,))
    result = us.defend(target, 12, attack_queries=6000, tuning=tuning)
    assert of(result, "rounding with a norm cap")[0].error < 1e-6
    full = us.learn(
        us.oracles.norm_capped(us.oracles.noisy(target, 0.1 * result.spread, 1), result.longest),
        us.learners.ApproximateHead(12, 0.6 * result.spread, radius=result.longest),
        holdout=0,
    ).model
    [noise] = of(result, "noise with a norm cap")
    once = next(a for a in noise.attacks if a.name.startswith("ApproximateHead"))
    assert once.error < 0.8 * relative(full.W, target.W)


def test_steps_that_are_not_there_are_said_or_left_out():
    target = us.SingleHead(np.eye(3), [1.0, 0.0, 0.0])
    silent = us.oracles.rounded(target, -3)
    with pytest.raises(us.NotIdentifiable, match="rounds to 0"):
        us.learn(silent, EdgeHead(3, 1000.0, 2.0), holdout=0)
    # v stands out, W hardly: what is not seen stays small
    coarse = us.oracles.rounded(target, 0)
    found = us.learn(coarse, EdgeHead(3, 1.0, 1.2), holdout=0).model
    assert relative(found.v, target.v) < 1e-6
    assert np.all(np.isfinite(found.W))
    # random tokens show v, offsets none of it
    rng = np.random.default_rng(0)
    hidden = lambda X: np.where(rng.random(len(X)) < 0.5, 1.0, 0.0) * (len(X) > 10)  # noqa: E731
    with pytest.raises(us.NotIdentifiable, match="single tokens round to 0"):
        us.learn(hidden, EdgeHead(3, 1.0, 1.2), holdout=0)


@pytest.mark.parametrize(
    ("dim", "queries", "share", "most"), [(6, 144, 0.0, 0.1), (8, 1152, 0.5, 0.06)]
)
def test_a_fit_is_better_than_plain_least_squares(dim, queries, share, most, trials, evidence):
    """Answers rounded to 1, or with noise of half the spread, tokens as long as legitimate ones.

    Random sequences of five tokens with short query tokens leave 3 % to 6 % with the first and
    5.5 % to 8.9 % with the second, of other models of the same kind.
    """
    errors, runs, radius = [], trials(1, 30), 1.96 * np.sqrt(dim)
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        target = us.SingleHead(
            rng.standard_normal((dim, dim)) / np.sqrt(dim), rng.standard_normal(dim)
        )
        noise = share * 0.8 * float(np.linalg.norm(target.v))
        coarse = us.oracles.noisy(target, noise, seed) if share else us.oracles.rounded(target, 0)
        capped = us.oracles.norm_capped(coarse, radius * (1 + 1e-12))
        found = us.learn(capped, FittedHead(dim, radius, queries, seed=seed), holdout=0).model
        errors.append(relative(found.W, target.W))
    assert np.median(errors) < most
    evidence(
        f"W by least squares, d = {dim}, {queries} answers, tokens capped, "
        + ("noise of 0.4 ‖v‖" if share else "rounded to 1"),
        runs=runs,
        median_relative_error=np.median(errors),
    )


def test_biases_do_not_keep_tokens_short(trials, evidence):
    """Noise of a hundredth, no cap: W to what is left of it after stretching."""
    worst, runs = 0.0, trials(1, 100)
    for seed in range(runs):
        rng = np.random.default_rng([seed, 3])
        K, Q = rng.standard_normal((2, 2, 4)) / 2
        w = K.T @ rng.standard_normal(2)
        target = us.SingleHead.from_factors(K, Q, rng.standard_normal(4), w, 0.5)
        learner = StretchedHead(4, 4.0, 3000, seed=seed)
        counted = Counted(us.oracles.noisy(target, 0.003, seed))
        found = us.learn(counted, learner, holdout=0).model
        assert counted.queries == learner.plan().at_most <= 3000
        fitted = us.learn(counted, FittedHead(4, 4.0, 3000, True), holdout=0).model
        error = relative(found.W, target.W)
        assert error < relative(fitted.W, target.W) / 100
        assert relative(found.w, target.w) < 100 * error
        worst = max(worst, error)
    assert worst < 1e-4
    evidence(
        "head with biases, d = 4, rank 2, noise of 0.003, 3,000 answers: W by longer tokens",
        runs=runs,
        largest_relative_error=worst,
    )


def test_a_fit_of_nothing_is_refused():
    with pytest.raises(us.NotIdentifiable, match="all alike"):
        us.learn(lambda X: np.zeros(len(X)), FittedHead(3, 1.0, 200), holdout=0)


@pytest.mark.parametrize("biases", [False, True])
def test_columns_are_read_as_far_as_a_budget_goes(biases):
    target = head(7, 1, biases)
    for queries in (20, 30, 45, 60, 500):
        learner = attacks.FirstColumns.within(7, queries, biases, 0)
        if learner is None:
            assert queries < 45
            continue
        counted = Counted(target)
        found = us.learn(counted, learner, queries, holdout=0).model
        assert counted.queries <= min(queries, learner.plan().at_most)
        k = learner.columns
        assert relative(found.W[:, :k], target.W[:, :k]) < 1e-12
        assert not np.any(found.W[:, k:])
        assert k == 6 or learner.plan().at_most + 9 > queries


def test_means_take_noise_down_and_count_every_answer():
    target, dim = head(4), 4
    one = us.learners.ApproximateHead(dim, 1e-2, radius=3.0)
    learner = attacks.AveragedAnswers(one, 25)
    assert learner.dim == dim
    assert learner.outputs == "scalar"
    assert learner.settings()["of"]["learner"] == "ApproximateHead"
    errors = []
    for asking in (one, learner):
        counted = Counted(us.oracles.noisy(target, 1e-3, 0))
        recovery = us.learn(counted, asking, holdout=0)
        assert counted.queries == recovery.queries == asking.plan().queries
        errors.append(relative(recovery.model.W, target.W))
    assert errors[1] < errors[0] / 2
    several = attacks.AveragedAnswers(us.learners.MultiHeadLearner(dim, 1), 3)
    assert several.plan().queries is None


# -- what defend does with them


def test_rounding_and_noise_without_a_cap_are_worth_nothing(trials, evidence):
    """The owner's loss grows by orders of magnitude, the attack's error stays roundoff."""
    tuning = tuned(decimals=(6, 2, 0, -1), noise=(1e-4, 0.1, 1.0))
    worst, runs = 0.0, trials(1, 100)
    for seed in range(runs):
        result = us.defend(head(4, seed), 4, tuning=tuning, seed=seed)
        coarse = of(result, "rounding") + of(result, "noise")
        assert len(coarse) == 7
        assert max(trial.loss for trial in coarse) > 0.5
        worst = max(worst, *(trial.error for trial in coarse))
        plain = [trial.attacks[0] for trial in coarse]
        assert {attack.name for attack in plain} == {"ExactHead"}
        # an attack that does not stretch its tokens gets less and less
        assert plain[2].error > 1e3 * plain[0].error
    assert worst < 1e-9
    evidence(
        "defend: rounding and noise up to the answers' own spread, no cap: error of W of the best "
        "attack",
        runs=runs,
        largest=worst,
    )


def test_a_cap_makes_noise_count_and_rounding_not():
    tuning = tuned(capped_decimals=(2, 0), capped_noise=(0.01, 0.3), both_caps=(1.0,))
    result = us.defend(head(5), 5, tuning=tuning, attack_queries=3000)
    fine, coarse = of(result, "rounding with a norm cap")
    assert max(fine.error, coarse.error) < 1e-7
    assert "bisected" in coarse.best.name
    little, much = of(result, "noise with a norm cap")
    # 3,000 answers at 30 parameters: noise is a tenth of what it was
    assert 2e-4 < little.error < 2e-3
    assert 10 < much.error / little.error < 90
    assert little.beside == much.beside == f"tokens up to {result.longest:.3g}"
    assert all(trial.refused == 0 for trial in result.trials)


def test_no_attack_is_stronger_where_the_defence_is():
    """Fits to noisy answers are luck: of four noises every second was attacked better than less."""
    strengths = (0.1, 0.25, 0.5, 1.0)
    tuning = tuned(capped_noise=strengths, noise=(0.1, 1.0), capped_decimals=(2, 0))
    result = us.defend(head(4), 4, tuning=tuning, attack_queries=150)
    for kind in ("noise", "noise with a norm cap", "rounding with a norm cap"):
        for beside in {trial.beside for trial in of(result, kind)}:
            some = [trial for trial in of(result, kind) if trial.beside == beside]
            for weak, strong in pairwise(some):
                assert weak.error <= strong.error, (kind, beside)
                assert weak.function_error <= strong.function_error, (kind, beside)


def test_the_recommended_defence_is_attacked_with_three_seeds():
    tuning = tuned(capped_noise=(0.5, 1.0), both_caps=(1.0,))
    result = us.defend(head(4), 4, tuning=tuning, attack_queries=60, most_loss=0.99)
    best = result.recommended
    assert best is not None
    name = best.attacks[0].name
    assert any(attack.name.endswith(", seed 2") for attack in best.attacks), name
    [said] = [note for note in result.notes if "with seeds 0 to 2 the best attack" in note]
    repeated = [attack.error for attack in best.attacks if ", seed " in attack.name]
    assert len(repeated) == 2
    assert f"{max(repeated):.1%}" in said or f"{min(repeated):.1%}" in said


@pytest.mark.parametrize(
    ("weak", "strong", "so"),
    [
        ({}, {"noise": 1.0}, True),
        ({"noise": 1.0}, {"noise": 0.5}, False),
        ({"decimals": 2}, {"decimals": 1, "radius": 3.0}, True),
        ({"radius": 2.0}, {"radius": 3.0}, False),
        ({"clip": (-1.0, 2.0)}, {"clip": (-1.0, 1.0)}, True),
        ({"clip": (-1.0, 2.0)}, {}, False),
        ({"queries": 9}, {"queries": 8}, True),
        ({"queries": 9}, {}, False),
        ({}, {"labels": True}, False),
    ],
)
def test_which_defence_is_no_stronger(weak, strong, so):
    assert Measures(**weak).no_stronger_than(Measures(**strong)) is so


def test_attacks_on_every_other_defence():
    tuning = tuned(clip=(2.0, 0.3), cap=(4.0, 0.8), budget=(0.5, 3.0))
    result = us.defend(head(4), 4, tuning=tuning, needs=40)
    for kind in ("nothing", "clipping", "norm cap", "labels only"):
        assert all(trial.error < 1e-6 for trial in of(result, kind)), kind
    short, long = of(result, "query budget")
    assert (short.strength, long.strength) == (0.5, 3.0)
    assert short.error > 0.3
    assert long.error < 1e-9
    assert short.loss == pytest.approx(np.sqrt(1 - 10 / 40))
    assert (long.loss, long.refused) == (0, 0)


def test_a_head_with_biases():
    tuning = tuned(capped_noise=(0.01,), both_caps=(1.0,), decimals=(2,), cap=(1.0,), budget=(1.2,))
    result = us.defend(head(3, 2, biases=True), 3, tuning=tuning)
    [labels] = of(result, "labels only")
    assert not labels.measured
    assert not labels.holds(0.1)
    assert labels.queries == 0
    assert of(result, "nothing")[0].error < 1e-9
    assert of(result, "norm cap")[0].error < 1e-6
    assert of(result, "rounding")[0].error < 0.01
    assert of(result, "noise with a norm cap")[0].error < 0.05
    assert of(result, "query budget")[0].measured
    assert any("Against 1 of the defences" in note for note in result.notes)


def test_low_rank_needs_fewer_queries():
    rng = np.random.default_rng(5)
    K, Q = rng.standard_normal((2, 1, 8)) / 2
    low = us.SingleHead.from_factors(K, Q, rng.standard_normal(8))
    result = us.defend(low, 8, tuning=tuned(budget=(2.8,)))
    assert result.parameters == 8 + 15
    [trial] = of(result, "query budget")
    assert (trial.best.name, trial.error < 1e-9) == ("LowRankHead", True)


def test_several_heads_and_networks():
    rng = np.random.default_rng(3)
    heads = us.MultiHead(rng.standard_normal((2, 3, 3)), rng.standard_normal((2, 3)))
    tuning = tuned(cap=(4.0,), noise=(1e-3,), decimals=(4,))
    result = us.defend(heads, 3, tuning=tuning)
    assert of(result, "nothing")[0].error < 1e-6
    assert of(result, "norm cap")[0].error < 1e-6
    [noise] = of(result, "noise")
    assert any("means of" in attack.name for attack in noise.attacks)
    assert any("says less" in note for note in result.notes)
    network = us.ReluNetwork(rng.standard_normal((3, 4)), np.ones(4), rng.standard_normal(4), 0.2)
    result = us.defend(network, 3, tuning=tuned(decimals=(6,)))
    assert of(result, "nothing")[0].error < 1e-6
    assert of(result, "nothing")[0].function_error < 1e-6
    assert not of(result, "labels only")[0].attacks


def test_errors_do_not_mind_order_signs_or_missing_parts():
    rng = np.random.default_rng(0)
    W, v = rng.standard_normal((3, 2, 2)), rng.standard_normal((3, 2))
    truth = us.MultiHead(W, v)
    assert parameters_error(truth, us.MultiHead(W[[2, 0, 1]], v[[2, 0, 1]])) == 0
    missing = np.linalg.norm(W[1]) / np.linalg.norm(W)
    assert parameters_error(truth, us.MultiHead(W[[2, 0]], v[[2, 0]])) == pytest.approx(missing)
    A, w_o, b = rng.standard_normal((2, 3)), rng.standard_normal(3), rng.standard_normal(3)
    network, turned = us.ReluNetwork(A, w_o, b), us.ReluNetwork(-A[:, ::-1], w_o[::-1], -b[::-1])
    assert parameters_error(network, turned) == 0
    assert parameters_error(network, us.ReluNetwork(A, 2 * w_o, b)) == pytest.approx(1)


# -- counts


def test_queries_are_counted_where_they_are_answered(monkeypatch):
    """By the test's own count in the innermost place, refused batches not included."""
    services: list[Counted] = []
    around = Measures.around

    def counted(measures, oracle, seed):
        services.append(Counted(oracle))
        return around(measures, services[-1], seed)

    monkeypatch.setattr(Measures, "around", counted)
    tuning = tuned(decimals=(1,), noise=(0.1,), budget=(0.5, 1.5), capped_noise=(0.1,))
    result = us.defend(head(4), 4, tuning=tuning, attack_queries=900)
    asked = iter(services)
    for trial in result.trials:
        use = next(asked)
        assert use.queries in (0, 128)
        for attack in trial.attacks:
            inside = next(asked).queries
            refused_whole = attack.refusal is not None and "longer" in trial.words
            assert inside == attack.queries or (refused_whole and inside <= attack.queries)
            assert attack.queries <= 900
            if trial.kind == "query budget":
                assert attack.queries <= int(trial.words.split()[1])
    assert next(asked, None) is None


def test_the_target_is_asked_once(tmp_path):
    """Undefended, by the learner's plan; not for a defence, nor again on a finished ledger."""
    target, book = head(4), tmp_path / "book.sqlite"
    counted, tuning = Counted(target), tuned(decimals=(1,))
    result = us.defend(lambda X: counted(X), 4, ledger=book, tuning=tuning)
    plan = us.learners.LowRankHead(4, biases=True).plan()
    assert result.paid == counted.queries <= plan.at_most + 32
    assert "asked nothing else" in result.notes[0]
    again = us.defend(lambda X: counted(X), 4, ledger=book, tuning=tuning)
    assert counted.queries == again.paid <= result.paid + 32  # it is recognised by some
    assert again.trials == result.trials
    assert us.defend(target, 4, tuning=tuning).paid == 0
    assert Counted(target).queries == 0


def test_a_budget_and_an_interrupt_keep_what_was_paid(tmp_path):
    target, book, tuning = head(4), tmp_path / "book.sqlite", tuned()
    with pytest.raises(us.BudgetExceeded):
        us.defend(lambda X: target(X), 4, budget=30, ledger=book, tuning=tuning)
    calls = 0

    def interrupted(X):
        nonlocal calls
        calls += 1
        if calls > 6:
            raise KeyboardInterrupt
        return target(X)

    with pytest.raises(KeyboardInterrupt):
        us.defend(interrupted, 4, ledger=book, tuning=tuning)
    counted = Counted(target)
    result = us.defend(lambda X: counted(X), 4, ledger=book, tuning=tuning)
    assert counted.queries < result.paid
    assert of(result, "nothing")[0].error < 1e-9


def test_the_same_seed_gives_the_same_comparison():
    tuning = tuned(capped_noise=(0.3,))
    once, twice, other = (us.defend(head(3), 3, seed=s, tuning=tuning) for s in (1, 1, 2))
    assert once == twice
    assert once.trials != other.trials


# -- utility


def use_of(target, needs=None, sequences=2000):
    return LegitimateUse.drawn(target, standard_normal(target.dim, 2, 9), needs, 0, sequences)


def test_losses_are_what_they_should_be():
    target = head(5)
    use = use_of(target)

    def loss(measures):
        return use.loss(measures, measures.around(target, 0))

    assert loss(Measures()).loss < 1e-14
    step = 10.0**-1
    assert loss(Measures(decimals=1)).loss == pytest.approx(
        step / np.sqrt(12) / use.spread, rel=0.1
    )
    noise = 0.2 * use.spread
    assert loss(Measures(noise=noise)).loss == pytest.approx(0.2, rel=0.1)
    clip = (use.mean - use.spread, use.mean + use.spread)
    far = np.maximum(np.abs(use.answers - use.mean) - use.spread, 0)
    clipped = np.sqrt(np.mean(far**2)) / use.spread
    assert loss(Measures(clip=clip)).loss == pytest.approx(clipped)
    longest = [np.linalg.norm(X, axis=1).max() for X in use.sequences]
    radius = float(np.median(longest))
    capped = loss(Measures(radius=radius))
    refused = np.array(longest) > radius
    assert capped.refused == pytest.approx(np.mean(refused))
    left = np.sum((use.answers - use.mean)[refused] ** 2) / len(refused)
    assert capped.loss == pytest.approx(np.sqrt(left) / use.spread)
    labels = loss(Measures(labels=True))
    positive = use.answers > 0
    within = [use.answers[some] - use.answers[some].mean() for some in (positive, ~positive)]
    assert labels.loss == pytest.approx(
        np.linalg.norm(np.concatenate(within)) / np.sqrt(len(positive)) / use.spread
    )
    assert loss(Measures(queries=5)).loss is None


def test_what_a_cap_refuses_was_not_answered():
    """A cap below all tokens: nothing is left, and one label alone is a mean of nothing."""
    target = us.SingleHead(np.eye(2), [1.0, 1.0], c=100.0)
    use = use_of(target, sequences=50)
    nothing = Measures(radius=1e-6)
    assert use.loss(nothing, nothing.around(target, 0)).refused == 1
    assert use.loss(nothing, nothing.around(target, 0)).loss == pytest.approx(1)
    labels = Measures(labels=True)
    assert use.loss(labels, labels.around(target, 0)).loss == pytest.approx(1)


def test_a_sampler_of_ones_own():
    def short(rng):
        return 0.1 * rng.standard_normal((3, 4))

    result = us.defend(head(4), 4, sampler=short, tuning=tuned(cap=(1.0,)))
    assert result.longest < 0.5
    assert of(result, "norm cap")[0].refused == 0


# -- the recommendation follows from the rows

SHARE = st.floats(0, 2, allow_nan=False)


def trial(
    loss: Any, refused: Any, error: float, function_error: float, found: bool = True
) -> DefenceTrial:
    attack = AttackOutcome("ExactHead", 10, error, function_error, None if found else "no")
    return DefenceTrial("noise", 1.0, "", "", "add noise", "noise", loss, refused, (attack,))


ROWS = st.lists(
    st.builds(trial, st.none() | SHARE, st.just(0.0) | SHARE, SHARE, SHARE, st.booleans()),
    max_size=8,
)


@given(ROWS, st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_what_is_recommended_holds_and_nothing_cheaper_does(rows, threshold, most_loss):
    best = recommended(rows, threshold, most_loss)
    good = [
        row
        for row in rows
        if row.loss is not None
        and row.loss <= most_loss
        and row.attacks[0].refusal is None
        and min(row.attacks[0].error, 1) >= threshold
        and min(row.attacks[0].function_error, 1) >= threshold
    ]
    sentence = recommendation(rows, threshold, most_loss)
    assert sentence.endswith(".")
    if best is None:
        assert not good
        unknown = sum(row.attacks[0].refusal is not None for row in rows)
        assert sentence.startswith(f"{unknown} of" if 0 < unknown < len(rows) else "None of")
        return
    assert any(best is row for row in good)
    assert all(best.loss <= row.loss for row in good)
    assert sentence.startswith("Recommended: add noise. Cost:")
    assert f"{best.loss:.1%}" in sentence
    for error in (best.error, best.function_error):
        assert f"{error:.1%}" in sentence
    assert ("legitimate sequences" in sentence) == bool(best.refused)


def test_what_every_attack_was_refused_is_not_recommended():
    refused, measured = trial(0.01, 0.0, np.inf, 0.9, found=False), trial(0.3, 0.0, 0.5, 0.5)
    assert recommended([refused], 0.1, 0.5) is None
    assert recommended([refused, measured], 0.1, 0.5) is measured
    assert "None of 1 defences tried could be judged" in recommendation([refused], 0.1, 0.5)
    assert "(1 of them could not be judged)" in recommendation([refused, measured], 0.1, 0.5)
    [note] = left_out([refused, measured], 0.1)
    assert "no evidence that they hold" in note
    assert left_out([measured], 0.1) == ()


def test_what_could_not_be_judged_is_said_first_and_in_one_format():
    refused, weak = trial(0.01, 0.0, np.inf, 0.9, found=False), trial(0.3, 0.0, 0.044, 1e-9)
    said = recommendation([refused] * 38 + [weak] * 9, 0.1, 0.5)
    assert said.startswith("38 of 47 defences tried could not be judged")
    assert "None of the other 9" in said
    assert "4.4% of the parameters and less than 0.1% of the function" in said
    assert "strongest" not in said


def test_budgets_whose_loss_is_not_known_are_named_beside():
    small, large = trial(None, None, 0.9, 0.9), trial(None, None, 0.2, 0.3)
    [note] = left_out([replace(small, strength=0.5), replace(large, strength=0.9)], 0.1)
    assert "20.0% and 30.0%" in note
    assert left_out([trial(None, None, 0.01, 0.9)], 0.1) == ()


def test_a_stronger_attacker_leaves_less():
    tuning = tuned(capped_noise=(0.5,), both_caps=(1.0,))
    weak, strong = (us.defend(head(4), 4, attack_queries=n, tuning=tuning) for n in (30, 9000))
    assert weak.recommended is of(weak, "noise with a norm cap")[0]
    assert weak.recommendation.startswith("Recommended: add Gaussian noise")
    assert strong.recommended is None
    assert "leaves the largest errors" in strong.recommendation


# -- what is written


def test_a_comparison_is_what_it_was_when_it_is_read_back(tmp_path):
    tuning = tuned(capped_noise=(0.3,), budget=(0.5,))
    result = us.defend(head(3), 3, tuning=tuning)
    result.save(tmp_path / "new")
    assert us.DefenceComparison.load(tmp_path / "new") == result
    content = json.loads((tmp_path / "new" / "defence.json").read_text())
    assert content["format_version"] == 1
    # without a defence both are right to the last digits
    assert content["trials"][0]["best"] in ("ExactHead", "LowRankHead")
    assert any(a["error"] is None for t in content["trials"] for a in t["attacks"])
    assert "<table>" in result._repr_html_()
    assert "not known" in result._repr_html_()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text[:-20], "cannot be read"),
        (lambda text: text.replace('"format_version": 1', '"format_version": 2'), "newer"),
        (lambda text: text.replace('"trials"', '"rows"'), "cannot be read"),
        (lambda text: "[]", "cannot be read"),
        (lambda text: text.replace('"loss": ', '"loss": -1', 1), "a number of -"),
        (lambda text: text.replace('"strength": 0.0', '"strength": NaN'), "NaN is no finite"),
        (lambda text: text.replace('"spread": ', '"spread": true, "was": '), "a number of True"),
    ],
)
def test_a_damaged_comparison_is_said_to_be(tmp_path, damage, says):
    us.defend(head(2), 2, tuning=tuned()).save(tmp_path)
    path = tmp_path / "defence.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(ValueError, match=says):
        us.DefenceComparison.load(tmp_path)


def test_a_folder_without_one(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no defence\.json"):
        us.DefenceComparison.load(tmp_path)


@pytest.mark.usefixtures("undrawn")
def test_curves_and_the_page_show_what_was_refused_and_not_known(tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    from unsoftmax.report.defence_section import curves, draw_defences, loss_panel, strength_panels
    from unsoftmax.report.page import write_page

    tuning = tuned(capped_noise=(0.1, 1.0), both_caps=(4.0, 1.0), budget=(0.5, 2.0), decimals=(0,))
    result = us.defend(head(3, biases=True), 3, tuning=tuning)
    lengths = {curve.name: len(curve.trials) for curve in curves(result.trials)}
    capped = [count for name, count in lengths.items() if name.startswith("noise with a norm cap")]
    assert capped == [2, 2]
    assert lengths["labels only"] == 1
    assert [panel.title for panel in strength_panels(result)] == [
        "Strength: query budget",
        "Strength: noise with a norm cap",
    ]
    panel = loss_panel(result)
    assert panel is not None
    assert "labels only: errors from 1 to 1" in panel.described
    assert "query budget" not in panel.described
    budgets = tuple(trial for trial in result.trials if trial.loss is None)
    assert loss_panel(replace(result, trials=budgets)) is None
    for shown in (result, replace(result, trials=budgets)):
        draw_defences(shown, tmp_path / "curve.png")
        assert (tmp_path / "curve.png").stat().st_size > 10_000
    replace(result, target="<script>").save(tmp_path)
    page = write_page(tmp_path).read_text(encoding="utf-8")
    assert "Defences of &lt;script&gt;" in page
    assert "every attack was refused" in page
    assert "NotIdentifiable, v, c known" in page


# -- refusals


def coarse(X):
    return np.round(head(3)(X), 1)


@pytest.mark.parametrize(
    ("target", "error", "says"),
    [
        (lambda X: X[:, -1], us.OracleError, "coordinate"),
        (lambda X: (head(3)(X) > 0) * 1.0, us.ModelMismatch, "LabelHead"),
        (lambda X: np.zeros(len(X)), us.NotIdentifiable, "v = 0"),
        (coarse, us.NotIdentifiable, "out of the answers' reach"),
        (us.oracles.noisy(head(3), 1e-5, 0), us.NotIdentifiable, "too coarse to judge"),
        (us.SingleHead(np.eye(3), np.zeros(3)), us.NotIdentifiable, "nothing to defend"),
        (us.MultiHead(np.zeros((0, 3, 3)), np.zeros((0, 3))), us.NotIdentifiable, "nothing"),
        (lambda X: np.full(len(X), np.nan), us.OracleError, "nan"),
    ],
)
def test_targets_that_cannot_be_defended_are_refused(target, error, says):
    with pytest.raises(error, match=says):
        us.defend(target, 3, tuning=tuned(), retries=1)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"dim": 4}, "use dim=3"),
        ({"dim": 0}, "dim must be"),
        ({"threshold": 0}, "threshold must be between"),
        ({"most_loss": 1.0}, "most_loss must be between"),
        ({"attack_queries": 0}, "attack_queries must be"),
        ({"needs": 0}, "needs must be"),
        ({"seed": -1}, "seed must be"),
        ({"learner": us.learners.ExactHead(3)}, "leave the learner out"),
        ({"sampler": lambda rng: np.zeros((2, 5))}, "shape"),
    ],
)
def test_settings_out_of_range_are_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        us.defend(head(3), **{"dim": 3, **settings})


def test_what_cannot_be_attacked_is_refused_before_anything_is_paid():
    asked = Counted(head(3))
    for learner, says in (
        (us.learners.TransformerLearner(3), "not attacked here"),
        (us.learners.ExactHead(4), "dimension 4, not 3"),
    ):
        with pytest.raises(ValueError, match=says):
            us.defend(lambda X: asked(X), 3, learner)
    assert asked.queries == 0
    network = us.ReluNetwork(np.eye(3), np.ones(3))
    with pytest.raises(ValueError, match="No attacks are known on a Transformer"):
        us.defend(us.Transformer(np.eye(3), network), 3)
    with pytest.raises(ValueError, match="No attacks are known on a MultiHeadTransformer"):
        us.defend(us.MultiHeadTransformer([np.eye(3)], [np.eye(3)], np.ones(3)), 3)


def test_settings_beyond_what_is_attacked_are_refused_before_anything_is_paid():
    asked = Counted(head(6))
    for learner, says in (
        (us.learners.ExactHead(6, rotary=True), "rotary positions"),
        (us.learners.MultiHeadLearner(6, 2, rotary=True), "rotary positions"),
        (us.learners.LowRankHead(6, 2, rotary_base=1e4), "rotary positions"),
        (us.learners.AttentionLayerLearner(6, norm="pre"), "layers after a LayerNorm or RMSNorm"),
        (us.learners.FeedForwardLearner(6, norm="post"), "feed-forward layers with a LayerNorm"),
    ):
        with pytest.raises(ValueError, match=says):
            us.defend(lambda X: asked(X), 6, learner)
    assert asked.queries == 0


def test_attackers_of_clipped_answers_that_exclude_0_have_no_length():
    structure = attacks.structure_of(head(3))

    def radii(**measures):
        return attacks.Attacker(structure, Measures(**measures), 1.0, 1.0, 100, 0).radii

    assert radii(clip=(1.0, 2.0)) == []
    assert radii(clip=(-1.0, 2.0), radius=0.5) == [0.5, 0.25, 0.0625]
    assert radii(radius=4.0) == [1.0, 4.0]
    assert radii(radius=0.5) == [0.5]
    assert radii() == []


# -- the command

MINE = """
    import numpy as np
    import unsoftmax as us

    rng = np.random.default_rng(7)
    model = us.SingleHead(rng.standard_normal((2, 2)), rng.standard_normal(2))
    asked = 0

    def head(X):
        with open("asked.txt", "a") as log:
            log.write(f"{len(X)}\\n")
        return model(X)

    def pressed(X):
        raise KeyboardInterrupt

    def drawn(rng):
        return rng.standard_normal((2, 2))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(textwrap.dedent(MINE))
    head(3).save(tmp_path / "m.safetensors")
    return tmp_path


def test_the_command_defends_an_endpoint(folder, capsys, trials, monkeypatch):
    few = tuned(decimals=(6, 0), noise=(0.1, 1.0), clip=(1.0,), cap=(1.0,), budget=(0.5, 1.5),
                capped_decimals=(2,), capped_noise=(0.1, 1.0), both_caps=(4.0, 1.0))  # fmt: skip
    if trials(True, False):  # its own strengths take ten times as long
        monkeypatch.setattr(defending, "DefenceQuestion", partial(DefenceQuestion, tuning=few))
    words = ["defend", "mine:head", "--dim", 2, "--sampler", "mine:drawn", "--attack-queries", 40]
    done = run(folder, *words, "--out", "o", "--json", "--report")
    assert done.returncode == 0, done.stderr
    assert "The target is asked at most" in done.stderr
    content = json.loads(done.stdout)
    paid = sum(map(int, (folder / "asked.txt").read_text().split()))
    assert content["paid"] == paid
    result = us.DefenceComparison.load(folder / "o")
    assert len(result.trials) == len(content["trials"]) > trials(12, 40)
    assert result.recommendation == content["recommendation"]
    assert us.Recovery.load(folder / "o").queries == paid
    assert (folder / "o" / "defence.png").stat().st_size > 10_000
    page = (folder / "o" / "report.html").read_text()
    assert 'id="defend"' in page
    assert 'id="learn"' in page
    # what a terminal shows of as many rows
    capsys.readouterr()
    monkeypatch.setattr(console.stdout, "width", 200)
    _show(result, "mine:head")
    shown = capsys.readouterr().out
    assert shown.splitlines()[1].startswith(result.recommendation[:60])
    assert shown.count("│") <= 7 * 11
    assert "more rows: --all shows them" in shown


def test_a_table_for_a_terminal(capsys):
    tuning = tuned(capped_noise=(0.3,), both_caps=(1.0,), budget=(0.5,))
    result = us.defend(head(3, biases=True), 3, tuning=tuning)
    _show(result, "[bold]m.safetensors[/bold]")
    shown = capsys.readouterr().out
    assert shown.startswith("[bold]m.safetensors[/bold]: SingleHead(d=3)")
    assert " ".join(result.recommendation.split()) in " ".join(shown.split())
    for word in ("labels only", "tokens ≤", "queries", "?", "Note: "):
        assert word in shown


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["mine:head"], 2, "--dim is missing"),
        (["mine:head", "--dim", 4, "--sampler", "mine:drawn"], 2, "shape (N, 4)"),
        (["mine:head", "--dim", 2, "--model", "transformer"], 2, "not attacked here"),
        (["mine:head", "--dim", 2, "--budget", 5], 4, "budget of 5"),
        (["m.safetensors", "--model", "exact"], 2, "leave --model out"),
        (["mine:pressed", "--dim", 2], 130, "Run the same command to go on"),
    ],
)
def test_the_command_refuses_in_sentences(folder, words, status, says):
    done = run(folder, "defend", *words, "--out", "o")
    assert (done.returncode, done.stdout) == (status, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
