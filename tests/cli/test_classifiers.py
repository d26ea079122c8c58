"""Targets that answer with probabilities, from the command line alone."""

import json

import numpy as np
import pytest
from tests.commands import run
from tests.oracles.test_probabilities import Classifier, missed

import unsoftmax as us


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_command_line_finds_probabilities_and_recovers_a_head_behind_them(tmp_path, kind):
    """Two commands: the first names the second."""
    (tmp_path / "served.py").write_text(
        "import numpy as np\n"
        "from tests.oracles.test_probabilities import Classifier\n"
        f"f = Classifier(5, 4, 3, np.{kind.__name__})\n"
    )
    raw = run(tmp_path, "audit", "served:f", "--dim", 4, "--out", "a")
    assert raw.returncode == 0, raw.stderr
    assert json.loads((tmp_path / "a/audit.json").read_text())["class"] == "probabilities"
    assert "audit served:f --dim 4 --out a --answers probabilities --out a/logits" in raw.stdout
    words = "audit served:f --dim 4 --out a --answers probabilities --out a/logits --recover"
    done = run(tmp_path, *words.split())
    assert done.returncode == 0, done.stdout + done.stderr
    found, target = us.Recovery.load(tmp_path / "a/logits"), Classifier(5, 4, 3, kind)
    number = json.loads((tmp_path / "a/logits/audit.json").read_text())["answers"]["coordinate"]
    assert missed(found.model, found.certificate, target, number) <= 1
    wrong = run(tmp_path, "audit", "served:f", "--dim", 4, "--out", "b", "--answers", "odds")
    assert wrong.returncode == 2
    assert "--answers is numbers or probabilities; it is odds." in wrong.stderr
