"""What holds of every class of models: arrays, files, batches, canonical forms, witnesses.

That their values and derivatives are those of their formulas, `tests.models.test_linearise` says.
"""

import copy
import itertools
import pickle
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import unsoftmax as us
from tests.models.test_linearise import MODELS
from tests.models.test_stack import STACKS
from tests.truth import share
from unsoftmax.models import files
from unsoftmax.models.equality import CANONICAL

FILES = sorted(Path(__file__).with_name("data").glob("*.safetensors"))
CLASSES = {
    us.AttentionLayer, us.FeedForward, us.MultiHead, us.MultiHeadTransformer, us.ReluNetwork,
    us.RotaryHead, us.RotaryHeads, us.RotaryLayer, us.SingleHead, us.Transformer,
}  # fmt: skip
every_model = pytest.mark.parametrize(
    "model", [*(one.model for one in MODELS), *STACKS.values()], ids=repr
)
# Arrays that are no parameters: nothing differs by a little.
FIXED = {"activation", "before", "causal", "centred", "dim", "groups"}


def sequences(model, *shape):
    """Draw tokens (…, d), single ones where the model takes no others."""
    *batch, tokens = shape
    single = isinstance(model, us.FeedForward | us.ReluNetwork)
    rng = np.random.default_rng(0)
    return rng.standard_normal((*batch, 1 if single else tokens, model.dim))


def moved(model, name, by):
    """The model with one entry of one array moved by so much of the largest."""
    arrays = {n: np.array(x) for n, x in model.arrays().items()}
    arrays[name].flat[0] += by * np.abs(arrays[name]).max()
    return type(model).from_arrays(arrays)


def parameters(model):
    """Names of the arrays that its answers depend on; of a model without heads not all show."""
    named = {n: x for n, x in model.arrays().items() if n.rpartition(".")[2] not in FIXED}
    flag = (
        "residual" if isinstance(model, us.AttentionLayer | us.FeedForward | us.RotaryLayer) else ""
    )
    return [n for n, x in named.items() if n != flag and np.any(x) and getattr(model, "H", 1)]


ALONE = [one.model for one in MODELS]
every_parameter = pytest.mark.parametrize("model", [x for x in ALONE if parameters(x)], ids=repr)
OF_CLASSES = [*{type(x): x for x in ALONE if parameters(x)}.values()]
one_per_class = pytest.mark.parametrize("model", OF_CLASSES, ids=repr)
SMOOTH = [x for x in ALONE if isinstance(x, us.FeedForward) and x.activation in ("gelu", "silu")]


# -- files, pickles and copies


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_earlier_file_is_loaded_and_written_again(file, tmp_path):
    model, pickled = us.load(file), pickle.loads(file.with_suffix(".pickle").read_bytes())
    assert type(model) is type(pickled)
    assert model.arrays().keys() == pickled.arrays().keys()
    for name, array in model.arrays().items():
        assert array.tobytes() == pickled.arrays()[name].tobytes()
    model.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == file.read_bytes()
    X = np.random.default_rng(0).standard_normal((4, 1, model.dim))
    np.testing.assert_array_equal(model(X), pickled(X))


def test_every_class_has_an_earlier_file_and_a_canonical_form():
    assert {type(us.load(file)) for file in FILES} == CLASSES == {*CANONICAL}


@every_model
def test_files_pickles_and_copies_keep_every_bit(model, tmp_path):
    model.save(tmp_path / "model")
    X = np.random.default_rng(0).standard_normal((4, 1, model.dim))
    for again in (
        us.load(tmp_path / "model"),
        pickle.loads(pickle.dumps(model)),
        copy.copy(model),
        copy.deepcopy(model),
        type(model).from_arrays(model.arrays()),
        us.models.from_parameters(model.arrays()),
    ):
        assert type(again) is type(model)
        assert repr(again) == repr(model)
        assert again.arrays().keys() == model.arrays().keys()
        for name, array in again.arrays().items():
            assert array.tobytes() == model.arrays()[name].tobytes()
            assert not array.flags.writeable
        np.testing.assert_array_equal(again(X), model(X))
    assert us.models.has_parameters(model.arrays())
    assert us.equivalent(us.load(tmp_path / "model"), model, rtol=0)


# What a file may lack: it is 0, or what a constructor takes where nothing is said.
MAY_LACK = {"w", "b", "c", "k_bias", "q_bias", "g", "shift", "residual", "groups", "activation"}
MAY_LACK |= {"before", "centred"}


@pytest.mark.parametrize("model", [*OF_CLASSES, *SMOOTH], ids=repr)
def test_a_file_that_lacks_an_array_or_has_another_is_damaged(model, tmp_path):
    arrays, path = model.arrays(), tmp_path / "model"
    for name in arrays:
        files.write(path, type(model).__name__, {n: x for n, x in arrays.items() if n != name})
        if name.rpartition(".")[2] not in MAY_LACK or (name == "c" and "O" in arrays):
            with pytest.raises(ValueError, match="damaged"):
                us.load(path)
    files.write(path, type(model).__name__, {**arrays, "other": np.zeros(1)})
    with pytest.raises(ValueError, match="damaged"):
        us.load(path)


# -- arrays and answers


@pytest.mark.parametrize("model", ALONE, ids=repr)
def test_norms_of_parameters_are_those_of_the_least_head(model):
    norms = defaultdict(list)
    for name, tensor in model.tensors.items():
        norms[name.partition(" of ")[0]].append(tensor.norm)
    for name, each in norms.items():
        shared = isinstance(model, us.RotaryLayer) and name in ("K", "k_bias", "V")
        if not (shared or name.startswith("network.")):
            least = min((norm for norm in each if norm), default=0.0)
            assert model.parameter_norm(name) == pytest.approx(least, rel=1e-12), name
    assert model.parameter_norm("slope") == 0.0


@one_per_class
def test_models_are_values(model):
    """Arrays are copies that nobody changes, nor does an answer what was asked."""
    given = {name: np.array(x) for name, x in model.arrays().items()}
    own = type(model).from_arrays(given)
    for array in given.values():
        array[...] = 7.0
    for name, array in own.arrays().items():
        np.testing.assert_array_equal(array, model.arrays()[name])
        assert array.dtype == np.float64
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0.0
        if hasattr(type(own), name):
            with pytest.raises(AttributeError):
                setattr(own, name, array)
    X = sequences(model, 4, 3)
    before = X.copy()
    own(X)
    np.testing.assert_array_equal(X, before)
    whole = np.round(4 * X)
    np.testing.assert_array_equal(own(whole.astype(int)), own(whole))
    assert own(X).dtype == np.float64


@every_model
def test_batches_are_answered_in_parts_alike(model, monkeypatch):
    X = sequences(model, 10, 3)
    whole = model(X)
    monkeypatch.setattr(type(model), "_numbers_at_once", 3 * 4 * 3)
    np.testing.assert_allclose(model(X), whole, rtol=1e-12, atol=1e-13)
    assert model(X[:0]).shape == (0, *whole.shape[1:])


@one_per_class
def test_sequences_that_do_not_fit_are_refused(model):
    single = isinstance(model, us.FeedForward | us.ReluNetwork)
    d, takes = model.dim, r"\(B, 4\)" if single else r"\(B, N, 4\)"
    wrong = [(1, 1, 3, d), (2, 1, d + 1), (d,), (2, 2, d) if single else (1, 0, d)]
    for shape in wrong if single else [*wrong, (3, d)]:
        with pytest.raises(ValueError, match=f"takes .* of shape {takes}") as refusal:
            model(np.zeros(shape))
        assert str(shape) in str(refusal.value)


@pytest.mark.parametrize("model", ALONE, ids=repr)
def test_arrays_that_do_not_fit_are_refused_by_name(model):
    arrays = model.arrays()
    for name, array in arrays.items():
        own = name.rpartition(".")[2]
        if own == "activation":  # a name, written in bytes
            continue
        for wrong, error, said in (
            (array[None], ValueError, "have (shape|two axes)"),
            (np.full_like(array, np.nan), ValueError, "be finite"),
            (array + 0j, TypeError, "hold real numbers"),
        ):
            if wrong.size:
                with pytest.raises(error, match=f"^{own} must {said}"):
                    type(model).from_arrays({**arrays, name: wrong})
        # alone they say how many numbers go in, or come out where there are no heads
        free = "A" if isinstance(model, us.FeedForward) else "" if getattr(model, "H", 1) else "c"
        if array.size > 1 and own != free:
            wider = np.concatenate([array, array[..., :1]], axis=-1)
            with pytest.raises(ValueError, match=r"must (have shape|be)"):
                type(model).from_arrays({**arrays, name: wider})


# -- equality


@every_model
def test_the_canonical_form_is_the_same_function_and_its_own_form(model):
    if isinstance(model, us.Stack):
        with pytest.raises(TypeError, match="No canonical form is known of a Stack"):
            us.canonical(model)
        return
    form, X = us.canonical(model), sequences(model, 20, 4)
    np.testing.assert_allclose(form(X), model(X), rtol=1e-9, atol=1e-9)
    assert us.equivalent(form, model)
    again = us.canonical(form)
    assert type(again) is type(form)
    for name, array in form.arrays().items():
        np.testing.assert_allclose(again.arrays()[name], array, rtol=1e-10, atol=1e-10)


@pytest.mark.few(12)
@pytest.mark.parametrize("by", [1e-6, 1e-1])
@every_parameter
def test_a_difference_in_any_array_has_a_witness(model, by):
    for name in parameters(model):
        other = moved(model, name, by)
        result = us.equivalent(model, other)
        assert result.verdict == "different", name
        assert result.witness is not None
        X = result.witness[None]
        assert np.any(model(X) != other(X)), name
        assert us.equivalent(model, other, rtol=1e3 * by), name


EARLIER = [us.load(file) for file in FILES]


def takes(model):
    """What sequences a model takes, and what it answers them with."""
    single = isinstance(model, us.FeedForward | us.ReluNetwork)
    return model.dim, single, model(sequences(model, 1, 2)).shape


def test_models_that_take_or_answer_otherwise_are_different_and_so_are_classes():
    for one, other in itertools.permutations([*OF_CLASSES, *EARLIER], 2):
        result = us.equivalent(one, other)
        if takes(one) != takes(other):
            assert (result.verdict, result.by) == ("different", "shape"), (one, other)
            assert (result.witness, result.gap) == (None, np.inf)
        elif type(one) is not type(other):
            assert result.verdict == "different", (one, other)
            assert result.witness is not None
            X = result.witness[None]
            assert np.any(one(X) != other(X)), (one, other)


BOUNDS = ("M", "W", "w", "v", "c", "scale", "shift", "eps", "constant", "slope")
# By which bound an array of heads counts, and those of a norm around them; c is not "constant".
COUNTS_BY = {
    **dict.fromkeys(("W", "K", "Q", "frequencies"), "W"),
    **dict.fromkeys(("w", "k_bias", "q_bias"), "w"),
    **dict.fromkeys(("v", "M", "O", "V"), "v"),
    **{name: name for name in ("scale", "shift", "eps")},
}


@pytest.mark.parametrize("model", [*OF_CLASSES, *SMOOTH], ids=repr)
def test_a_certificate_decides_what_the_tolerance_does_not(model):
    """A millionth of an array: within ample bounds, beyond tight ones, and told without any."""
    ample, tight = (dict.fromkeys(BOUNDS, size) for size in (0.1, 1e-13))
    near = moved(model, parameters(model)[0], 1e-6)
    assert us.equivalent(near, model, errors={"other": 1.0}).by == "witness"
    for name in parameters(model):
        near = moved(model, name, 1e-6)
        within = us.equivalent(near, model, errors=ample)
        assert (within.verdict, within.by) == ("equal", "certificate"), name
        assert within.share is not None
        assert 0 < within.share < 1
        beyond = us.equivalent(near, model, errors=tight)
        assert (beyond.verdict, beyond.by) == ("different", "certificate"), name
        bound = COUNTS_BY.get(name.rpartition(".")[2])
        if bound is not None and not isinstance(model, us.FeedForward | us.ReluNetwork):
            for small in (1e-13, 0.0):
                assert share(near, model, {**ample, bound: small}) > 1, name


@pytest.mark.parametrize(
    "model",
    [x for x in ALONE if isinstance(x, us.AttentionLayer | us.FeedForward) and parameters(x)],
    ids=repr,
)
def test_layers_beyond_the_range_of_float64_are_refused_in_a_sentence(model):
    for name in parameters(model):
        if not name.endswith("eps"):
            arrays = {**model.arrays(), name: 1e200 * model.arrays()[name]}
            far = type(model).from_arrays(arrays)
            with pytest.raises(ValueError, match="beyond 1e\\+145 sums of squares leave float64's"):
                us.equivalent(far, far)
