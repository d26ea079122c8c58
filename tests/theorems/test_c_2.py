"""Appendix C: heads in orthogonal subspaces; Proposition C.2 and the conjecture after it.

The learner sees answers alone; subspaces and heads are drawn here.
"""

import re

import numpy as np
import pytest

import unsoftmax as us
from tests.networks import covered
from tests.questions.services import served
from tests.truth import Counted, relative
from unsoftmax.learners.orthogonal_heads.subspace_search import aligned

SIZES = [(2, 2), (4, 4, 4, 4), (8, 8, 8, 8), (2, 4, 6)]
OrthogonalHeads = us.learners.OrthogonalHeads


def drawn(sizes, seed, dim=None, W_sizes=None, v_sizes=None, ranks=None):
    """A target with a head in each of some random orthogonal subspaces, and their bases."""
    rng = np.random.default_rng([*sizes, seed])
    used, H = sum(sizes), len(sizes)
    Q = np.linalg.qr(rng.standard_normal(((dim or used),) * 2))[0][:, :used]
    parts = np.split(Q, np.cumsum(sizes)[:-1], axis=1)
    W = [E @ rng.standard_normal((k, k)) @ E.T for E, k in zip(parts, sizes, strict=True)]
    v = [E @ rng.standard_normal(k) for E, k in zip(parts, sizes, strict=True)]
    if ranks is not None:
        for h, (E, k, r) in enumerate(zip(parts, sizes, ranks, strict=True)):
            W[h] = E @ rng.standard_normal((k, r)) @ rng.standard_normal((r, k)) @ E.T
    W_sizes = np.ones(H) if W_sizes is None else W_sizes
    v_sizes = np.ones(H) if v_sizes is None else v_sizes
    return us.MultiHead(W_sizes[:, None, None] * W, v_sizes[:, None] * v), parts


def beside(model, target):
    """Pairs of heads, found and true, matched by their values."""
    assert model.H == target.H
    nearest = [int(np.argmin(np.linalg.norm(model.v - v, axis=1))) for v in target.v]
    assert len(set(nearest)) == target.H
    return [(model.heads[g], head) for g, head in zip(nearest, target.heads, strict=True)]


def worst(model, target):
    """Largest relative error of a W_h and of a v_h."""
    pairs = beside(model, target)
    return (
        max(relative(found.W, true.W) for found, true in pairs),
        max(relative(found.v, true.v) for found, true in pairs),
    )


def turned(model, parts):
    """The largest sine between a true subspace and the one that a found head spans."""
    found, sines = [], []
    for head in model.heads:
        both = np.column_stack([head.W / np.linalg.norm(head.W), head.v / np.linalg.norm(head.v)])
        u, singular, _ = np.linalg.svd(both)
        found.append(u[:, : np.count_nonzero(singular > 1e-6)])
    assert sorted(E.shape[1] for E in found) == sorted(E.shape[1] for E in parts)
    for E in parts:
        alike = [F for F in found if F.shape == E.shape]
        sines.append(min(np.linalg.norm(E - F @ (F.T @ E), 2) for F in alike))
    return max(sines)


def share(recovery, target):
    """The largest share of its bound that an error takes."""
    errors = recovery.certificate.errors
    return max(
        float(np.linalg.norm(getattr(found, name) - getattr(true, name))) / errors[name]
        for found, true in beside(recovery.model, target)
        for name in "Wv"
    )


def missed(recovery, target, rng, count=48):
    """The largest miss of fresh sequences, each over the larger of 1e-7 and what the bounds allow.

    Three to six tokens, logits of every head in turn moderate.
    """
    errors, worst = recovery.certificate.errors, 0.0
    for n in range(count):
        x = rng.standard_normal((3 + n % 4, target.dim)) / np.sqrt(target.dim)
        logits = x[:-1] @ (target.W[n % target.H] @ x[-1])
        if not np.any(logits):
            continue
        X = np.sqrt((0.5, 2.0, 6.0)[n % 3] / np.sqrt(np.mean(logits**2))) * x
        longest, away = np.linalg.norm(X, axis=1).max(), np.linalg.norm(X - X[-1], axis=1).max()
        moved = min(1.0, errors["W"] * np.linalg.norm(X[-1]) * away)
        allowed = moved * np.ptp(target.v @ X.T, axis=1).sum() + longest * target.H * errors["v"]
        size = longest * np.linalg.norm(target.v, axis=1).sum()
        difference = abs(target(X[None])[0] - recovery.model(X[None])[0])
        worst = max(worst, difference / max(1e-7 * size, allowed))
    return worst


# -- subspaces given: Proposition C.2


@pytest.mark.parametrize("sizes", [*SIZES, (1, 1, 1), (5,), (1,)])
def test_with_subspaces_heads_cost_as_much_as_they_have_parameters(trials, evidence, sizes):
    runs, errors = trials(3, 200), []
    queries = sum(k + k * k for k in sizes)
    for seed in range(runs):
        target, parts = drawn(sizes, seed, dim=sum(sizes) + seed % 3)
        learner, oracle = OrthogonalHeads(target.dim, parts, seed=seed), Counted(target)
        recovery = us.learn(oracle, learner)
        again = recovery.counts.get("again", 0)
        assert learner.plan().queries == queries
        assert oracle.queries == queries + 32 + again
        assert again <= 2 * sum(sizes)
        assert share(recovery, target) <= 1
        errors.append(worst(recovery.model, target))
    W, v = np.max(errors, axis=0)
    assert max(W, v) < 1e-9
    evidence(
        f"Proposition C.2, subspaces given, d_h = {', '.join(map(str, sizes))}",
        runs=runs,
        queries=queries,
        W_error=W,
        v_error=v,
    )


# -- subspaces unknown: the conjecture


@pytest.mark.few(2)
@pytest.mark.parametrize("tokens", ["few", "all"])
@pytest.mark.parametrize("sizes", SIZES)
def test_subspaces_are_found_from_values(trials, evidence, sizes, tokens):
    """Ten seeds of each, at most 1e-8."""
    runs = trials(1, 10)
    errors, angles, shares, asked, d = [], [], [], [], sum(sizes)
    for seed in range(runs):
        target, parts = drawn(sizes, seed)
        oracle = Counted(target)
        recovery = us.learn(oracle, OrthogonalHeads(d, tokens=tokens, seed=seed))
        angles.append(turned(recovery.model, parts))
        errors.append(worst(recovery.model, target))
        shares.append(share(recovery, target))
        asked.append(oracle.queries - recovery.counts.get("again", 0) - 32)
        [note] = recovery.notes
        assert note.startswith(f"{len(sizes)} subspaces of dimension ")
        assert "singular values" in note
    # a scale, Σ v_h, A(b) of every token, the heads
    per_token, fixed = d * (d + 1), 34 + d + sum(k * k for k in sizes)
    for count in asked:
        used, left = divmod(count - fixed, per_token)
        assert left == 0
        assert used == d if tokens == "all" else max(sizes) < used <= max(sizes) + 3
    W, v = np.max(errors, axis=0)
    assert max(W, v) <= 1e-8
    assert max(angles) <= 1e-8
    assert max(shares) <= 1
    evidence(
        f"Appendix C, subspaces found, tokens={tokens}, d_h = {', '.join(map(str, sizes))}",
        runs=runs,
        queries=max(asked),
        W_error=W,
        v_error=v,
    )


def test_certificates_hold(trials, evidence):
    """Heads of many sizes and shapes; what is not recovered is refused by name."""
    rng = np.random.default_rng(7)
    shapes = [(2, 2), (1, 3), (2, 4, 6), (3, 3, 3), (1, 1, 1), (1, 2, 3)]
    runs = trials(6, 1000)

    def share_at(seed):
        sizes = shapes[seed % len(shapes)]
        spread = (0, 1.5, 3)[seed % 3]  # decades around a size of their own
        W_sizes, v_sizes = 10.0 ** (
            rng.uniform(-4, 4, (2, 1)) + spread / 2 * rng.uniform(-1, 1, (2, len(sizes)))
        )
        target, _ = drawn(sizes, seed, sum(sizes) + seed % 2, W_sizes, v_sizes)
        recovery = us.learn(target, OrthogonalHeads(target.dim, seed=seed))
        assert recovery.evidence.passed
        return share(recovery, target)

    claim = "OrthogonalHeads: errors within the certificate, sizes over 1e±4, spread over 3 decades"
    refused = covered(claim, runs, share_at, evidence, (us.ModelMismatch, us.NotIdentifiable))
    assert len(refused) <= runs // 20 + trials(1, 0)


@pytest.mark.parametrize(
    ("sizes", "ranks"),
    [
        ((2, 2, 2, 2), (1, 1, 1, 1)),
        ((3, 3, 3), (1, 1, 1)),
        ((2, 3, 4, 1), (1, 3, 1, 1)),
        ((4, 4), (1, 2)),
        ((3,), (1,)),
    ],
)
def test_heads_of_rank_one(trials, evidence, sizes, ranks):
    """A(b) shows each of them as two lines, that only go together in their proportion."""
    runs, errors, shares, refused = trials(2, 200), [], [], 0
    for seed in range(runs):
        target, _ = drawn(sizes, seed, sum(sizes) + seed % 3, ranks=ranks)
        learner = OrthogonalHeads(target.dim, tokens="all" if seed % 2 else "few", seed=seed)
        try:
            recovery = us.learn(target, learner)
        except us.ModelMismatch:
            refused += 1
            continue
        errors.append(worst(recovery.model, target))
        shares.append(share(recovery, target))
    assert max(shares) <= 1
    assert np.median(errors) < 1e-11
    assert refused <= runs // 50 + trials(1, 0)
    evidence(
        f"Appendix C, subspaces found, d_h = {', '.join(map(str, sizes))}, "
        f"ranks {', '.join(map(str, ranks))}",
        runs=runs,
        refused=refused,
        median_error=np.median(errors),
        largest_error=np.max(errors),
        largest_share=max(shares),
    )


def test_bounds_are_not_far_from_errors(trials, evidence):
    """What is known of subspaces is read off what A(b) leaves over, pair by pair."""
    bounds, times = [], []
    for seed in range(trials(4, 500)):
        target, _ = drawn((2, 3, 4), seed)
        recovery = us.learn(target, OrthogonalHeads(9, seed=seed))
        largest = max(
            np.linalg.norm(true.W - found.W) for found, true in beside(recovery.model, target)
        )
        bounds.append(recovery.certificate.W_error / np.linalg.norm(target.W, axis=(1, 2)).max())
        times.append(recovery.certificate.W_error / largest)
    assert np.median(bounds) < 1e-9
    assert np.min(times) >= 1
    assert np.median(times) < 1e3
    evidence(
        "OrthogonalHeads, d_h = 2, 3, 4: the certificate of W",
        runs=len(times),
        median_bound=np.median(bounds),
        median_times_the_error=np.median(times),
    )


def test_query_tokens_louder_than_the_pilot():
    """A head of rank one that reads one direction 10³ times more than others."""
    rng = np.random.default_rng(0)
    k, q, v = rng.standard_normal((3, 5))
    q[1:] *= 1e-4
    target = us.MultiHead([np.outer(k, q)], [v])
    for seed in range(4):
        learner, oracle = OrthogonalHeads(5, tokens="all", seed=seed), Counted(target)
        recovery = us.learn(oracle, learner)
        assert share(recovery, target) <= 1
        assert max(worst(recovery.model, target)) < 1e-9
        assert oracle.queries <= learner.plan().at_most + 32


def test_a_head_that_reads_far_more_outside_than_within():
    """All logits of a query token are saturated at the scale of the others."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    k, v = (Q[:, :2] @ rng.standard_normal((2, 2))).T
    target = us.MultiHead([np.outer(k, 1e-3 * Q[:, 0] + Q[:, 2])], [v])
    learner, oracle = OrthogonalHeads(3), Counted(target)
    recovery = us.learn(oracle, learner)
    assert max(worst(recovery.model, target)) < 1e-9
    assert share(recovery, target) <= 1
    assert oracle.queries <= learner.plan().at_most + 32


def test_what_is_too_small_to_be_seen_is_in_the_bounds():
    unseen = 0
    for seed in range(8):
        target, _ = drawn((3, 1), seed, v_sizes=np.array([1.0, 1e-3]))
        try:
            recovery = us.learn(us.oracles.rounded(target, 6), OrthogonalHeads(4, seed=seed))
        except us.NotIdentifiable:
            continue
        if recovery.model.H == 1:
            unseen += 1
            assert recovery.certificate.v_error >= np.linalg.norm(target.v[1])
            assert any("would not be seen" in line for line in recovery.certificate.assumes)
    assert unseen


@pytest.mark.parametrize("biggest", [1e4, 1e11])
def test_a_head_that_is_hidden_beside_a_louder_one(biggest):
    """Scores far apart: the quiet one is found where the loud one is not."""
    target, _ = drawn((3, 4), 0, W_sizes=np.array([biggest**0.5, biggest**-0.5]))
    recovery = us.learn(target, OrthogonalHeads(7))
    assert max(worst(recovery.model, target)) < 1e-7
    assert share(recovery, target) <= 1
    assert len(recovery.notes) == 1 + (biggest > 1e10)


def test_three_times_weaker_ones_are_looked_for():
    """Two heads that hide one another, and one that has no scores at all."""
    target, _ = drawn((2, 3, 2), 0, W_sizes=np.array([3e5, 3e-6, 0.0]))
    recovery = us.learn(target, OrthogonalHeads(7))
    assert us.equivalent(recovery.model, target, rtol=1e-7)
    assert share(recovery, target) <= 1
    assert len(recovery.notes) == 3
    assert recovery.queries - 32 <= OrthogonalHeads(7).plan().at_most


def test_subspaces_that_do_not_fill_the_space():
    target, _ = drawn((2, 3), 1, dim=9)
    recovery = us.learn(target, OrthogonalHeads(9))
    assert max(worst(recovery.model, target)) < 1e-9


def test_scores_of_low_rank():
    """W_h's rows may read what neither its columns nor v_h span."""
    rng = np.random.default_rng(3)
    parts = np.split(np.linalg.qr(rng.standard_normal((9, 9)))[0], [4], axis=1)
    K, Q = ([E @ rng.standard_normal((E.shape[1], 2)) for E in parts] for _ in range(2))
    v = [E @ rng.standard_normal(E.shape[1]) for E in parts]
    target = us.MultiHead.from_factors([x.T for x in K], [x.T for x in Q], v)
    recovery = us.learn(target, OrthogonalHeads(9))
    assert max(worst(recovery.model, target)) < 1e-9
    assert share(recovery, target) <= 1


def test_heads_without_scores_are_one():
    """Proposition 7.1: all heads with W = 0 are one head."""
    target, _ = drawn((2, 3, 2), 2)
    W = target.W.copy()
    W[1:] = 0
    mean = us.canonical(us.MultiHead(W, target.v))
    recovery = us.learn(mean, OrthogonalHeads(7))
    assert mean.H == 2
    assert us.equivalent(recovery.model, mean)
    assert share(recovery, mean) <= 1
    nothing = us.MultiHead(0 * W, target.v)
    recovery = us.learn(nothing, OrthogonalHeads(7))
    assert us.equivalent(recovery.model, nothing, rtol=1e-14)
    assert recovery.model.H == 1


@pytest.mark.parametrize("d", [1, 2, 6])
def test_a_single_head_is_one_head(d):
    target, _ = drawn((d,), 0)
    recovery = us.learn(target, OrthogonalHeads(d))
    assert type(recovery.model) is us.MultiHead
    assert us.equivalent(recovery.model, target.heads[0])


def test_targets_in_float32():
    """Coarse answers: a larger scale, a wider certificate, the same heads."""
    target, parts = drawn((3, 4), 0)
    for given in (None, parts):
        recovery = us.learn(served(target, np.float32), OrthogonalHeads(7, given))
        assert max(worst(recovery.model, target)) < 1e-4
        assert share(recovery, target) <= 1
        assert "float32" in recovery.notes[0]


# -- refused


@pytest.mark.parametrize("tokens", ["few", "all"])
def test_heads_in_any_position_are_refused(tokens):
    rng = np.random.default_rng(0)
    for d in (2, 3, 6):
        target = us.MultiHead(rng.standard_normal((2, d, d)), rng.standard_normal((2, d)))
        with pytest.raises(us.ModelMismatch, match="orthogonal subspaces"):
            us.learn(target, OrthogonalHeads(d, tokens=tokens))


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("name", "Wv")
@pytest.mark.parametrize("size", [1e-1, 1e-3, 1e-6, 1e-9])
def test_a_violation_however_small_is_refused(given, name, size):
    target, parts = drawn((3, 4), 0)
    arrays = {key: target.arrays()[key] for key in "Wv"}
    rng = np.random.default_rng(1)
    arrays[name] = arrays[name] + size * rng.standard_normal(arrays[name].shape)
    with pytest.raises(us.ModelMismatch, match="orthogonal subspaces"):
        us.learn(us.MultiHead(**arrays), OrthogonalHeads(7, parts if given else None))


VIOLATIONS = ["W leaves", "W enters", "v overlaps", "v in common", "bias", "one head more"]


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", VIOLATIONS)
def test_what_is_accepted_is_predicted(trials, evidence, kind):
    """Violations from 1e-1 to 1e-11: refused, or too small to be missed by fresh sequences."""
    rng = np.random.default_rng(VIOLATIONS.index(kind))
    runs, accepted, misses = trials(8, 300), 0, [0.0]
    for seed in range(runs):
        sizes = [(2, 2), (3, 3, 2), (2, 2, 2, 2)][seed % 3]
        ranks = [rng.integers(1, k + 1) for k in sizes]
        target, parts = drawn(sizes, seed, sum(sizes) + seed % 2, ranks=ranks)
        W, v, w, d = target.W.copy(), target.v.copy(), np.zeros_like(target.v), target.dim
        size = 10.0 ** rng.uniform(-11, -1)
        any_W, any_v = rng.standard_normal(W.shape) / d, rng.standard_normal(v.shape) / np.sqrt(d)
        if kind == "W leaves":
            W += size * any_W
        elif kind == "W enters":
            W += size * np.array([E @ E.T for E in parts]) @ any_W
        elif kind == "v overlaps":
            v += size * any_v
        elif kind == "v in common":
            v += size * any_v[0]
        elif kind == "bias":
            w += size * any_v
        else:
            W, v = np.concatenate([W, any_W[:1]]), np.concatenate([v, size * any_v[:1]])
            w = np.zeros_like(v)
        wrong = us.MultiHead(W, v, w)
        try:
            recovery = us.learn(wrong, OrthogonalHeads(d, tokens=("few", "all")[seed % 4 // 3]))
        except (us.ModelMismatch, us.NotIdentifiable):
            continue
        accepted += 1
        misses.append(missed(recovery, wrong, rng))
    assert max(misses) <= 1
    assert accepted < runs // 2
    evidence(
        f"OrthogonalHeads, {kind} by 1e-1 … 1e-11",
        runs=runs,
        accepted=accepted,
        largest_miss_of_what_is_allowed=max(misses),
    )


@pytest.mark.parametrize("kind", ["float32", "rounded", "noisy"])
def test_coarse_answers_are_refused_by_name_or_within_the_bounds(trials, evidence, kind):
    rng = np.random.default_rng(len(kind))
    runs, said, shares, misses = trials(3, 300), list[str](), [0.0], [0.0]
    for seed in range(runs):
        sizes = [(2, 2), (3, 1), (2, 3, 2), (1, 1, 4)][seed % 4]
        target, _ = drawn(sizes, seed, sum(sizes) + seed % 2)
        if kind == "float32":
            oracle = served(target, np.float32)
        elif kind == "rounded":
            oracle = us.oracles.rounded(target, (12, 8, 6)[seed % 3])
        else:
            oracle = _relative_noise(target, 10.0 ** rng.uniform(-12, -6), seed)
        try:
            recovery = us.learn(oracle, OrthogonalHeads(target.dim, seed=seed))
        except us.UnsoftmaxError as refusal:
            said.append(str(refusal))
            continue
        assert recovery.evidence.passed
        shares.append(share(recovery, target))
        misses.append(missed(recovery, target, rng))
    assert max(shares) <= 1
    assert max(misses) <= 1
    names = ("coarse", "beside other heads", "out of the answers' reach")
    assert all(any(name in line for name in names) for line in said)
    assert len(said) < runs // 2
    evidence(
        f"OrthogonalHeads, {kind} answers", runs=runs, refused=len(said), largest_share=max(shares)
    )


def _relative_noise(target, size, seed):
    rng = np.random.default_rng(seed)

    def answer(X):
        y = target(X)
        return y * (1 + size * rng.standard_normal(y.shape))

    return answer


@pytest.mark.parametrize("seed", [12, 13, 15, 19])
def test_a_hidden_head_does_not_pass_for_one_without_scores(seed):
    """Six decimals show that Σ v_h has one part more, but not whether it has scores."""
    W_sizes, v_sizes = np.array([1.0, 1, 1, 1, 1e-2]), np.array([1e3, 5e3, 1e2, 4e2, 5.0])
    target, _ = drawn((3, 4, 1, 4, 1), seed, 15, W_sizes, v_sizes, ranks=(2, 2, 1, 2, 1))
    with pytest.raises(us.NotIdentifiable, match="whether its W is 0"):
        us.learn(us.oracles.rounded(target, 6), OrthogonalHeads(15, tokens="all", seed=seed))


def test_refusals_do_not_contradict_themselves():
    """A miss that is named is more than what is expected, and the words fit a sum of heads."""
    target, _ = drawn((3, 4), 0)
    for size in 10.0 ** np.arange(-8.0, 0):
        W = target.W + size * np.random.default_rng(1).standard_normal(target.W.shape)
        with pytest.raises(us.ModelMismatch) as refused:
            us.learn(us.MultiHead(W, target.v), OrthogonalHeads(7))
        said = r"by ([\d.e+-]+) of their size where ([\d.e+-]+) is expected"
        found = re.search(said, str(refused.value))
        assert found is not None
        assert float(found[1]) >= float(found[2])

    def bent(X):
        return np.tanh(target(X))

    with pytest.raises(us.ModelMismatch, match="a sum of heads") as refused:
        us.learn(bent, OrthogonalHeads(7))
    assert "MultiHeadLearner" in str(refused.value)


@pytest.mark.parametrize("given", [False, True])
def test_biases_are_refused(given):
    target, parts = drawn((3, 4), 0)
    learner = OrthogonalHeads(7, parts if given else None)
    for biased in (
        us.MultiHead(target.W, target.v, c=1.0),
        us.MultiHead(target.W, target.v, target.v),
    ):
        with pytest.raises(us.ModelMismatch):
            us.learn(biased, learner)


@pytest.mark.parametrize("given", [False, True])
def test_without_values_there_is_nothing_to_weigh(given):
    target, parts = drawn((3, 4), 0)
    with pytest.raises(us.NotIdentifiable, match="v = 0"):
        us.learn(us.MultiHead(target.W, 0 * target.v), OrthogonalHeads(7, parts if given else None))


def test_a_head_without_values():
    """In a subspace that is named its W is free; where none is named it does not exist."""
    target, parts = drawn((3, 4), 0)
    one = us.MultiHead(target.W, [target.v[0], 0 * target.v[1]])
    with pytest.raises(us.NotIdentifiable, match="subspace 2") as refused:
        us.learn(one, OrthogonalHeads(7, parts))
    E = np.hstack(parts)
    np.testing.assert_allclose(E @ refused.value.determined["v"], one.v[0], atol=1e-14)
    recovery = us.learn(one, OrthogonalHeads(7))
    assert us.equivalent(recovery.model, us.canonical(one))


def test_heads_too_different_to_be_seen_are_refused_or_right(trials):
    """Scores spread over 12 decades: refused by name, or within the certificate."""
    rng = np.random.default_rng(0)
    right = 0
    for seed in range(trials(4, 500)):
        target, _ = drawn((2, 2, 3), seed, W_sizes=10.0 ** rng.uniform(-6, 6, 3))
        try:
            recovery = us.learn(target, OrthogonalHeads(7, seed=seed))
        except us.UnsoftmaxError:
            continue
        if recovery.model.H == 3:
            assert share(recovery, target) <= 1
        assert us.equivalent(recovery.model, target, rtol=1e-5).verdict != "different"
        right += 1
    assert right


# -- subspaces that are turned


@pytest.mark.parametrize("noise", [0.0, 1e-10])
def test_turned_subspaces_are_found_again(trials, noise):
    shares = []
    for seed in range(trials(4, 500)):
        rng = np.random.default_rng(seed)
        sizes, d, count = (2, 1, 3, 2), 8, 4
        Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
        right = np.split(Q, np.cumsum(sizes)[:-1], axis=1)
        inner = [rng.standard_normal((count, k, k)) for k in sizes]
        inner[-1] = np.zeros((count, 2, 2))  # what is in no subspace
        A = sum(E @ (x + x.transpose(0, 2, 1)) @ E.T for E, x in zip(right, inner, strict=True))
        N = noise * rng.standard_normal((count, d, d))
        A = A + N + N.transpose(0, 2, 1)
        turn = 1e-4 * rng.standard_normal((d, d))
        bases = np.split(np.linalg.qr(Q + Q @ (turn - turn.T))[0], np.cumsum(sizes)[:-1], axis=1)
        for _ in range(3):
            found = aligned(bases, A, 1e-8)
            bases = found.bases
        off = np.array([[np.linalg.norm(E.T @ F) for F in right] for E in bases])
        np.fill_diagonal(off, 0.0)
        assert off.max() < 1e-14 + 1e3 * noise
        shares.append(np.max(off / (found.errors + 1e-14)))
    assert max(shares) <= 1


@pytest.mark.parametrize("seed", range(5))
def test_a_head_without_scores_in_a_subspace_that_is_named(seed):
    target, parts = drawn((2, 2), seed)
    W = target.W.copy()
    W[0] = 0
    target = us.MultiHead(W, target.v)
    recovery = us.learn(target, OrthogonalHeads(4, np.stack(parts)))
    assert us.equivalent(recovery.model, target, atol=1e-9).verdict == "equal"
    assert share(recovery, target) <= 1
