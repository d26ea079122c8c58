"""`--sampler`, `--eps` and `--delta`: what is asked of the user's own distribution."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from unsoftmax.campaign import learn
from unsoftmax.cli.console import Refusal
from unsoftmax.cli.targets import imported
from unsoftmax.validate.function_bound import Sampling


def sampling_options(name: str | None, eps: float | None, delta: float | None) -> dict[str, Any]:
    """Return the arguments of `learn` that the options mean; none without ``--sampler``."""
    given = {key: value for key, value in {"eps": eps, "delta": delta}.items() if value is not None}
    if name is None:
        if given:
            raise Refusal("--eps and --delta go with --sampler module:function.")
        return {}
    drawn = imported(name)

    def sampler(rng: np.random.Generator) -> Any:
        try:
            return drawn(rng)
        except Exception as error:
            raise Refusal(f"--sampler {name} failed: {type(error).__name__}: {error}") from error

    return {"sampler": sampler, **given}


def samples_of(options: Mapping[str, Any]) -> int:
    """Say how many samples are asked."""
    if not options:
        return 0
    try:
        return Sampling(**{**_defaults(), **options}).samples
    except ValueError as error:
        raise Refusal(str(error)) from error


def _defaults() -> dict[str, float]:
    parameters = inspect.signature(learn).parameters
    return {name: parameters[name].default for name in ("eps", "delta")}
