"""Options of every command that asks a target, and what its errors say about them.

Those that name the user's own distribution, `--sampler`, `--eps` and `--delta`, are here too.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

import unsoftmax as us
from unsoftmax.campaign.limits import Retries
from unsoftmax.cli import targets
from unsoftmax.cli.commands import spelled_out
from unsoftmax.cli.console import Refusal
from unsoftmax.cli.options import in_flags
from unsoftmax.errors import DimensionRefused, LedgerMismatch, Terminated, UnsoftmaxError

if TYPE_CHECKING:
    from numpy.random import Generator

    from unsoftmax.protocol import Oracle

KeptIn = Annotated[
    Path | None, typer.Option(help="SQLite file that keeps every answer [OUT/ledger.sqlite].")
]
MostTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Most tokens of a sequence that the target takes. [default: any]"),
]
Radius = Annotated[
    float | None,
    typer.Option(help="Norm of the longest token that the target takes. [default: found out]"),
]


@dataclass(frozen=True, slots=True)
class Asked:
    """How a target is asked; each field is an option."""

    budget: Annotated[
        int | None, typer.Option(min=0, help="Most queries over the ledger's life.")
    ] = None
    token_budget: Annotated[
        int | None, typer.Option(min=0, help="Most tokens over the ledger's life.")
    ] = None
    batch: Annotated[int | None, typer.Option(min=1, help="Sequences per call.")] = None
    workers: Annotated[int, typer.Option(min=1, help="Calls at the same time, 2,048 at most.")] = 1
    coordinate: Annotated[
        int | None, typer.Option(help="One coordinate of a target that answers with vectors.")
    ] = None
    answers: Annotated[
        str,
        typer.Option(help="numbers, or probabilities: a softmax or sigmoid, read as log-ratios."),
    ] = targets.NUMBERS
    auth: Annotated[
        str | None,
        typer.Option(help="Environment variable with an endpoint's Authorization header."),
    ] = None
    request: Annotated[
        str | None,
        typer.Option(
            help="JSON for an endpoint of no protocol: {X} stands for a batch of sequences, {x} "
            "for one."
        ),
    ] = None
    answer: Annotated[
        str | None,
        typer.Option(help="Where the numbers are in its answer, such as outputs.0.hidden."),
    ] = None
    per_minute: Annotated[
        float | None, typer.Option(min=0.001, help="Most requests a minute. [default: any]")
    ] = None
    retries: Annotated[
        int, typer.Option(min=1, help="Tries for a sequence that is not answered.")
    ] = Retries().tries
    longest_wait: Annotated[
        float,
        typer.Option(min=0, help="Seconds for which a target may put off a call (RetryLater)."),
    ] = Retries().longest_wait_s
    timeout: Annotated[
        float | None,
        typer.Option(min=0.001, help="Seconds after which a call has failed. [default: none]"),
    ] = None

    def limit(self) -> us.Budget:
        """Return the budget."""
        return us.Budget(self.budget, self.token_budget)

    def oracle(self, target: str) -> Oracle:
        """Return the oracle that TARGET names."""
        endpoint = {"auth": self.auth, "request": self.request, "answer": self.answer}
        told: dict[str, Any] = {name: value for name, value in endpoint.items() if value}
        if self.per_minute is not None:
            told["limits"] = us.oracles.HttpLimits(per_minute=self.per_minute)
        if told.keys() - {"auth"} and "://" not in target:
            raise Refusal(
                "--request, --answer and --per-minute are for endpoints, and the target is none: "
                "give its http(s):// URL, or leave them out."
            )
        return targets.resolve(target, self.coordinate, self.answers, told)

    def arguments(self) -> dict[str, Any]:
        """Return these options as `learn`, `audit`, `defend` and `verify` take them."""
        return {
            "budget": self.limit(),
            "batch": self.batch,
            "workers": self.workers,
            "retries": us.Retries(tries=self.retries, longest_wait_s=self.longest_wait),
            "timeout": self.timeout,
        }


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the fields of `Asked` as options, in place of its parameter ``asked``."""
    hints = get_type_hints(Asked, include_extras=True)
    options = {field.name: (hints[field.name], field.default) for field in fields(Asked)}
    return spelled_out(command, options, lambda values: {"asked": Asked(**values)}, "asked")


# What messages name by other words than those of a learner's settings.
_FLAGS = {
    "us.oracles.log_ratios": "--answers probabilities",
    "us.oracles.coordinate": "--coordinate",
    "longest_wait_s": "--longest-wait",
    "retries": "--retries",
    "batch": "--batch",
    "holdout": "--holdout",
    "timeout": "--timeout",
    "radius": "--radius",
    "most_tokens": "--most-tokens",
    "us.audit": "unsoftmax audit",
}


@contextmanager
def sentences(book: Path | None) -> Iterator[None]:
    """Say what settings that cannot be run and an interrupt mean on the command line."""
    try:
        yield
    except ValueError as error:  # it cannot be run with these settings
        raise Refusal(str(error)) from error
    except UnsoftmaxError as error:
        if isinstance(error, LedgerMismatch):
            error.add_note("Another --out or --ledger has a ledger of its own.")
        if isinstance(error, DimensionRefused):
            said = re.sub(r"\buse dim=(\d+)", r"use --dim \1", str(error))
            error.args = (said.replace("use that as dim.", "name it with --dim."),)
        if named := in_flags(str(error), _FLAGS):
            error.add_note(named)
        if error.__cause__ is not None:
            error.add_note("--debug shows the causes.")
        raise
    except (Exception, KeyboardInterrupt, Terminated) as end:
        if book is not None and book.exists() and not isinstance(end, Refusal):
            end.add_note(f"Every answer so far is in {book}. Run the same command to go on.")
        raise


def sampling_options(name: str | None, eps: float | None, delta: float | None) -> dict[str, Any]:
    """Return the arguments of `learn` that the options mean; none without ``--sampler``."""
    given = {key: value for key, value in {"eps": eps, "delta": delta}.items() if value is not None}
    if name is None:
        if given:
            raise Refusal("--eps and --delta go with --sampler module:function.")
        return {}
    drawn = targets.imported(name)

    def sampler(rng: Generator) -> Any:
        try:
            return drawn(rng)
        except Exception as error:
            raise Refusal(f"--sampler {name} failed: {type(error).__name__}: {error}") from error

    return {"sampler": sampler, **given}


def samples_of(options: Mapping[str, Any]) -> int:
    """Say how many samples are asked."""
    if not options:
        return 0
    from unsoftmax.validate.function_bound import Sampling

    parameters = inspect.signature(us.learn).parameters
    defaults = {name: parameters[name].default for name in ("eps", "delta")}
    try:
        return Sampling(**{**defaults, **options}).samples
    except ValueError as error:
        raise Refusal(str(error)) from error
