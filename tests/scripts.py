"""Scripts of `examples/` as modules."""

import importlib
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def script(name: str) -> Any:
    """Import a script by its place, such as "minilm/sentence_embeddings", with those beside it."""
    folder, _, module = name.rpartition("/")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES / folder))
        return importlib.import_module(module)
