"""A ReLU network of one hidden layer from its values: about one query per parameter.

Target g(x) = Σ_j w_o[j]·relu(x·A_j + b_j) + c, asked at single tokens. This is the role of
A_FFN in Section 4.1 of arXiv 2601.16873, for which the paper takes Milli et al. 2019 (linearly
independent A_j) or Daniely and Granot 2023 (general position); the number m of neurons need
not be known. Queries: about m·d + 10m + 300 + m²d/2000, m(d+2) + 1 being the free parameters:
1.1 to 1.5 times these, and 2 times in the worst case, from 32 dimensions and 64 neurons up.

The mathematics: lifted to Y = (x, h), F(Y) = h·g(λx/h) is linear between hyperplanes through 0.
Half a great circle crosses each once; its kinks are found by bisecting with lines
(`relu.kinks`). The gradient's jumps across them are the neurons, J_k = ε_k a_k, and come from
one query per cell and direction (`relu.cells`). Cells that were thin are measured again where
they are fat (`relu.polish`), what fresh points miss is swept again (`relu.sweeps`).

Differences from the sources: (1) parallel rounds, float64 answers with errors that are
estimated; (2) neither linear independence nor general position is assumed: parallel neurons
merge, close ones are separated as far as the answers allow, and what is not is refused by
fresh points; (3) biases and no biases are one algorithm; (4) hold-out and certificate.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from unsoftmax.arrangement.cells import DOUBLE
from unsoftmax.arrangement.lift import Form, Written, ask
from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.compose import limited
from unsoftmax.learners.relu_network.merge import network_of
from unsoftmax.learners.relu_network.opening import Opened, fresh_points, open_network, strictness
from unsoftmax.learners.relu_network.sweeps import limit, recover
from unsoftmax.learners.settings import Configured, flag, whole
from unsoftmax.measure.precision import KAPPA, UNIT
from unsoftmax.models import ReluNetwork
from unsoftmax.probes import Array, Round, Singles
from unsoftmax.protocol import Answers, Certificate, Evidence, Found, Plan, Steps
from unsoftmax.theory import counts

# Where max_neurons is not given, a smooth target is refused once its kinks would be as many.
_NEURONS_PER_DIM, _NEURONS = 16, 1024
# The search takes 9 to 15 queries per neuron, sweeps of what is left repeat some of it.
_PER_NEURON, _OPENING, _TIMES = 64, 4096, 8
_ROUNDS = 6300  # nine searches of up to five circles, 120 rounds each and 20 around; often 60
# Fresh points were predicted to within the limit before; other ones may be predicted so much worse.
_HOLD_OUT = 5.0
_TELLING = 8  # fresh tokens see a neuron: each of the far ones in half of all cases
_DEVIATIONS = (
    6.0  # errors in the certificate are so many standard deviations: 4 were passed once in 60
)
# Roundoffs of the sum of all terms: nearly linear networks leave more than 4.
_ROUNDOFFS = 16.0


@dataclass(frozen=True, slots=True)
class ReluNetworkLearner(Configured):
    """Learn a two-layer ReLU network, the number of its neurons unknown, from its values.

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    biases : bool
        The network has biases b and c; without them it is asked a little less.
    max_neurons : int, optional
        More distinct neurons than this are refused; 16·dim + 1024 by default.
    polish : bool
        Measure every neuron once more where its cells are fat: as many queries again, errors
        of about 1e-13 instead of 1e-10.
    seed : int
        Decides circles and the hold-out: the same seed asks the same.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range, or not of its type.

    Notes
    -----
    *Queries*: about m·d + 10m + 300 + m²d/2000 for m neurons; `plan` gives numbers for
    ``max_neurons``, and what is never exceeded.
    *Determined up to* the function: neurons may be flipped, parallel ones are one, and what
    that leaves of the affine part takes up to two neurons more. *Certificate*:
    ``|ĝ(x) − g(x)|`` ≤ constant + slope·‖x‖ for every x. *Tokens* reach 10¹⁰ times the distance of
    a typical hyperplane; without biases norms of about 1, or 10¹² where answers are noisy.
    *Source*: Section 4.1 of arXiv 2601.16873, A_FFN; how is beyond it.

    Examples
    --------
    >>> import numpy as np, unsoftmax as us
    >>> rng = np.random.default_rng(0)
    >>> target = us.ReluNetwork(rng.standard_normal((4, 9)), np.ones(9), rng.standard_normal(9))
    >>> recovery = us.learn(target, us.learners.ReluNetworkLearner(4))
    >>> x = rng.standard_normal((5, 4))
    >>> bool(np.allclose(recovery.model(x), target(x), rtol=1e-9, atol=1e-9))
    True
    """

    dim: int
    biases: bool = True
    max_neurons: int | None = None
    polish: bool = False
    seed: int = 0

    revision: ClassVar[int] = 2

    def __post_init__(self) -> None:
        whole("dim", self.dim, 1)
        whole("seed", self.seed, 0)
        flag("biases", self.biases)
        flag("polish", self.polish)
        if self.max_neurons is not None:
            whole("max_neurons", self.max_neurons, 0)

    @property
    def _most(self) -> int:
        if self.max_neurons is not None:
            return int(self.max_neurons)
        return _NEURONS_PER_DIM * int(self.dim) + _NEURONS

    def plan(self) -> Plan:
        """Say what learning costs at most; what it takes is known only with the neurons."""
        m, free = self._most, counts.relu_network(int(self.dim), self._most, bool(self.biases))
        at_most = _TIMES * free + _PER_NEURON * m + _OPENING
        return Plan(
            queries=None,
            at_most=at_most,
            tokens=at_most,
            rounds=_ROUNDS,
            formula=f"{self._typical()}; refused beyond "
            f"{_TIMES}·{free} + {_PER_NEURON}·{m} + {_OPENING}",
        )

    def _typical(self) -> str:
        own = "10m + 300" if self.biases else "9m + 230"
        again = " + m(d+1)" if self.polish else ""
        formula = f"about m·d + {own} + m²d/2000{again} for m neurons"
        if not self.max_neurons:
            return formula
        d, m, biases = int(self.dim), int(self.max_neurons), bool(self.biases)
        queries = counts.relu_network_queries(d, m, biases, bool(self.polish))
        free = counts.relu_network(d, m, biases)
        parameters = "m(d+2) + 1" if biases else "m·d + m"
        return (
            f"{formula}, {queries:,} for {m:,}: {queries / free:.1f} times their "
            f"{parameters} = {free:,} parameters"
        )

    def steps(self, checks: int) -> Steps[ReluNetwork]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        most = self.plan().at_most
        error = ModelMismatch(
            f"More than {most} queries would be needed: the target has more neurons (raise "
            "max_neurons), or is no ReLU network of one hidden layer."
        )
        return (yield from limited(self._steps(checks), error, queries=most))

    def _steps(self, checks: int) -> Steps[ReluNetwork]:
        rng = np.random.default_rng(self.seed)
        opened = yield from open_network(int(self.dim), bool(self.biases), rng)
        if opened.constant is not None:
            form = Form.none(opened.lift.D)
            if self.biases:
                form.g0[-1] = opened.constant
        elif opened.lift.D == 1:
            opened, form = yield from _on_a_line(opened)
        else:
            form = yield from recover(opened, self._most, bool(self.polish), rng)
        if len(form.a) > self._most:
            raise ModelMismatch(
                f"The target has {len(form.a)} distinct neurons, more than the {self._most} of "
                "max_neurons."
            )
        return (yield from _concluded(opened, form, checks, rng))


def _on_a_line(opened: Opened) -> Generator[Round, Answers, tuple[Opened, Form]]:
    """Read a network of one dimension without biases from g(1) and g(−1)."""
    right, left = yield from ask(Written(opened.lift, np.array([[1.0], [-1.0]])), "both sides")
    size = float(max(abs(right), abs(left)))
    noise = replace(opened.noise, bars=DOUBLE * size, search=2 * DOUBLE * size, size=size)
    jump = float(right + left)
    error = np.sqrt(2) * noise.bars
    if abs(jump) <= 4 * noise.bars:
        return replace(opened, noise=noise), replace(
            Form.none(1), g0=np.array([-left]), g_error=error
        )
    form = Form(
        np.array([-left]), np.array([[abs(jump)]]), np.sign([jump]), np.array([error]), error
    )
    return replace(opened, noise=noise), form


def _concluded(
    opened: Opened, form: Form, checks: int, rng: np.random.Generator
) -> Steps[ReluNetwork]:
    """Ask the hold-out, and say how sure the network is."""
    lift, noise = opened.lift, opened.noise
    model = network_of(form, lift)
    x = fresh_points(lift, checks, rng)
    size = float(np.linalg.norm(form.g0) + np.linalg.norm(form.a, axis=1).sum())
    bound = _DEVIATIONS * float(form.g_error + np.sum(form.error)) + _ROUNDOFFS * UNIT * size
    rounding = _DEVIATIONS * (KAPPA * noise.bars) + KAPPA * UNIT * size
    evidence, widened = Evidence.of(checks, np.zeros(0), np.zeros(0)), 1.0
    if checks:
        [y] = yield [Singles(x, phase="hold-out", purpose="check")]
        if len(form.a) and checks >= _TELLING and not np.ptp(y):
            raise ModelMismatch(
                f"A neuron was found, but {checks} fresh tokens of all lengths are all answered by "
                f"{y[0]:g}: the target jumps (labels), or is no ReLU network."
            )
        height = _height(lift.biases, lift.length, x)
        truth, missed = y / height, (y - model(x)) / height
        rms = float(np.sqrt(np.mean(truth**2))) or 1.0
        over = float(np.max(np.abs(missed)) / (bound + rounding)) if bound + rounding else 0.0
        most = _HOLD_OUT * limit(noise, rms) / strictness(lift, x, len(form.a))
        if over > 1 and np.all(np.abs(missed) <= most * rms):
            widened = 2 * over
        allowed = np.minimum(widened * (bound + rounding) / rms, most)
        evidence = Evidence.of(checks, missed / rms, allowed)
        if not evidence.passed:
            raise ModelMismatch(
                f"The recovered network misses fresh answers by {evidence.max_residual:.1e} of "
                f"their size where {evidence.tolerance:.1e} is expected. The target is no ReLU "
                "network of one hidden layer, or has neurons too close to each other for "
                "these answers."
            )
    error = float(widened * bound)
    errors = {"constant": error, "slope": error / lift.length}
    if not lift.biases:
        errors = {"constant": 0.0, "slope": error}
    return Found(
        model,
        Certificate(errors, _assumed(opened, checks, widened)),
        evidence,
        _notes(opened, form, model),
    )


def _height(biases: bool, length: float, x: Array) -> Array:
    """Return ‖(x/λ, 1)‖, or ‖x‖ without biases: what errors grow with."""
    norm = np.linalg.norm(x, axis=1)
    return np.asarray(np.hypot(norm / length, 1.0) if biases else norm)


def _assumed(opened: Opened, checks: int, widened: float) -> tuple[str, ...]:
    noise = opened.noise
    return (
        "``|ĝ(x) − g(x)|`` ≤ constant + slope·‖x‖, for every x.",
        "The target is a ReLU network of one hidden layer, and all its neurons were found: what "
        "the hold-out tests, it cannot prove.",
        f"Answers are off by a standard deviation of {noise.bars:.1e} where they are as large as "
        f"{noise.size:.1e}, estimated from their second differences; six deviations are taken.",
        *(
            (f"The hold-out was missed by more than that: {widened:.3g} times as much is assumed.",)
            if widened > 1
            else ()
        ),
        *(() if checks else ("Nothing was checked.",)),
    )


def _notes(opened: Opened, form: Form, model: ReluNetwork) -> tuple[str, ...]:
    K, m, noise = len(form.a), model.A.shape[1], opened.noise
    determined = (
        f"{K} hyperplanes, the gradient's jumps across them, and one affine part are determined; "
        "neurons only up to flips, and parallel ones are one."
    )
    extra = f" {m - K} neurons more carry the linear part." if m > K else ""
    coarse: tuple[str, ...] = ()
    if noise.bars > 1e-14 * noise.size > 0:
        coarse = (
            f"Answers are precise to about {noise.bars / noise.size:.0e} of their size, and so is "
            "the network at best.",
        )
    return (determined + extra, *coarse)
