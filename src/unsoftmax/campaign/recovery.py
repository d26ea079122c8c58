"""What a run ends with: the model, how sure it is, and what it cost."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic

from unsoftmax.models import load
from unsoftmax.models.files import replace_file
from unsoftmax.protocol import Certificate, Evidence, FunctionBound, M_co

FORMAT_VERSION = 1

MODEL_FILE = "model.safetensors"
RECOVERY_FILE = "recovery.json"


@dataclass(frozen=True, slots=True)
class Recovery(Generic[M_co]):
    """The result of `unsoftmax.learn`.

    Attributes
    ----------
    model : Model
        The recovered model: call it, save it, read its parameters.
    certificate : Certificate
        How far its parameters can be from the true ones, without knowing those.
    evidence : Evidence
        How well it predicts answers that it was not learned from.
    counts : dict of str to int
        Queries by purpose: "data", "pilot" (data that also set a scale), "again", "check",
        and, where they occurred, "fingerprint", "failed" and "in doubt".
    notes : tuple of str
        What a user should know.
    learner : dict
        The learner's settings.
    function : FunctionBound or None
        How far the model is from the target on the distribution of ``learn(sampler=…)``.
    """

    model: M_co
    certificate: Certificate
    evidence: Evidence
    counts: Mapping[str, int]
    notes: tuple[str, ...]
    learner: Mapping[str, Any]
    function: FunctionBound | None = None

    @property
    def queries(self) -> int:
        """Queries paid over the ledger's life."""
        return sum(self.counts.values())

    def to_json(self) -> dict[str, Any]:
        """Return everything but the model as JSON; a bound that is infinite becomes null."""
        return {
            "format_version": FORMAT_VERSION,
            "learner": dict(self.learner),
            "queries": self.queries,
            "counts": dict(self.counts),
            "certificate": {
                "errors": {name: _finite(e) for name, e in self.certificate.errors.items()},
                "assumes": list(self.certificate.assumes),
            },
            "evidence": {
                "queries": self.evidence.queries,
                "max_residual": _finite(self.evidence.max_residual),
                "rms_residual": _finite(self.evidence.rms_residual),
                "tolerance": _finite(self.evidence.tolerance),
                "passed": self.evidence.passed,
            },
            **({} if self.function is None else {"function": asdict(self.function)}),
            "notes": list(self.notes),
        }

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``model.safetensors`` and ``recovery.json`` into a folder, making it."""
        target = Path(folder)
        if target.exists() and not target.is_dir():
            raise FileExistsError(f"{target} is a file: name a folder to write into.")
        target.mkdir(parents=True, exist_ok=True)
        self.model.save(str(target / MODEL_FILE))
        text = json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n"
        replace_file(target / RECOVERY_FILE, text.encode())

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Recovery[Any]:
        """Read back what `save` wrote.

        Raises
        ------
        FileNotFoundError
            The folder lacks ``model.safetensors`` or ``recovery.json``.
        ValueError
            One of them is damaged, or newer than this program.
        """
        path = Path(folder) / RECOVERY_FILE
        if not path.is_file():
            raise FileNotFoundError(f"There is no {RECOVERY_FILE} in {folder}.")
        model = load(path.with_name(MODEL_FILE))
        try:
            return cls._of(model, json.loads(path.read_text(encoding="utf-8")))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{path} cannot be read: {error!r}.") from error

    @classmethod
    def _of(cls, model: Any, content: Mapping[str, Any]) -> Recovery[Any]:
        """Undo `to_json`."""
        if content["format_version"] > FORMAT_VERSION:
            raise ValueError(
                f"format {content['format_version']} is newer than this program: upgrade unsoftmax"
            )
        bounds, seen = content["certificate"], content["evidence"]
        return cls(
            model,
            Certificate(
                {name: _or_else(math.inf, error) for name, error in bounds["errors"].items()},
                tuple(bounds["assumes"]),
            ),
            Evidence(
                queries=int(seen["queries"]),
                max_residual=_or_else(math.nan, seen["max_residual"]),
                rms_residual=_or_else(math.nan, seen["rms_residual"]),
                tolerance=_or_else(math.nan, seen["tolerance"]),
                passed=bool(seen["passed"]),
            ),
            counts={str(name): int(count) for name, count in content["counts"].items()},
            notes=tuple(content["notes"]),
            learner=dict(content["learner"]),
        )

    def _repr_html_(self) -> str:
        rows = {
            "queries": f"{self.queries:,}",
            **{f"‖Δ{name}‖ ≤": f"{e:.1e}" for name, e in self.certificate.errors.items()},
            "hold-out": f"{self.evidence.max_residual:.1e} of {self.evidence.tolerance:.1e} passed"
            if self.evidence.passed
            else "not checked",
        }
        cells = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows.items())
        return f"<table><caption>{self.model!r}</caption>{cells}</table>"


def _or_else(missing: float, number: float | None) -> float:
    return missing if number is None else float(number)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
