# %% [markdown]
# # Theorem 6.1: τ against error
#
# Answers are within ±τ of the head's and lie as they like. Theorem 6.1 of arXiv 2601.16873 promises
# ‖Ŵ − W‖_F ≤ 80·W̄²·d·τ/μ for ‖W‖_F ≤ W̄, ‖v‖ ≤ 1 and no entry of v but 0 below μ. Here the oracle
# `us.oracles.within` lies on purpose, by τ every time: with signs by a hash of the question, and
# with the signs that push the recovery furthest, which it may choose since it knows the truth.
# Beside the paper's probes stand balanced ones, tokens up to norm 1 as well. The certificate
# knows the answers, τ and W̄, and nothing else; the worst signs come up to it.
#
# ![Error of W by τ: promised, certified, and got](curve_6_1.png)

# %%
import numpy as np
from matplotlib.figure import Figure

import unsoftmax as us

DIM, NORM, MARGIN = 8, 2.0, 0.1
TAUS = np.logspace(-10, -3, 8)


# %%
def head(seed):
    """‖W‖_F = 2, ‖v‖ = 1, and no entry of v below μ."""
    rng = np.random.default_rng(seed)
    W, v = rng.standard_normal((DIM, DIM)), rng.uniform(0.3, 1, DIM) * rng.choice([-1, 1], DIM)
    return us.SingleHead(NORM * W / np.linalg.norm(W), v / np.linalg.norm(v))


def recovered(learner, seed, tau, worst):
    """The error of W, and what is certified, from answers that are all off by τ."""
    target = head(seed)
    assert np.min(np.abs(target.v)) >= MARGIN
    lies = us.oracles.within(target, tau, worst=target if worst else None, seed=seed)
    recovery = us.learn(lambda X: lies(X), learner)
    return np.linalg.norm(recovery.model.W - target.W), recovery.certificate.W_error


def curve(make, worst):
    """Largest error and bound over some heads, for every τ."""
    runs = [[recovered(make(tau, s), s, tau, worst) for s in range(5)] for tau in TAUS]
    return np.max(runs, axis=1).T


# %%
def paper(tau, seed):
    """The theorem's own probes."""
    return us.learners.ApproximateHead(
        DIM, tau, norm_bound=NORM, radius=1.0, probes="paper", seed=seed
    )


def balanced(tau, seed):
    """Balanced probes, tokens no longer than the theorem's."""
    return us.learners.ApproximateHead(DIM, tau, norm_bound=NORM, radius=1.0, seed=seed)


promised = [us.theory.error_for(tau, DIM, MARGIN, NORM)[1] for tau in TAUS]
paper_worst, paper_bound = curve(paper, worst=True)
paper_hash, _ = curve(paper, worst=False)
ours_worst, _ = curve(balanced, worst=True)

# %%
figure = Figure(figsize=(7, 5), layout="constrained")
axis = figure.subplots()
axis.loglog(TAUS, promised, "--", color="0.5", label="promised by the theorem")
axis.loglog(TAUS, paper_bound, color="#f2d0c4", linewidth=7, label="certified, paper's probes")
axis.loglog(TAUS, paper_worst, "o-", color="#c8553d", label="paper's probes, worst signs")
axis.loglog(TAUS, paper_hash, "s-", color="#e9a178", label="paper's probes, signs by hash")
axis.loglog(TAUS, ours_worst, "o-", color="#1b6ca8", label="balanced probes, worst signs")
axis.set(
    xlabel="τ, by which every answer is off",
    ylabel="error of W (Frobenius norm), the largest of 5 heads",
    title=f"ApproximateHead, d = {DIM}, ‖W‖ = {NORM:g}, ‖v‖ = 1, tokens up to norm 1",
)
axis.grid(alpha=0.3)
axis.legend()
figure.savefig("curve_6_1.png", dpi=100)

# %%
slope = np.polyfit(np.log(TAUS), np.log(paper_worst), 1)[0]
within = np.all(paper_worst <= paper_bound) and np.all(paper_bound <= promised)
print(f"error ∝ τ^{slope:.2f}")
print(f"error ≤ certificate ≤ promise for every τ: {bool(within)}")
