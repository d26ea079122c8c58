"""What refusals say: true where answers are exact, no option of the command line among it."""

import ast
import re

import numpy as np
import pytest

import unsoftmax as us
from tests.test_layers import FILES, parsed, read, room_of

L = us.learners


def heads(scale_of_W=1.0, scale_of_w=1.0, c=0.5):
    rng = np.random.default_rng(0)
    W, v, w = rng.standard_normal((4, 4)), rng.standard_normal(4), rng.standard_normal(4)
    return us.SingleHead(scale_of_W * W, v, scale_of_w * w, c)


def refusal(target, learner):
    with pytest.raises(us.NotIdentifiable) as caught:
        us.learn(target, learner)
    return str(caught.value)


EXACT = {
    "hard attention": (lambda X: (X @ heads().v).max(axis=1), L.ExactHead(4)),
    "W far too large": (heads(scale_of_W=1e40), L.ExactHead(4, biases=True)),
    "w far larger than W": (heads(scale_of_w=1e12), L.ExactHead(4, biases=True)),
    "c far larger than v": (heads(c=1e15), L.ExactHead(4, biases=True)),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_answers_are_not_called_coarse_or_rounded(name, evidence):
    said = refusal(*EXACT[name])
    assert not {"coarse", "rounded", "noisy", "would do"} & set(said.replace(",", "").split())
    hard = name not in ("w far larger than W", "c far larger than v")
    assert ("hard attention" in said) == hard
    evidence(f"exact answers, {name}: the reason given is true", refused="1 of 1")


def test_what_drowns_in_a_constant_is_not_called_hard_attention():
    said = refusal(*EXACT["c far larger than v"])
    assert "answers may be off by more than the weights change in them" in said


def test_round_weights_are_not_called_a_format():
    """Hard attention over whole numbers: no float format has 31 bits."""
    said = refusal(lambda X: (X @ np.arange(1.0, 5.0)).max(axis=1), L.ExactHead(4))
    assert "rounded to them or made of round numbers" in said


def texts(tree):
    """Every string of a module that is no docstring."""
    loose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in loose:
            yield node.value


# the ledger's messages name the whole command that mends a file, and pages the one to go on with
NAMELESS = [
    m
    for m in FILES
    if room_of(m) not in ("cli", "__main__", "report") and not m.endswith(("file", "ledger_health"))
]


def test_messages_name_no_option_of_the_command_line():
    """Where there is one the command line says so."""
    options = re.compile(r" --|\(--|command line")
    looked_into = [m for m in NAMELESS if options.search(read(FILES[m]))]
    said = [(m, text) for m in looked_into for text in texts(parsed(read(FILES[m])))]
    assert [(m, text) for m, text in said if options.search(text)] == []
    assert looked_into
