"""`us.defend` of layers that answer with vectors: the learners of vectors attack."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import unsoftmax as us
from tests import feed_forward
from tests.attention_layers import layer, normalised
from tests.questions.test_defend import of, parameters_error, tuned
from tests.truth import Counted
from unsoftmax.cli.commands import app
from unsoftmax.questions import DefenceComparison
from unsoftmax.questions.defence.legitimate_use import LegitimateUse, Measures, standard_normal

TARGETS: dict[str, Any] = {
    "a plain layer": lambda: layer(2, 3, 6, residual=True),
    "behind a LayerNorm": lambda: normalised(2, 4, 12),
    "feed-forward": lambda: feed_forward.layer(6, 8, 6, 0, residual=True),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", TARGETS)
def test_the_learners_of_vectors_attack(kind):
    target = TARGETS[kind]()
    tuning = tuned(decimals=(6,), noise=(1e-6,), cap=(1.0,), budget=(0.5,))
    result = us.defend(target, target.dim, tuning=tuning, needs=100)
    [nothing], [rounding], [noise] = (of(result, k) for k in ("nothing", "rounding", "noise"))
    assert nothing.error < 1e-9
    assert nothing.function_error < 1e-9
    for trial in (rounding, noise):
        assert 1e-12 < trial.error < 1e-3
        assert 1e-9 < trial.loss < 1e-4
    assert any("means of" in attack.name for attack in noise.attacks)
    assert all(
        not trial.measured for trial in (*of(result, "norm cap"), *of(result, "query budget"))
    )
    # labels say nothing of a vector
    assert not of(result, "labels only")
    assert result.attack_queries == 4096
    assert any("root mean squares over all their numbers" in note for note in result.notes)
    assert any("says less" in note for note in result.notes)


def test_budgets_count_answers():
    """Each answer is m of the parameters: half of them are known from half as many over m."""
    target = TARGETS["a plain layer"]()
    result = us.defend(target, 6, tuning=tuned(budget=(0.5,)), needs=100)
    [trial] = of(result, "query budget")
    assert int(trial.brief.split()[0]) == np.ceil(np.ceil(result.parameters / 6) / 2)
    assert trial.loss == pytest.approx(np.sqrt(1 - int(trial.brief.split()[0]) / 100))


def test_losses_are_over_all_numbers():
    target = layer(1, 2, 4)
    use = LegitimateUse.drawn(target, standard_normal(4, 2, 4), None, 0, 400)
    spread = np.sqrt(np.mean(np.var(use.answers, axis=0)))
    assert use.answers.shape == (400, 4)
    assert use.spread == pytest.approx(spread)
    noise = Measures(noise=0.1 * spread)
    assert use.loss(noise, noise.around(target, 0)).loss == pytest.approx(0.1, rel=0.1)
    # who is refused takes the mean of every number
    never = use.loss(Measures(radius=1e-9), us.oracles.norm_capped(target, 1e-9))
    assert never.loss == pytest.approx(1)
    assert never.refused == 1
    assert use.error_of(lambda X: target(X) + spread, False) == pytest.approx(1)


def test_errors_do_not_mind_order_factors_or_missing_parts():
    target = layer(3, 2, 6, residual=True)
    other = us.AttentionLayer(target.heads[::-1], target.c, residual=True)
    assert parameters_error(target, other) < 1e-12
    fewer = us.AttentionLayer(target.heads[:2], target.c, residual=True)
    assert 0.1 < parameters_error(target, fewer) <= 1
    assert parameters_error(target, us.AttentionLayer([], target.c, True)) == pytest.approx(1)
    heads = [us.LayerHead(head.M, 1.1 * head.W, head.w) for head in target.heads]
    assert parameters_error(target, us.AttentionLayer(heads, target.c, True)) == pytest.approx(0.1)
    neurons = feed_forward.layer(4, 5, 3, 0)
    A, b, B = -neurons.A[::-1] * 2, -neurons.b[::-1] * 2, neurons.B[:, ::-1] / 2
    assert parameters_error(neurons, us.FeedForward(A, b, B, neurons.c)) < 1e-12
    some = us.FeedForward(neurons.A[:4], neurons.b[:4], neurons.B[:, :4], neurons.c)
    assert 0.1 < parameters_error(neurons, some) < 1


def with_norm(model, **settings):
    norm = us.LayerNorm(np.ones(model.dim), None, 1e-5, **settings)
    arrays = {f"norm.{name}": array for name, array in norm.arrays().items()}
    return type(model).from_arrays({**model.arrays(), **arrays})


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (
            with_norm(layer(2, 3, 6, residual=True), before=True),
            "layers after a LayerNorm or RMSNorm",
        ),
        (with_norm(layer(2, 3, 6, residual=True), centred=False), "RMSNorm"),
        (with_norm(feed_forward.layer(6, 4, 6, 0)), "feed-forward layers with a LayerNorm"),
    ],
)
def test_layers_that_nothing_recovers_are_refused_in_a_sentence(target, says):
    with pytest.raises(ValueError, match=says):
        us.defend(target, 6, tuning=tuned())


def test_a_service_of_vectors_is_recovered_first(tmp_path):
    target = Counted(layer(1, 2, 4))
    learner = us.learners.AttentionLayerLearner(4)
    result = us.defend(target, 4, learner, tuning=replace(tuned(), certified=1e-6))
    assert result.paid == target.queries
    assert result.trials[0].error < 1e-9
    result.save(tmp_path)
    assert DefenceComparison.load(tmp_path) == result


def test_the_command_refuses_in_sentences(tmp_path):
    with_norm(layer(2, 3, 6, residual=True), before=True).save(tmp_path / "layer.safetensors")
    words = ["defend", str(tmp_path / "layer.safetensors"), "--dim", "6", "--json"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "No attacks are known on layers after a LayerNorm or RMSNorm" in done.stderr
