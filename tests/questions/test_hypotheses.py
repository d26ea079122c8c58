"""One fit for every hypothesis: it finds the change that was made, and others leave misses."""

import numpy as np
import pytest

import unsoftmax as us
from tests import feed_forward
from tests.heads import several
from tests.questions.layer_services import changed_array
from tests.questions.test_verify_layers import attention, neurons
from tests.rotary_heads import several_rotary
from tests.rotary_layers import rotary_layer
from unsoftmax.measure.precision import Precision
from unsoftmax.questions.answer_errors import AnswerErrors, Seen
from unsoftmax.questions.claim import Claim
from unsoftmax.questions.hypotheses import RESIDUAL, Block, Hypotheses

MODELS = {
    "heads": lambda: several(2, 4, 0, biases=True),
    "heads with positions": lambda: several_rotary(2, 6, 4, 0),
    "a layer": lambda: attention("none", 0, d=6),
    "a layer behind a norm": lambda: attention("behind", 0, d=6),
    "a layer after a norm": lambda: attention("before", 0, d=6),
    "a layer with positions": lambda: rotary_layer(8, 2, 1, 4, 0, residual=True, biases=0.3),
    "neurons": lambda: neurons("behind", 0, d=6),
}

NO_TENSORS = ("residual", "eps", "before", "centred", "rotary")


def block_of(claim, target, rng, count=120):
    """Answers of a target to random sequences of every length."""
    lengths = (1, 2, 3, 6) if claim.attends else (1,)
    sequences = [
        0.7 * rng.standard_normal((lengths[k % len(lengths)], claim.dim)) for k in range(count)
    ]
    stacks = [Seen(target(X[None]), claim.at(X[None])) for X in sequences]
    seen = stacks[0]
    for one in stacks[1:]:
        seen = seen.beside(one)
    return Block.of(sequences, seen, AnswerErrors(Precision(unit=2.0**-50)))


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("kind", "size"),
    # where neurons switch, a large change is no small one many times over
    [(kind, size) for kind in MODELS for size in (1e-6, 0.1) if size < 0.1 or kind != "neurons"],
)
def test_a_change_is_explained_by_the_tensor_that_has_it_alone(kind, size, trials):
    model, rng = MODELS[kind](), np.random.default_rng(3)
    claim = Claim(model)
    hypotheses = Hypotheses.of(claim)
    for name, array in [*model.arrays().items()][:: trials(5, 1)]:
        if not np.any(array) or name.rpartition(".")[2] in NO_TENSORS:
            continue
        block = block_of(claim, changed_array(model, name, size, rng), rng)
        fits = {tensor: hypotheses.fit(block, [tensor]) for tensor in claim.model.tensors}
        assert block.share > 1e3, name
        own = name.rpartition(".")[2]
        mine = [x for x in fits if x.split(" of ")[0] == own]
        if name.startswith("norm"):
            mine = [f"{own} of the norm"]
        elif name.startswith("heads."):
            mine = [f"{own} of head {name.split('.')[1]}"]
        whole = hypotheses.fit(block, mine)
        assert whole.left <= 0.5, (name, whole)
        assert 0.1 * size < whole.change < 10 * size, (name, whole)
        # a norm before is part of what is behind it
        others = [fits[x] for x in fits if x not in mine and "norm" not in x]
        alone = all(one.left > 10 or whole.simpler(one) for one in others)
        assert alone or name.startswith("norm"), (name, fits)


@pytest.mark.parametrize(
    "model", [attention("behind", 0, d=6), feed_forward.layer(6, 8, 6, 0)], ids=["with", "without"]
)
def test_a_residual_connection_is_a_hypothesis(model):
    rng = np.random.default_rng(3)
    claim = Claim(model)
    other = type(model).from_arrays({**model.arrays(), "residual": np.array(not model.residual)})
    block = block_of(claim, other, rng)
    assert Hypotheses.of(claim).fit(block, [RESIDUAL]).left <= 1
    assert block.share > 1e3


def test_misses_that_no_bound_measures_are_not_looked_at():
    claim, rng = Claim(several(2, 4, 0)), np.random.default_rng(0)
    block = block_of(claim, lambda X: np.full(len(X), 1e80), rng)
    assert Hypotheses.of(claim).fit(block, ["c"]).left == np.inf


def test_equal_models_in_other_parameters_leave_nothing_to_explain():
    model = attention("none", 0, d=6)
    claim, rng = Claim(model), np.random.default_rng(0)
    assert block_of(claim, us.canonical(model), rng).share < 1
