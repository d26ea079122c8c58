"""What a run ends with: a model, how sure it is and what it cost; or why it was refused.

Both are kept as files. A refused run keeps what its answers do determine.
"""

from __future__ import annotations

import base64
import html
import importlib.metadata
import io
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic

import numpy as np

from unsoftmax.campaign.notebook import shown
from unsoftmax.errors import ModelMismatch, NotIdentifiable, missing_extra
from unsoftmax.models import load
from unsoftmax.models.files import SavedResult, as_json, of_json, read, read_json, write, write_json
from unsoftmax.probes import Array
from unsoftmax.protocol import Certificate, Course, Evidence, FunctionBound, M_co

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT_VERSION = 1

MODEL_FILE = "model.safetensors"
RECOVERY_FILE = "recovery.json"


# It looks through folders, for as long as a small target is learned.
_version = cache(importlib.metadata.version)


def versions() -> dict[str, str]:
    """Return the versions of what computes a result."""
    named = {name: _version(name) for name in ("unsoftmax", "numpy", "scipy")}
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
        said = {
            "learner": self.learner,
            "queries": self.queries,
            "counts": self.counts,
            "certificate": self.certificate,
            "evidence": self.evidence,
            **({} if self.function is None else {"function": self.function}),
            "notes": self.notes,
        }
        return {"format_version": FORMAT_VERSION, **as_json(said)}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``model.safetensors`` and ``recovery.json`` into a folder, making it."""
        target = Path(folder)
        if target.exists() and not target.is_dir():
            raise FileExistsError(f"{target} is a file: name a folder to write into.")
        target.mkdir(parents=True, exist_ok=True)
        self.model.save(str(target / MODEL_FILE))
        course = {} if self.course is None else {"course": as_json(self.course)}
        content = {**self.to_json(), **course, "versions": dict(self.versions)}
        write_json(target / RECOVERY_FILE, content)

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
        found: Recovery[Any] = of_json(cls, {**content, "model": model})
        named = ("max_residual", "rms_residual", "tolerance")
        unknown: dict[str, Any] = {
            name: math.nan for name in named if content["evidence"][name] is None
        }
        return replace(found, evidence=replace(found.evidence, **unknown))

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
        seen, bounds = self.evidence, self.certificate.errors
        checked = f"{seen.max_residual:.1e} of {seen.tolerance:.1e} passed"
        rows = [
            ("queries", f"{self.queries:,}"),
            *((f"‖Δ{name}‖ ≤", f"{error:.1e}") for name, error in bounds.items()),
            ("hold-out", checked if seen.passed else "not checked"),
        ]
        table = shown(repr(self.model), rows)
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


REFUSAL_FILE = "refusal.json"
DETERMINED_FILE = "determined.safetensors"


@dataclass(frozen=True, slots=True)
class RefusedRun(SavedResult):
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

    file_name: ClassVar[str] = REFUSAL_FILE

    @classmethod
    def of(
        cls, error: NotIdentifiable | ModelMismatch, learner: Mapping[str, Any], course: Course
    ) -> RefusedRun:
        """Keep what an error says."""
        kind, arrays = type(error).__name__, dict(_arrays(error.determined))
        return cls(kind, error.reason, str(error), arrays, learner, course, versions())

    def to_json(self) -> dict[str, Any]:
        """Return everything but the arrays as JSON."""
        shapes = {name: list(array.shape) for name, array in self.determined.items()}
        return {**SavedResult.to_json(self), "determined": shapes}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``refusal.json``, and ``determined.safetensors`` where there are arrays."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        forget(place)
        if self.determined:
            write(place / DETERMINED_FILE, "Determined", self.determined)
        SavedResult.save(self, place)

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
            named, earlier = (
                content["determined"],
                {"reason": ""},
            )  # which earlier programs left out
            found: RefusedRun = of_json(cls, {**earlier, **content, "determined": {}})
            arrays = read(path.with_name(DETERMINED_FILE))[1] if named else {}
            return replace(found, determined=arrays)

        return read_json(path, cls.format_version, undone)


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
