"""The attention of a pre-norm block from hidden states, whatever its feed-forward part is.

Truth is plain NumPy (`tests.blocks`); queries are counted at its side.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.blocks import (
    KINDS_OF_F,
    LlamaBlock,
    PlainBlock,
    errors_of,
    errors_of_whole,
    in_parts,
    predicted_to,
    whole_figures,
    with_scales,
)
from tests.truth import Counted
from unsoftmax.learners.block.far_scores import FarScoreReading
from unsoftmax.learners.block.zero_gates import ZeroGates
from unsoftmax.refusals import Reason

Learner = us.learners.BlockLearner


def drawn(shape: tuple[int, int, int], seed: int, **settings: Any) -> PlainBlock:
    """Draw a block of a kind of F, norm and size of scores that go with the seed."""
    rng = np.random.default_rng([35, seed])
    rms, logits = bool(rng.random() < 0.4), float(np.exp(rng.uniform(-1.5, 1.5)))
    F = KINDS_OF_F[seed % len(KINDS_OF_F)]
    given: dict[str, Any] = {"F": F, "rms": rms, "logits": logits} | settings
    return PlainBlock(shape, seed, **given)


@pytest.mark.parametrize(
    ("shape", "few", "claimed"),
    [
        ((16, 2, 8), 4, 100),
        ((32, 4, 8), 1, 60),
        ((64, 4, 16), 0, 40),
        ((128, 8, 16), 0, 10),
        # the shape of MiniLM's blocks
        ((384, 12, 32), 0, 1),
    ],
    ids=str,
)
def test_attention_is_recovered_whatever_follows(shape, few, claimed, trials, evidence):
    count, shares, sizes, ratios = trials(few, claimed), [], [], []
    for seed in range(count):
        block = drawn(shape, seed)
        oracle = Counted(block)
        recovery = us.learn(oracle, Learner(shape[0], seed=seed))
        absolute, relative = errors_of(recovery, block)
        errors = recovery.certificate.errors
        shares.append(max(absolute[name] / errors[name] for name in absolute))
        assert shares[-1] <= 1, (seed, absolute, errors)
        assert errors["c"] == np.inf
        assert oracle.queries == recovery.queries
        ratios.append((recovery.queries - recovery.counts["check"]) / block.bound)
        sizes.append([relative["M"], relative["W"]])
        assert relative["M"] <= 1e-9
        assert relative["W"] <= 1e-6
        assert any("sees what attention adds" in note for note in recovery.notes)
    if not count:
        return
    assert np.median(ratios) <= 6
    M, W = np.median(sizes, axis=0)
    assert M <= 1e-11
    assert W <= 1e-9
    evidence(
        f"attention of blocks {shape}",
        targets=count,
        broken=0,
        M=float(M),
        W=float(W),
        queries=f"{np.median(ratios):.1f} × the bound",
        median_looseness=f"{1 / np.median(shares):.0f}×",
        refused=0,
    )


def test_small_blocks_heads_of_full_rank_and_strong_scores(trials, evidence):
    """Few coordinates are left of answers; values fill them; gates are hard."""
    shapes, refused = [(8, 2, 7), (4, 1, 3), (7, 2, 2), (12, 3, 4), (6, 3, 2), (4, 1, 4)], 0
    count = trials(6, 200)
    for seed in range(count):
        block = drawn(shapes[seed % 6], seed, logits=20.0 if seed % 5 == 4 else 1.0)
        try:
            recovery = us.learn(block, Learner(block.dim, seed=seed))
        except (us.ModelMismatch, us.NotIdentifiable):
            refused += 1
            continue
        absolute, _ = errors_of(recovery, block)
        assert all(far <= recovery.certificate.errors[name] for name, far in absolute.items()), seed
    assert refused <= count / 50
    evidence("attention of small blocks", targets=count, broken=0, refused=refused)


def test_norms_whose_scales_differ_widely(trials, evidence):
    count, shares = trials(2, 40), []
    for seed in range(count):
        block = with_scales(drawn((16, 2, 8), seed), 8.0, seed)
        recovery = us.learn(block, Learner(16, seed=seed))
        errors, bounds = errors_of(recovery, block)[0], recovery.certificate.errors
        shares.append(max(errors[name] / bounds[name] for name in errors))
        assert shares[-1] <= 1, seed
    evidence(
        "attention of blocks (16, 2, 8), a norm's scales from 1/8 to 8",
        targets=count,
        broken=0,
        median_looseness=f"{1 / np.median(shares):.0f}×",
        refused=0,
    )


@pytest.mark.parametrize("shape", [(16, 2, 8), (20, 4, 5)], ids=str)
@pytest.mark.parametrize("apart", [0.0, 1e-10])
def test_two_heads_whose_values_have_one_range(shape, apart, trials):
    """What both make of more keys than half of the range has dimensions is no independent set."""
    for seed in range(trials(2, 40)):
        block = drawn(shape, seed, logits=1.0)
        (d, _, r), rng = shape, np.random.default_rng([seed, 1])
        block.O[1] = block.O[0] @ rng.standard_normal((r, r)) + apart * rng.standard_normal((d, r))
        recovery = us.learn(block, Learner(d, seed=seed))
        absolute, relative = errors_of(recovery, block)
        assert all(far <= recovery.certificate.errors[name] for name, far in absolute.items())
        assert relative["W"] <= 1e-6


def test_positions_are_not_looked_for_where_gates_are_found_without(monkeypatch):
    def unread(reading):
        raise Reason.WEIGHTS_BELOW_0.error()

    def looked_for(reading):
        raise AssertionError("a search with positions")

    monkeypatch.setattr(FarScoreReading, "run", unread)
    monkeypatch.setattr(ZeroGates, "run", looked_for)
    with pytest.raises(us.ModelMismatch) as refused:
        us.learn(drawn((16, 2, 8), 0, rms=True, logits=1.0), Learner(16))
    assert refused.value.reason == "WEIGHTS_BELOW_0"


@pytest.mark.parametrize("least", [1e-4, 1e-8, 1e-12])
def test_directions_of_maps_that_hardly_show(least):
    """Few offsets show the ranges that the others are read within: weak directions, too."""
    block = drawn((32, 4, 8), 0)
    block.V[:, 5:] *= least
    block.v_bias[:, 5:] *= least
    recovery = us.learn(block, Learner(32))
    absolute, relative = errors_of(recovery, block)
    assert all(far <= recovery.certificate.errors[name] for name, far in absolute.items())
    assert relative["M"] <= 1e-10
    assert recovery.queries <= 620


@pytest.mark.parametrize("share", [1e-7, 1e-14, 0.0])
def test_attention_that_roundoffs_hide_is_named(share):
    """What answers do not show of it is no sign of positions, nor of another F."""
    block = drawn((8, 1, 4), 0)
    block.O, block.o_bias = share * block.O, share * block.o_bias
    turning = LlamaBlock.drawn((8, 2, 1, 4), 0)
    arrays = turning.attention.arrays()
    faint = {**arrays, "O": share * arrays["O"], "c": share * arrays["c"]}
    turning.attention = us.RotaryLayer.from_arrays(faint)
    for target in (block, turning):
        with pytest.raises(us.NotIdentifiable) as refused:
            us.learn(target, Learner(target.dim))
        assert refused.value.reason == "BLOCK_ATTENTION_FAINT"


def test_scores_that_leave_most_keys_without_weight(trials):
    """Far tokens whose own score is the largest hide keys elsewhere, and so what shows eps."""
    for seed in range(trials(1, 20)):
        block = drawn((10, 1, 10), seed, rms=True, logits=60.0)
        recovery = us.learn(block, Learner(10, seed=seed))
        absolute, _ = errors_of(recovery, block)
        assert all(far <= recovery.certificate.errors[name] for name, far in absolute.items()), seed


def test_as_many_heads_as_coordinates_show_are_refused_by_name():
    with pytest.raises(us.NotIdentifiable) as refused:
        us.learn(drawn((4, 2, 2), 0), Learner(4))
    assert refused.value.reason == "BLOCK_HEADS_FILL"


@pytest.mark.parametrize("F", ["relu", "swiglu"])
def test_an_eps_that_hides_neurons_is_named(F):
    """Attention's roundoffs are 1e6 times as large behind the second norm, near 0."""
    block = drawn((8, 1, 4), 0, F=F, neurons=10, eps=1e-12)
    with pytest.raises(us.ModelMismatch, match="hide the neurons") as refused:
        us.learn(block, whole(8))
    determined = refused.value.determined
    assert ("eps_behind" in determined) == (F == "relu")
    assert determined.get("eps_behind", 1e-12) == pytest.approx(1e-12, rel=1e-3)
    n = np.zeros((1, 1, 8)) + block.shifts[0]
    c = block.attention(n, n[:, -1])[0] + determined["attention"].c
    off = determined["c"] - c
    assert np.linalg.norm(off - (not block.rms) * off.mean()) <= 1e-6


def test_what_is_in_parallel_is_named(trials):
    for seed in range(trials(1, 20)):
        block = drawn((12, 2, 4), seed, kind="parallel")
        recovery = us.learn(block, Learner(12, seed=seed))
        absolute, _ = errors_of(recovery, block)
        assert all(far <= recovery.certificate.errors[name] for name, far in absolute.items()), seed
        assert any("in parallel" in note for note in recovery.notes)


REASONS = {
    "no residual": {"BLOCK_WITHOUT_RESIDUAL"},
    "post-norm": {"BLOCK_POST_NORM"},
    "no norm": {"BLOCK_WITHOUT_RESIDUAL", "BLOCK_WITHOUT_NORM"},
    "positions": {"BLOCK_BY_PLACE", "POSITIONS_MATTER"},
    "first token": {"BLOCK_BY_PLACE", "POSITIONS_MATTER"},
    # ten and more numbers may be kept twice by chance
    "dropout": {"BLOCK_VARIES", "BLOCK_WITHOUT_NORM", "BLOCK_BY_PLACE"},
    "noise": {"BLOCK_VARIES"},
    "float32": {"BLOCK_TOO_COARSE"},
    "bent values": {"BLOCK_HEADS_FILL", "FRESH_ANSWERS_MISSED", "SOFT_GATES_UNFOUND"},
    "two blocks": {"BLOCK_WITHOUT_NORM"},
}


@pytest.mark.parametrize("kind", REASONS)
def test_what_is_no_such_block_is_refused_by_name(kind, trials, evidence):
    count, named = trials(1, 20), Counter[str]()
    for seed in range(count):
        block = drawn((12, 2, 4), seed, kind=kind)
        with pytest.raises(us.UnsoftmaxError) as refused:
            us.learn(block, Learner(12, seed=seed))
        reason = getattr(refused.value, "reason", "")
        named[reason] += 1
        assert reason in REASONS[kind], refused.value
    evidence(f"no pre-norm block: {kind}", targets=count, accepted=0, refused=count)


@pytest.mark.parametrize("F", ["relu", "gelu"])
@pytest.mark.parametrize("rms", [False, True])
def test_the_centre_of_the_norm_inside_a_post_norm_block_is_determined(F, rms, trials, evidence):
    """The token that attention makes 0 of, up to what the norm's mean takes off."""
    count, off = trials(2, 40), []
    for seed in range(count):
        block = drawn((12, 2, 4), seed, kind="post-norm", rms=rms, F=F)
        oracle = Counted(block)
        with pytest.raises(us.ModelMismatch) as refused:
            us.learn(oracle, Learner(12, seed=seed))
        x, moved = (refused.value.determined[name] for name in ("centre", "centre_moved"))
        y = x + block.attention(x[None, None], x[None])[0]
        size = max(1.0, float(np.linalg.norm(x)))
        off.append(np.linalg.norm(y - (not rms) * y.mean()) / size)
        assert off[-1] <= 1e-11
        assert off[-1] <= 10 * moved <= 1e-8 * size
        assert oracle.queries <= 142
    evidence(
        f"the norm inside post-norm blocks, {F}, {'RMSNorm' if rms else 'LayerNorm'}: its centre",
        targets=count,
        largest_input_relative_to_it=float(max(off)),
        queries=oracle.queries,
        refused=count,
    )


@pytest.mark.parametrize("eps", [1e-5, 1e-12])
def test_the_norm_behind_a_post_norm_block_is_determined(eps, trials, evidence):
    """Its scale but for a factor; that and its shift but for eps over a variance of 1 to 3."""
    count, far = trials(2, 40), []
    for seed in range(count):
        block = drawn((12, 2, 4), seed, kind="post-norm", rms=False, eps=eps)
        with pytest.raises(us.ModelMismatch) as refused:
            us.learn(block, Learner(12, seed=seed))
        found, true = refused.value.determined, block.scales[1]
        unit = found["scale_behind"] / np.linalg.norm(found["scale_behind"])
        shift = np.linalg.norm(found["shift_behind"] - block.shifts[1])
        size = abs(np.linalg.norm(found["scale_behind"]) / np.linalg.norm(true) - 1)
        far.append([np.linalg.norm(unit - true / np.linalg.norm(true)), size, shift])
        assert far[-1][0] <= 1e-14
        assert max(far[-1]) <= 20 * eps
        assert found["lengths_apart"] <= 10 * eps
    direction, size, shift = np.max(far, axis=0)
    evidence(
        f"the norm behind post-norm blocks, eps {eps:.0e}",
        targets=count,
        direction_of_the_scale=float(direction),
        its_size=float(size),
        shift=float(shift),
        refused=count,
    )


def test_more_heads_than_allowed_and_other_widths_are_refused():
    block = drawn((12, 3, 4), 0)
    with pytest.raises(us.ModelMismatch, match="more than"):
        us.learn(block, Learner(12, max_heads=2))
    with pytest.raises(us.ModelMismatch, match="must be equal"):
        us.learn(lambda X: block(X)[:, :5], Learner(12))
    with pytest.raises(us.NotIdentifiable) as still:
        us.learn(lambda X: X[:, -1], Learner(12))
    assert getattr(still.value, "reason", "") == "BLOCK_ATTENTION_FAINT"


def test_an_eps_of_0_is_named():
    """A token 0, which rotary positions are read and named with, is answered by no number then."""
    turning = LlamaBlock.drawn((8, 2, 1, 4), 0)
    turning.eps = 0.0
    for block in (drawn((12, 3, 4), 0, eps=0.0), turning):
        oracle = Counted(block)
        with pytest.raises(us.NotIdentifiable) as refused:
            us.learn(oracle, Learner(block.dim))
        assert refused.value.reason == "EPS_IS_0"
        assert oracle.queries == 7


def whole(dim: int, seed: int = 0) -> Any:
    return Learner(dim, part="block", seed=seed)


@pytest.mark.parametrize(
    ("shape", "neurons", "seeds", "total"),
    [
        *in_parts(((16, 2, 8), 32), 100, 10, few=True),
        *in_parts(((32, 4, 8), 128), 20, 4),
        *in_parts(((64, 4, 16), 256), 5, 1),
    ],
)
def test_whole_blocks_are_recovered(shape, neurons, seeds, total, trials, part_of_evidence):
    seeds = seeds[: trials(1, len(seeds))]
    shares, functions, ratios = [], [], []
    for seed in seeds:
        block = drawn(shape, seed, F="relu", neurons=neurons)
        oracle = Counted(block)
        recovery = us.learn(oracle, whole(shape[0], seed))
        errors, bounds = errors_of_whole(recovery, block), recovery.certificate.errors
        shares.append(max(errors[name] / bounds[name] for name in errors))
        assert shares[-1] <= 1, (seed, errors, bounds)
        assert oracle.queries == recovery.queries
        functions.append(predicted_to(recovery.model, block, np.random.default_rng(seed)))
        assert functions[-1] <= 1e-7, seed
        n = np.random.default_rng(seed).standard_normal((200, shape[0]))
        n = block.norm(10.0 ** np.linspace(-4, 1, 200)[:, None] * n, 1)
        y = (n - block.shifts[1]) / block.scales[1]
        part = recovery.model.parts[1]
        mine = np.maximum(y @ part.A.T + part.b, 0) @ part.B.T
        true = block.network(n) - block.c
        missed = np.linalg.norm(mine - true, axis=1)
        most = bounds["constant"] + bounds["slope"] * np.linalg.norm(y, axis=1)
        assert np.max(missed / most) <= 1, seed
        ratios.append((recovery.queries - recovery.counts["check"]) * shape[0] / block.parameters)
    assert np.median(ratios) <= 8
    part_of_evidence(
        f"whole blocks {shape}, {neurons} neurons",
        total,
        len(seeds),
        whole_figures(functions, ratios, shares),
    )


@pytest.mark.parametrize(("heads", "rank"), [(4, 1), (2, 3), (1, 6)])
def test_small_whole_blocks_of_few_neurons(heads, rank, trials, evidence):
    """Answers of heads of rank 1 turn sign; few neurons show the centre; M may be known badly."""
    # first those in which each of these led to a refusal, or to neurons that are none
    first, count = [2, 3, 27, 28] if rank == 1 else [], trials(4 if rank == 1 else 1, 70)
    shares, functions, rare = [], [], 0
    for seed in (first + sorted(set(range(count)) - set(first)))[:count]:
        rng = np.random.default_rng([seed, 45])
        d, m, rms = int(rng.integers(8, 12)), int(rng.integers(4, 17)), bool(rng.random() < 0.3)
        block = PlainBlock((d, heads, rank), seed, rms=rms, neurons=m)
        recovery = us.learn(block, whole(d, seed))
        if len(recovery.model.parts[1].b) < m:
            rare += 1  # the certificate says that such a neuron may be missing
            assert len(recovery.model.parts[1].b) >= m - np.sum(switched_by(block) < 3 / 80)
            continue
        errors, bounds = errors_of_whole(recovery, block), recovery.certificate.errors
        assert len(recovery.model.parts[1].b) == m
        assert all(map(np.isfinite, bounds.values())), seed
        shares.append(max(errors[name] / bounds[name] for name in errors))
        assert shares[-1] <= 1, seed
        functions.append(predicted_to(recovery.model, block, np.random.default_rng(seed)))
        assert functions[-1] <= 1e-6, seed
    evidence(
        f"whole blocks of d 8 to 11, {heads} heads of rank {rank}, 4 to 16 neurons",
        targets=count,
        broken=0,
        function=float(np.max(functions)),
        median_looseness=f"{1 / np.median(shares):.0f}×",
        without_a_neuron_that_few_tokens_switch=rare,
        refused=0,
    )


def switched_by(block):
    """Return which share of long tokens switches each neuron."""
    n = np.random.default_rng(0).standard_normal((100_000, block.dim))
    n -= (not block.rms) * n.mean(axis=1, keepdims=True)
    n *= np.sqrt(block.dim) / np.linalg.norm(n, axis=1, keepdims=True)
    active = np.mean((block.scales[1] * n + block.shifts[1]) @ block.A.T + block.a > 0, axis=0)
    return np.minimum(active, 1 - active)


@pytest.mark.parametrize("F", ["mixture", "parallel"])
def test_what_follows_attention_and_is_no_layer_is_named(F, trials, evidence):
    count = trials(1, 20)
    for seed in range(count):
        given = {"kind": F, "F": "relu"} if F == "parallel" else {"F": F}
        block = drawn((12, 2, 4), seed, **given)
        with pytest.raises(us.ModelMismatch) as refused:
            us.learn(block, whole(12, seed))
        reason = "BLOCK_IN_PARALLEL" if F == "parallel" else "BLOCK_FOLLOWED_BY_OTHER"
        assert refused.value.reason == reason, refused.value
        assert 'part="attention"' in str(refused.value)
        attention, true = refused.value.determined["attention"], block.truth()
        assert np.allclose(sum(head.M for head in attention.heads), true["M"].sum(0), atol=1e-8)
    evidence(f"no block of ReLUs: {F}", targets=count, accepted=0, refused=count)


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", ["no residual", "post-norm", "positions", "dropout", "two blocks"])
def test_what_is_no_block_is_no_whole_block(kind, trials):
    for seed in range(trials(1, 20)):
        block = drawn((12, 2, 4), seed, F="relu", kind=kind)
        with pytest.raises(us.UnsoftmaxError) as refused:
            us.learn(block, whole(12, seed))
        assert getattr(refused.value, "reason", "") in REASONS[kind], refused.value


def test_a_recovered_block_is_a_model_as_others(tmp_path):
    block = drawn((8, 2, 3), 3, F="relu", rms=False)
    recovery = us.learn(block, whole(8))
    assert isinstance(recovery.model, us.Stack)
    recovery.save(tmp_path)
    again = us.load(tmp_path / "model.safetensors")
    assert us.equivalent(again, recovery.model)
    assert us.equivalent(recovery.model, block.model())
    assert us.verify(block, recovery.model, errors=recovery.certificate.errors)
    other = drawn((8, 2, 3), 4, F="relu", rms=False)
    errors = recovery.certificate.errors
    assert not us.verify(other, recovery.model, errors=errors)
    first, second = recovery.model.parts
    for by, verdict in ((1e-8, "undecided"), (1e-3, "different")):
        moved = us.FeedForward.from_arrays({**second.arrays(), "c": second.arrays()["c"] + by})
        far = us.equivalent(us.Stack([first, moved]), recovery.model, errors=errors)
        assert far.verdict == verdict


@pytest.mark.parametrize("F", ["relu", "swiglu"])
def test_an_audit_names_a_block_and_what_of_it_is_recoverable(F):
    audit = us.audit(drawn((8, 2, 3), 3, F=F), 8)
    assert (audit.target_class, audit.certainty) == ("whole block", "likely")
    assert "BlockLearner" in audit.recoverable


@pytest.mark.parametrize("kind", ["post-norm", "no residual"])
def test_an_audit_calls_nothing_else_a_block(kind):
    assert us.audit(drawn((8, 2, 3), 3, F="relu", kind=kind), 8).target_class != "whole block"
