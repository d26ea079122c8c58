"""What a run ends with that recovers nothing: why, and what the answers do determine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unsoftmax.campaign.runner import versions
from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.models.files import read, read_json, replace_file, write
from unsoftmax.probes import Array
from unsoftmax.protocol import Course

FORMAT_VERSION = 1
REFUSAL_FILE = "refusal.json"
DETERMINED_FILE = "determined.safetensors"


@dataclass(frozen=True, slots=True)
class RefusedRun:
    """A refusal of `unsoftmax.learn`, as it is kept.

    Attributes
    ----------
    kind : str
        "NotIdentifiable", or "ModelMismatch" and what derives from it.
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
        arrays = dict(_arrays(error.determined))
        return cls(type(error).__name__, str(error), arrays, learner, course, versions())

    def to_json(self) -> dict[str, Any]:
        """Return everything but the arrays as JSON."""
        return {
            "format_version": FORMAT_VERSION,
            "kind": self.kind,
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
                str(content["message"]),
                read(path.with_name(DETERMINED_FILE))[1] if named else {},
                dict(content["learner"]),
                Course.of_json(content["course"]),
                {str(name): str(number) for name, number in content["versions"].items()},
            )

        return read_json(path, FORMAT_VERSION, undone)


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
