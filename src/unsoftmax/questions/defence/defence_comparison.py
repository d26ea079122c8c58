"""What came out: every defence with its cost and its attacks, and the recommendation they support.

The recommendation is computed from the rows alone: of the defences that leave the best attack an
error of the parameters *and* of the function of at least the threshold, the one of least loss.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, ClassVar

from unsoftmax.campaign.notebook import shown
from unsoftmax.models.files import SavedResult

DEFENCE_FILE = "defence.json"


@dataclass(frozen=True, slots=True)
class AttackOutcome:
    """What one attack came to.

    Attributes
    ----------
    name : str
        The learner, and how it asked.
    queries : int
        Queries that the defended service answered it or refused, counted there.
    error, function_error : float
        Of what it found: relative error of the parameters (W), and error on legitimate sequences
        in spreads of their answers; ``inf`` where it found nothing.
    refusal : str or None
        The error that it ended with, by name and message; None where it found a model.
    determined : tuple of str
        The parameters that it found all the same; ``function_error`` is of those.
    against : str
        The stronger defence that it was tried on, whose answers a client can make by itself; "" if
        on this one.
    """

    name: str
    queries: int
    error: float
    function_error: float
    refusal: str | None = None
    determined: tuple[str, ...] = ()
    against: str = ""


@dataclass(frozen=True, slots=True)
class DefenceTrial:
    """One defence at one strength: what it costs, and what it is worth.

    Attributes
    ----------
    kind : str
        Such as "rounding with a norm cap".
    strength : float
        In the unit that ``unit`` names.
    unit : str
        What the strength is measured in.
    beside : str
        The other measure of a combination, which its strengths share; "" for none.
    words, brief : str
        What an owner would do; and the same for a table.
    loss : float or None
        Loss of utility, in spreads of the answers; None for a budget where nobody said how many
        queries legitimate clients need.
    refused : float or None
        Share of legitimate sequences that get no answer.
    attacks : tuple of AttackOutcome
        Every attack that was tried.
    """

    kind: str
    strength: float
    unit: str
    beside: str
    words: str
    brief: str
    loss: float | None
    refused: float | None
    attacks: tuple[AttackOutcome, ...]

    @property
    def best(self) -> AttackOutcome | None:
        """The attack of the smallest error of the parameters; None where all were refused."""
        found = [attack for attack in self.attacks if attack.refusal is None]
        return min(found, key=lambda attack: attack.error, default=None)

    @property
    def telling(self) -> tuple[AttackOutcome, ...]:
        """The attack of the smallest error of the parameters, and that of the function's."""
        errors = ("error", "function_error")
        best = [min(self.attacks, key=attrgetter(name), default=None) for name in errors]
        return tuple(dict.fromkeys(attack for attack in best if attack is not None))

    @property
    def error(self) -> float:
        """Smallest relative error of the parameters (W); 1 is that of knowing nothing."""
        return min([1.0, *(attack.error for attack in self.attacks)])

    @property
    def function_error(self) -> float:
        """Smallest error of the function, in spreads; 1 is that of the mean answer."""
        return min([1.0, *(attack.function_error for attack in self.attacks)])

    @property
    def queries(self) -> int:
        """Queries of the best attack, or of the longest where all were refused."""
        return self.best.queries if self.best else max((a.queries for a in self.attacks), default=0)

    @property
    def measured(self) -> bool:
        """Whether some attack came to an estimate; that all refuse is no evidence of safety."""
        return any(attack.refusal is None and not attack.against for attack in self.attacks)

    def cells(self, number: Callable[[float], str]) -> tuple[str, ...]:
        """Say what it is, its loss, what is refused and both errors; "?" where that is not known.

        ``number`` says an error.
        """
        errors = [] if self.best is None else [self.error, self.function_error]
        return (
            self.brief,
            "?" if self.loss is None else f"{self.loss:.2%}",
            "?" if self.refused is None else f"{self.refused:.1%}",
            *(map(number, errors) if errors else "??"),
        )

    def holds(self, threshold: float) -> bool:
        """Whether the best attack was left errors of at least this, in parameters and function."""
        return self.measured and min(self.error, self.function_error) >= threshold

    def affordable(self, most_loss: float) -> bool:
        """Whether it is known to cost no more than this."""
        return self.loss is not None and self.loss <= most_loss


def at_least_as_strong(trial: DefenceTrial, stronger: Sequence[DefenceTrial]) -> DefenceTrial:
    """Add attacks on stronger defences, of those that come closer than any that was tried.

    An attacker who is better off where more noise is added, say, adds it.
    """
    more = tuple(
        replace(attack, name=f"{attack.name}, as against {other.brief}", against=other.brief)
        for other in stronger
        for attack in other.telling
        if attack.error < trial.error or attack.function_error < trial.function_error
    )
    return replace(trial, attacks=(*trial.attacks, *more))


def spread_of(words: str, outcomes: Sequence[AttackOutcome], seed: int) -> str:
    """Say what the best attack on a defence came to with several seeds, from ``seed`` on."""
    errors = ([a.error for a in outcomes], [a.function_error for a in outcomes])
    ranges = [f"{min(some):.1%} to {max(some):.1%}" for some in errors]
    last = seed + len(outcomes) - 1
    return (
        f'"{words[0].upper()}{words[1:]}": with seeds {seed} to {last} the best attack '
        f"({outcomes[0].name}) leaves {ranges[0]} of the parameters and {ranges[1]} of the "
        f"function; the least counts. Other attacks ran once, with seed {seed}."
    )


def recommended(
    trials: Sequence[DefenceTrial], threshold: float, most_loss: float
) -> DefenceTrial | None:
    """Return the defence of least loss that holds; None where none does at a loss that low."""
    usable = [trial for trial in trials if trial.affordable(most_loss) and trial.holds(threshold)]
    return min(usable, key=lambda trial: (trial.loss, trial.refused), default=None)


def recommendation(trials: Sequence[DefenceTrial], threshold: float, most_loss: float) -> str:
    """Say in a sentence or two what the trials recommend."""
    best, least, count = recommended(trials, threshold, most_loss), f"{threshold:.0%}", len(trials)
    unknown = sum(not trial.measured for trial in trials)
    if best is not None:
        withheld = f", and {best.refused:.1%} of legitimate sequences are refused"
        unjudged = f" ({unknown} of them could not be judged)" * bool(unknown)
        return (
            f"Recommended: {best.words}. Cost: answers change by {best.loss:.1%} of their standard "
            f"deviation{withheld * bool(best.refused)}. Effect: the best attack "
            f"({best.queries:,} queries) still gets the parameters to {best.error:.1%} and the "
            f"function to {best.function_error:.1%}. It is the cheapest of {count} defences "
            f"tried{unjudged} that leave errors of {least} or more."
        )
    if unknown == count:
        return f"None of {unknown} defences tried could be judged: every attack was refused."
    said = f"None of {count} defences tried leaves"
    if unknown:
        said = f"{unknown} of {count} defences tried could not be judged, because every attack was "
        said += f"refused. None of the other {count - unknown} leaves"
    said += f" the best attack errors of {least} or more at a loss of utility of {most_loss:.0%}"
    usable = [trial for trial in trials if trial.affordable(most_loss) and trial.measured]
    if not usable:
        return f"{said} or less."
    most = max(usable, key=lambda trial: min(trial.error, trial.function_error))
    errors = most.error, most.function_error
    left = [f"{share:.1%}" if share >= 0.001 else "less than 0.1%" for share in errors]
    return (
        f'{said} or less. Of those that were judged, "{most.words}" leaves the largest errors: '
        f"{left[0]} of the parameters and {left[1]} of the function."
    )


def left_out(trials: Sequence[DefenceTrial], threshold: float) -> tuple[str, ...]:
    """Say what the recommendation leaves out, and why."""
    notes = []
    if held := [trial for trial in trials if trial.loss is None and trial.holds(threshold)]:
        best = max(held, key=lambda trial: trial.strength)
        notes.append(
            f'"{best.words.capitalize()}" leaves the best attack errors of {best.error:.1%} and '
            f"{best.function_error:.1%}, if no client needs more queries and clients do not pool "
            "their answers. To compare its loss, say how many queries a legitimate client needs."
        )
    if unknown := sum(not trial.measured for trial in trials):
        notes.append(
            f"Against {unknown} of the defences every attack was refused. That is no evidence that "
            "they hold, so none of them is recommended."
        )
    return tuple(notes)


@dataclass(frozen=True, slots=True)
class DefenceComparison(SavedResult):
    """The result of `unsoftmax.defend`.

    Attributes
    ----------
    target : str
        The model that was defended and attacked: the target's own, or as it was recovered.
    dim, parameters : int
        Dimension of a token, and free parameters of the model.
    paid : int
        Queries paid to the target, all to recover it undefended; 0 where it is a model.
    spread, longest : float
        Standard deviation of undefended answers to legitimate sequences, and their longest token.
    attack_queries : int
        Most queries of an attack.
    threshold, most_loss : float
        Error that a defence is to leave the best attack, and the most that it may cost.
    trials : tuple of DefenceTrial
        Every defence at every strength.
    recommendation : str
        The sentence that the trials support.
    notes : tuple of str
        What a user should know.
    """

    file_name: ClassVar[str] = DEFENCE_FILE

    target: str
    dim: int
    parameters: int
    paid: int
    spread: float
    longest: float
    attack_queries: int
    threshold: float
    most_loss: float
    trials: tuple[DefenceTrial, ...]
    recommendation: str
    notes: tuple[str, ...] = ()

    @property
    def recommended(self) -> DefenceTrial | None:
        """The defence that the recommendation names; None where it names none."""
        return recommended(self.trials, self.threshold, self.most_loss)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON; an error that is infinite becomes null."""
        content = SavedResult.to_json(self)
        for trial, known in zip(content["trials"], self.trials, strict=True):
            trial["error"], trial["function_error"] = known.error, known.function_error
            trial["best"] = None if known.best is None else known.best.name
        return content

    def _repr_html_(self) -> str:
        rows = [
            (
                trial.brief,
                "not known" if trial.loss is None else f"{trial.loss:.2%}",
                f"{trial.error:.1e}",
                f"{trial.function_error:.1e}",
                f"{trial.queries:,}",
            )
            for trial in self.trials
        ]
        heads = ("defence", "loss", "error of the parameters", "of the function", "queries")
        return shown(self.recommendation, rows, self.notes, heads=heads)
