"""What a run ends with: a model, how sure it is and what it cost; or why it was refused.

Both are kept as files. A refused run keeps what its answers do determine.
"""

from __future__ import annotations

import base64
import html
import importlib.metadata
import io
import json
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable, missing_extra
from unsoftmax.models import load
from unsoftmax.models.files import read, read_json, replace_file, write
from unsoftmax.probes import Array
from unsoftmax.protocol import Certificate, Course, Evidence, FunctionBound, M_co

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT_VERSION = 1

MODEL_FILE = "model.safetensors"
RECOVERY_FILE = "recovery.json"


def versions() -> dict[str, str]:
    """Return the versions of what computes a result."""
    named = {name: importlib.metadata.version(name) for name in ("unsoftmax", "numpy", "scipy")}
    return {**named, "python": platform.python_version()}


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
    course : Course or None
        When the answers came; no part of the result, which is the same at any speed.
    versions : dict of str to str
        What computed it.
    """

    model: M_co
    certificate: Certificate
    evidence: Evidence
    counts: Mapping[str, int]
    notes: tuple[str, ...]
    learner: Mapping[str, Any]
    function: FunctionBound | None = None
    course: Course | None = field(default=None, compare=False)
    versions: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def queries(self) -> int:
        """Queries paid over the ledger's life."""
        return sum(self.counts.values())

    def to_json(self) -> dict[str, Any]:
        """Return the result, but for the model, as JSON; a bound that is infinite becomes null.

        The same answers give the same; `save` adds when they came, and what computed it.
        """
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
                "residuals": [[_finite(x) for x in pair] for pair in self.evidence.residuals],
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
        course = {} if self.course is None else {"course": self.course.to_json()}
        content = {**self.to_json(), **course, "versions": dict(self.versions)}
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
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
        return read_json(path, FORMAT_VERSION, lambda content: cls._of(model, content))

    @classmethod
    def _of(cls, model: Any, content: Mapping[str, Any]) -> Recovery[Any]:
        """Undo `to_json`."""
        bounds, seen = content["certificate"], content["evidence"]
        return cls(
            model,
            Certificate(
                {name: _bound(error) for name, error in bounds["errors"].items()},
                tuple(bounds["assumes"]),
            ),
            Evidence(
                queries=int(seen["queries"]),
                max_residual=_or_else(math.nan, seen["max_residual"]),
                rms_residual=_or_else(math.nan, seen["rms_residual"]),
                tolerance=_or_else(math.nan, seen["tolerance"]),
                passed=bool(seen["passed"]),
                residuals=tuple(
                    (_or_else(math.inf, missed), _or_else(math.inf, allowed))
                    for missed, allowed in seen.get("residuals", ())
                ),
            ),
            counts={str(name): int(count) for name, count in content["counts"].items()},
            notes=tuple(content["notes"]),
            learner=dict(content["learner"]),
            function=FunctionBound(**content["function"]) if "function" in content else None,
            course=Course.of_json(content["course"]) if "course" in content else None,
            versions={str(k): str(v) for k, v in content.get("versions", {}).items()},
        )

    def plot(self) -> Figure:
        """Draw W and its spectrum, the certificate, the hold-out, and how the run went.

        Returns
        -------
        matplotlib.figure.Figure
            Shown by a notebook; ``.savefig(path)`` writes it.

        Raises
        ------
        ImportError
            Without the ``report`` extra.
        """
        try:
            from unsoftmax.figures.panel import arranged
            from unsoftmax.figures.run_panels import recovery_panels
        except ModuleNotFoundError as error:
            raise missing_extra("matplotlib", "report") from error
        panels = recovery_panels(self.model, self.certificate, self.evidence, self.course)
        return arranged(panels, f"{self.model!r}, recovered with {self.queries:,} queries")

    def _repr_html_(self) -> str:
        rows = {
            "queries": f"{self.queries:,}",
            **{f"‖Δ{name}‖ ≤": f"{e:.1e}" for name, e in self.certificate.errors.items()},
            "hold-out": f"{self.evidence.max_residual:.1e} of {self.evidence.tolerance:.1e} passed"
            if self.evidence.passed
            else "not checked",
        }
        cells = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{value}</td></tr>" for name, value in rows.items()
        )
        table = f"<table><caption>{html.escape(repr(self.model))}</caption>{cells}</table>"
        try:
            figure = self.plot()
        except ImportError:
            return table
        from unsoftmax.figures.panel import write_png

        picture = io.BytesIO()
        write_png(figure, picture)
        code = base64.b64encode(picture.getvalue()).decode()
        return (
            f'{table}<img style="max-width:100%" src="data:image/png;base64,{code}" '
            f'alt="{html.escape(repr(self.model))}: the figures of recovery.plot()">'
        )


def _bound(error: object) -> float:
    if error is None:
        return math.inf
    if not isinstance(error, (int, float)) or not error >= 0:
        raise ValueError(f"a bound of {error!r}")
    return float(error)


def _or_else(missing: float, number: float | None) -> float:
    return missing if number is None else float(number)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


REFUSAL_FORMAT = 1
REFUSAL_FILE = "refusal.json"
DETERMINED_FILE = "determined.safetensors"


@dataclass(frozen=True, slots=True)
class RefusedRun:
    """A refusal of `unsoftmax.learn`, as it is kept.

    Attributes
    ----------
    kind : str
        "NotIdentifiable", or "ModelMismatch" and what derives from it.
    reason : str
        The name of the refusal, as in ``docs/refusals.md``; "" where it has none.
    message : str
        What was refused, and what to do.
    determined : dict of str to array
        What the answers do determine; of a model, its arrays, as ``network.A``.
    learner : dict
        The learner's settings.
    course : Course
        When the answers came.
    versions : dict of str to str
        What computed it.
    """

    kind: str
    reason: str
    message: str
    determined: Mapping[str, Array]
    learner: Mapping[str, Any]
    course: Course
    versions: Mapping[str, str]

    @classmethod
    def of(
        cls, error: NotIdentifiable | ModelMismatch, learner: Mapping[str, Any], course: Course
    ) -> RefusedRun:
        """Keep what an error says."""
        kind, arrays = type(error).__name__, dict(_arrays(error.determined))
        return cls(kind, error.reason, str(error), arrays, learner, course, versions())

    def to_json(self) -> dict[str, Any]:
        """Return everything but the arrays as JSON."""
        return {
            "format_version": REFUSAL_FORMAT,
            "kind": self.kind,
            "reason": self.reason,
            "message": self.message,
            "determined": {name: list(array.shape) for name, array in self.determined.items()},
            "learner": dict(self.learner),
            "course": self.course.to_json(),
            "versions": dict(self.versions),
        }

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``refusal.json``, and ``determined.safetensors`` where there are arrays."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        forget(place)
        if self.determined:
            write(place / DETERMINED_FILE, "Determined", self.determined)
        text = json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n"
        replace_file(place / REFUSAL_FILE, text.encode())

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> RefusedRun:
        """Read back what `save` wrote.

        Raises
        ------
        FileNotFoundError
            The folder lacks ``refusal.json``, or the arrays that it names.
        ValueError
            A file is damaged, or newer than this program.
        """
        path = Path(folder) / REFUSAL_FILE

        def undone(content: Mapping[str, Any]) -> RefusedRun:
            named = content["determined"]
            return cls(
                str(content["kind"]),
                str(content.get("reason", "")),  # files of earlier programs have none
                str(content["message"]),
                read(path.with_name(DETERMINED_FILE))[1] if named else {},
                dict(content["learner"]),
                Course.of_json(content["course"]),
                {str(name): str(number) for name, number in content["versions"].items()},
            )

        return read_json(path, REFUSAL_FORMAT, undone)


def forget(folder: str | os.PathLike[str]) -> None:
    """Delete an earlier refusal: the run that was refused has gone on, or another one has ended."""
    for name in (REFUSAL_FILE, DETERMINED_FILE):
        (Path(folder) / name).unlink(missing_ok=True)


def _arrays(determined: Mapping[str, Any]) -> list[tuple[str, Array]]:
    """Return arrays and numbers by name, and the arrays of models."""
    found: list[tuple[str, Array]] = []
    for name, value in determined.items():
        if hasattr(value, "arrays"):
            found += [(f"{name}.{part}", array) for part, array in value.arrays().items()]
        elif isinstance(value, (int, float, np.ndarray, np.generic)):
            found.append((name, np.asarray(value, dtype=np.float64)))
    return found
