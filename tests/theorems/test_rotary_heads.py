"""Several heads with rotary positions, with biases or without: counts, certificates, refusals."""

from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.heads import row
from tests.nearly_rotary import nearly_rotary
from tests.rotary_heads import biased, changed, longest_miss, several_rotary
from tests.truth import Counted, hidden
from unsoftmax.models.equality.verdicts import match

BASES = (1e4, 5e5, 1e6)
with_and_without = pytest.mark.parametrize("spread", [0.0, 0.3], ids=["", "biases"])


def learn(target, dim=None, **settings) -> us.Recovery[Any]:
    settings = {"dim": dim or target.dim, "max_heads": 8, "rotary": True, **settings}
    return us.learn(hidden(target), us.learners.MultiHeadLearner(**settings))


def apart(found, target, distances):
    """Largest error of W_h(Δ), biases included, heads matched at Δ = 1, over their size."""
    ours, theirs = ([head.scores for head in model.heads] for model in (found, target))
    cost = [[np.linalg.norm(one.whole(1) - other.whole(1)) for other in theirs] for one in ours]
    pairs = match(np.array(cost), np.full(found.H, np.inf), np.full(target.H, np.inf))
    return max(
        np.linalg.norm(ours[g].whole(n) - theirs[h].whole(n)) / np.linalg.norm(theirs[h].whole(1))
        for _, g, h in pairs
        for n in distances
    )


def by_certificate(recovery, target):
    """Whether the target is within the certificate, which has no tolerance beside it."""
    return us.equivalent(recovery.model, target, rtol=0, errors=recovery.certificate.errors)


# -- what is promised


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("spread", "r", "given", "most"),
    [(0, 16, None, 1.2), (0, 4, 4, 1.3), (0, 4, None, 1.33),
     (0.3, 16, None, 1.15), (0.3, 4, 4, 1.3), (0.3, 4, None, 1.3)],
)  # fmt: skip
def test_nearly_as_many_queries_as_parameters(spread, r, given, most, trials, evidence):
    near, far, long, shares, d = [], [], [], [], 16
    for seed in range(trials(1, 40)):
        target = biased(4, d, r, seed, spread, base=BASES[seed % 3])
        oracle = Counted(hidden(target))
        learner = us.learners.MultiHeadLearner(
            d, 8, biases=bool(spread), rank=given, seed=seed, rotary=True
        )
        recovery = us.learn(oracle, learner)
        assert oracle.queries == recovery.queries
        assert recovery.evidence.passed
        assert recovery.queries - 32 <= learner.plan().at_most
        assert by_certificate(recovery, target).verdict == "equal"
        bound = us.theory.counts.rotary_heads(d, 4, r, biases=bool(spread))
        shares.append((oracle.queries - 32) / bound)
        near.append(apart(recovery.model, target, range(21)))
        far.append(apart(recovery.model, target, (100, 500, 2000)))
        long.append(longest_miss(recovery.model, target, seed))
    # the median of a few varies
    assert np.median(shares) <= most * (trials(1.04, 1) if spread else 1)
    assert max(near) <= 1e-8
    assert max(far) <= 1e-6
    assert max(long) <= 1e-7
    name = "4 rotary heads with biases" if spread else "4 rotary heads"
    evidence(
        f"{name}, d = {d}, r = {r}{'' if given is None else ' given'}",
        runs=len(near),
        queries=f"{np.median(shares):.3f} × the parameters, at most {max(shares):.3f}",
        W_0_to_20=f"{np.median(near):.1e}, at most {max(near):.1e}",
        W_to_2000=f"at most {max(far):.1e}",
        of_512_tokens=f"at most {max(long):.1e}",
    )


@pytest.mark.claimed
def test_twelve_heads_of_a_small_language_model_s_shape(evidence):
    target = biased(12, 384, 32, 0, 0.3)
    recovery = learn(target, biases=True, max_heads=16, rank=32)
    asked = recovery.queries - recovery.counts["check"]
    near = apart(recovery.model, target, range(21))
    assert by_certificate(recovery, target).verdict == "equal"
    assert near <= 1e-8
    evidence(
        "12 rotary heads with biases, d = 384, r = 32 given",
        queries=f"{asked:,}, {asked / us.theory.counts.rotary_heads(384, 12, 32, biases=True):.3f} "
        "× the parameters",
        W_0_to_20=near,
        W_to_2000=apart(recovery.model, target, (100, 500, 2000)),
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("biases", [False, True], ids=["", "biases"])
def test_the_certificate_holds(biases, trials, evidence):
    looseness, refused, count = [], 0, trials(1 + biases, 500)
    shapes = [(1, 8, 4), (3, 5, 2), (3, 6, 6), (3, 12, 4), (6, 6, 4)]
    for seed in range(count):
        H, d, r = shapes[seed % len(shapes)]
        spread = (0.1, 0.3, 1.0)[seed % 3] if biases else 0.0
        turning = (1.0, 0.5)[seed % (4 if biases else 3) == 0]
        target = biased(H, d, r, seed, spread, turning=turning)
        try:
            recovery = learn(target, biases=biases, seed=seed)
        except us.NotIdentifiable:
            refused += 1
            continue
        found = by_certificate(recovery, target)
        assert found.verdict == "equal", (H, d, r, seed)
        assert found.share is not None
        looseness.append(1 / found.share)
    assert refused <= (0.1 * count + trials(1, 0) if biases else 0)
    evidence(
        "rotary heads with biases, certificate" if biases else "rotary heads, certificate",
        refused=refused,
        trials=len(looseness),
        broken=0,
        looseness=f"{np.median(looseness):.0f}×, at least {min(looseness):.0f}×",
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("spread", [1, 2])
def test_large_biases_are_recovered_or_refused_by_name(spread, trials, evidence):
    """Of small heads, whose biases are as large as their keys and queries."""
    errors, refused, unnamed = [], 0, 0
    for seed in range(trials(1, 100)):
        target = biased(3, 6, 4, seed, spread)
        try:
            recovery = learn(target, biases=True, seed=seed)
        except (us.ModelMismatch, us.NotIdentifiable) as why:
            unnamed += "iases" not in str(why)
            refused += 1
            continue
        assert by_certificate(recovery, target).verdict == "equal", seed
        errors.append(apart(recovery.model, target, range(21)))
    assert not unnamed
    evidence(
        f"3 rotary heads, biases of spread {spread}, d = 6, r = 4",
        refused=refused,
        runs=len(errors),
        W_0_to_20=f"{np.median(errors):.1e}, at most {max(errors):.1e}",
    )


@pytest.mark.few(1)
@with_and_without
def test_frequencies_that_are_known(spread):
    target, biases = biased(3, 8, 4, 0, spread), bool(spread)
    for settings in ({"rotary": us.Rotary.of(1e4, 4)}, {"rotary": False, "rotary_base": 1e4}):
        model = learn(target, biases=biases, rank=4, **settings).model
        assert us.equivalent(model, target)
        folded = np.sort(model.frequencies, axis=1)[:, ::-1]
        assert np.array_equal(folded, target.frequencies)
    with pytest.raises(us.ModelMismatch, match=r"other frequencies.* without rotary_base"):
        learn(target, biases=biases, rank=4, rotary=us.Rotary.of(1.01e4, 4))


def test_the_plan_counts_what_positions_and_biases_take():
    settings: list[dict[str, Any]] = [
        {"rotary": False},
        {"rotary": True},
        {"rotary": True, "biases": True},
    ]
    plans = [us.learners.MultiHeadLearner(16, 4, rank=4, **more).plan() for more in settings]
    for plan, queries in zip(plans, (696, 760, 808), strict=True):
        assert f"{queries} for 4 of rank 4" in plan.formula
    assert plans[0].at_most < plans[1].at_most < plans[2].at_most


# -- special heads


SPECIAL: dict[str, Any] = {
    "keys alone": lambda t: {"q_bias": 0 * t.q_bias},
    "queries alone": lambda t: {"k_bias": 0 * t.k_bias},
    "neither": lambda t: {"k_bias": 0 * t.k_bias, "q_bias": 0 * t.q_bias},
    # two heads that share keys
    "groups": lambda t: {"K": row(t.K, t.K[0]), "k_bias": row(t.k_bias, t.k_bias[0])},
    "no positions": lambda t: {"frequencies": 0 * t.frequencies},
    "positions in part": lambda t: {"frequencies": t.frequencies * [1.0, 0.0]},
    "slow positions": lambda t: {"frequencies": np.tile([1.0, 1e-3], (3, 1))},
    "frequencies of their own": lambda t: {"frequencies": [[1.0, 0.1], [0.7, 0.2], [3.0, 0.0]]},
    "equal values": lambda t: {"v": np.tile(t.v[:1], (3, 1))},
    "opposite values": lambda t: {"v": row(t.v, -t.v[0])},
    # W and −W, with biases of their own
    "opposite matrices": lambda t: {"K": row(t.K, t.K[0]), "Q": row(t.Q, -t.Q[0])},
    "ten times the scores": lambda t: {"K": 3 * t.K, "Q": 3 * t.Q},
}
# without biases heads of opposite scores are not told apart, and one may weigh all alike
PLAIN = {name: SPECIAL[name] for name in ("groups", "no positions", "frequencies of their own")}
PLAIN["a head without scores"] = lambda t: {"K": row(t.K, 0), "c": 2.5}


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("spread", "name"), [*((0.0, name) for name in PLAIN), *((0.3, name) for name in SPECIAL)]
)
def test_special_heads(spread, name):
    like = biased(3, 6, 4, 0, spread)
    target = changed(like, **(SPECIAL if spread else PLAIN)[name](like))
    # a constant is a bias of the answers, which is always looked for
    recovery = learn(target, biases=bool(spread))
    assert us.equivalent(recovery.model, target, rtol=1e-8)
    assert by_certificate(recovery, target).verdict == "equal"
    still = not np.any(target.frequencies)
    assert still == any("do not turn with distance" in note for note in recovery.notes)


def faint(like, seed):
    """A faint key bias of a plane without keys."""
    K, k_bias = np.array(like.K), np.array(like.k_bias)
    K[0, 2:], k_bias[0, 2:] = 0.0, (1e-7, 1e-8, 3e-9)[seed % 3] * np.array([1.0, -0.7])
    return changed(like, K=K, k_bias=k_bias)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["scores so large that fillers leak", "a faint key bias"])
def test_what_is_hard_to_read_is_within_bounds_or_refused(kind, trials):
    """Shifts are quadratic in a query token, and known far from b but roughly."""
    for seed in range(trials(1, 60)):
        if kind == "a faint key bias":
            target = faint(biased(3, 6, 4, seed, 0.3), seed)
        else:
            like = biased(3, 8, 6, seed, 0.3)
            target = changed(like, K=(50.0, 200.0)[seed % 2] * like.K)
        try:
            recovery = learn(target, biases=True, seed=seed)
        except (us.ModelMismatch, us.NotIdentifiable):
            continue
        assert by_certificate(recovery, target).verdict == "equal", seed


@pytest.mark.parametrize("rank", [None, 1])
def test_heads_of_rank_one(rank):
    rng = np.random.default_rng(0)
    K, Q = rng.standard_normal((2, 2, 2, 5))
    k_bias, q_bias = 0.3 * rng.standard_normal((2, 2, 2))
    K[:, 1], k_bias[:, 1] = 0.0, 0.0
    target = us.RotaryHeads(
        K, Q, rng.standard_normal((2, 5)), us.Rotary([0.0]), k_bias=k_bias, q_bias=q_bias, c=0.1
    )
    recovery = learn(target, biases=True, rank=rank)
    assert by_certificate(recovery, target).verdict == "equal"


def test_heads_of_equal_scores_are_one():
    like = biased(3, 6, 4, 0, 0.3)
    same = {name: row(like.arrays()[name], like.arrays()[name][0]) for name in
            ("K", "Q", "k_bias", "q_bias")}  # fmt: skip
    target = changed(like, **same)
    model = learn(target, biases=True).model
    assert model.H == 2
    assert us.equivalent(model, target, rtol=1e-8)


def test_no_heads_one_that_weighs_alike_and_one_without_positions():
    for biases in (False, True):
        model = learn(lambda X: np.full(len(X), 0.5), 4, biases=biases).model
        assert us.equivalent(model, us.RotaryHeads.of([], 4, c=0.5))
    none = np.zeros((1, 2, 4))
    alike = us.RotaryHeads(none, none, [[1.0, 2.0, 3.0, 4.0]], us.Rotary([1.0]), c=0.3)
    assert us.equivalent(learn(alike, biases=True).model, alike)
    turning = several_rotary(2, 6, 4, 0)
    plain = us.SingleHead(np.diag([1.0, 2.0, -1.0, 0.0, 0.0, 0.0]), np.ones(6))
    model = learn(lambda X: turning(X) + plain(X), 6).model
    assert model.H == 3
    X = np.random.default_rng(0).standard_normal((5, 9, 6))
    assert np.allclose(model(X), turning(X) + plain(X), rtol=0, atol=1e-8)


def test_scores_too_small_to_switch_a_gate_are_bounded_by_what_would_show():
    like = biased(1, 6, 4, 0, 0.3)
    tiny = {name: 1e-12 * array for name, array in like.arrays().items() if name[0] in "KQkq"}
    target = changed(like, **tiny)
    recovery = learn(target, biases=True)
    assert recovery.model.H == 1
    [scores] = [head.scores for head in target.heads]
    largest = max(float(np.linalg.norm(scores.whole(n))) for n in range(21))
    assert 0 < largest < recovery.certificate.errors["W"] < 1e-9
    assert "heads that differ by less may have been merged" in recovery.certificate.assumes[0]


@pytest.mark.few(1)
@with_and_without
def test_coarse_answers_are_recovered_within_bounds_or_refused(spread):
    target, biases = biased(3, 6, 4, 0, spread), bool(spread)
    recovery = learn(us.oracles.rounded(target, 8), 6, biases=biases)
    assert by_certificate(recovery, target).verdict == "equal"
    assert biases or us.equivalent(recovery.model, target, rtol=1e-8)
    for like, d in ((target, 6), (biased(2, 12, 4, 0, spread), 12)):
        try:
            recovery = learn(lambda X, like=like: like(X).astype(np.float32), d, biases=biases)
        except us.NotIdentifiable as why:
            assert not biases or "float32" in str(why)  # noqa: PT017
            continue
        assert by_certificate(recovery, like).verdict == "equal"


# -- what is refused

REFUSED: dict[str, tuple[float, Any, str]] = {
    "a head without scores": (
        0.3,
        lambda t: {"K": row(t.K, 0), "k_bias": row(t.k_bias, 0)},
        "scores all tokens alike",
    ),
    "a head that sees positions alone": (
        0.3,
        lambda t: {"K": row(t.K, 0)},
        "by its key bias alone",
    ),
    "opposite scores": (
        0.3,
        lambda t: {
            "K": row(t.K, t.K[0]),
            "Q": row(t.Q, -t.Q[0]),
            "k_bias": row(t.k_bias, t.k_bias[0]),
            "q_bias": row(t.q_bias, -t.q_bias[0]),
        },
        "two score oppositely",
    ),
    "keys of lower rank": (
        0.3,
        lambda t: {"K": t.K * np.array([1.0, 1.0, 1.0, 0.0])[:, None]},
        "a lower rank than their planes",
    ),
    "opposite scores, no biases": (
        0.0,
        lambda t: {"K": row(t.K, t.K[0]), "Q": row(t.Q, -t.Q[0])},
        "No token shuts all heads but one",
    ),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", REFUSED)
def test_heads_that_are_refused_by_name(name):
    spread, changes, named = REFUSED[name]
    like = biased(3 if spread else 2, 6, 4, 0, spread)
    with pytest.raises((us.ModelMismatch, us.NotIdentifiable), match=named):
        learn(changed(like, **changes(like)), biases=bool(spread))


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "name",
    # a plain head beside them is one more head
    [name for name in nearly_rotary(several_rotary(1, 4, 2, 0).heads[0]) if "plain" not in name],
)
@with_and_without
def test_impostors_are_refused(spread, name, trials, evidence):
    count = trials(1, 20)
    for seed in range(count):
        d = 4 + 2 * (seed % 2)
        heads = biased(2, d, 2 + 2 * (seed % 2), seed, spread, scale=2.0).heads
        each = [nearly_rotary(head)[name] for head in heads]
        c = 0.3 if spread else 0.0

        def target(X, each=each, c=c):
            return sum(one(X) for one in each) + c

        with pytest.raises((us.ModelMismatch, us.NotIdentifiable)):
            learn(target, d, max_heads=2, biases=bool(spread), seed=seed)
    kind = "rotary heads with biases" if spread else "rotary heads"
    evidence(f"impostor of {kind}: {name}", refused=f"{count} of {count}")


@with_and_without
def test_more_heads_than_dimensions_are_refused_by_name(spread):
    with pytest.raises(us.NotIdentifiable, match="5 heads with scores, more than its 3 dim") as e:
        learn(biased(5, 3, 2, 0, spread), biases=bool(spread))
    assert len(e.value.determined["v"]) == 5


def test_a_rank_and_a_number_of_heads_that_are_too_low_are_refused_by_name():
    with pytest.raises(us.ModelMismatch, match="the rank is above the one given"):
        learn(biased(3, 6, 4, 0, 0.3), biases=True, rank=2)
    with pytest.raises(us.ModelMismatch, match=r"more heads \(raise max_heads\)"):
        learn(biased(3, 6, 4, 0, 0.3), biases=True, max_heads=1)


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-6])
def test_query_biases_that_were_not_announced_are_named_at_once(size):
    like = biased(2, 6, 4, 0, 0.3)
    oracle = Counted(changed(like, c=0.0, q_bias=size * like.q_bias))
    with pytest.raises(us.ModelMismatch, match=r"as where queries have biases.*biases=True"):
        us.learn(oracle, us.learners.MultiHeadLearner(6, 2, rotary=True))
    assert oracle.queries == 5


def test_clipped_answers_are_not_put_down_to_query_biases():
    target = several_rotary(2, 6, 4, 0)
    with pytest.raises(us.ModelMismatch) as refusal:
        learn(lambda X: np.clip(target(X), -5, 5), 6, max_heads=2)
    assert "queries have biases" not in str(refusal.value)


def test_key_biases_that_were_not_announced_are_named():
    like = biased(2, 6, 4, 0, 0.3)
    with pytest.raises(us.ModelMismatch, match="have biases: then biases=True"):
        learn(changed(like, c=0.0, q_bias=0 * like.q_bias), max_heads=2)
