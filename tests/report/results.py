"""Results of all kinds, made without asking much: what pages are made of."""

from dataclasses import replace

import numpy as np

import unsoftmax as us
from unsoftmax.campaign.recovery import RefusedRun
from unsoftmax.protocol import Certificate, Course, Evidence
from unsoftmax.questions import AttackOutcome, Audit, DefenceComparison, DefenceTrial
from unsoftmax.questions.exposure import RecoveryCost
from unsoftmax.report.command_record import CommandRecord, note_command

HOSTILE = (
    "<script>fetch('http://evil.test')</script>\"'><img src=x onerror=alert(1)> "
    "$x_{1}$ &amp; \x00\x1b[31m 漢字"
)
COURSE = Course(
    ((0.5, 40, HOSTILE), (2.0, 300, "W"), (2.5, 332, "hold-out")),
    {HOSTILE: (30, 0.5), "W": (260, 1.5), "hold-out": (32, 0.5)},
    recorded=10,
    paid=340,
)


def random_heads(H=3, d=6, seed=0):
    rng = np.random.default_rng(seed)
    return us.MultiHead(rng.standard_normal((H, d, d)), rng.standard_normal((H, d)))


def recovery_of(model, **changes):
    """A recovery of any model, as if it had been learned."""
    rng = np.random.default_rng(1)
    missed, allowed = rng.uniform(0, 1e-12, 20), np.full(20, 1e-12)
    made = us.Recovery(
        model,
        Certificate({"W": 1e-9, "v": 2e-15, "w": 0.0, "c": np.inf}, ("The <b>target</b> is one.",)),
        Evidence.of(32, missed, allowed),
        {"data": 300, "check": 32, "in doubt": 8},
        ("Noted.",),
        us.learners.MultiHeadLearner(6, max_heads=3).settings(),
        course=COURSE,
        versions={"unsoftmax": "0.1.0"},
    )
    return replace(made, **changes)


def audited(text):
    return Audit(
        target_class="single head",
        certainty="likely",
        answers={"kind": text, "width": 1, "precision": [text]},
        facts={text: 3},
        reasons=(text,),
        recoverable=text,
        cost=RecoveryCost({"learner": text}, 10, 20, 30, 1.5),
        queries=40,
        tokens=50,
        money=0.5,
        notes=(text,),
        course=COURSE,
    )


def compared(text):
    attack = AttackOutcome(text, 10, 0.5, np.inf, f"{text}: refused", (text,))
    trials = tuple(
        DefenceTrial(text, strength, text, text, text, text, 0.01 * strength, 0.0, (attack,))
        for strength in (1.0, 2.0)
    )
    return DefenceComparison(text, 4, 20, 100, 1.0, 2.0, 50, 0.5, 0.1, trials, text, (text,))


def fill(folder):
    """Write a result of every kind, each with hostile texts, into a folder."""
    recovery_of(random_heads(), notes=(HOSTILE,), versions={HOSTILE: HOSTILE}).save(folder)
    error = us.NotIdentifiable(HOSTILE, determined={HOSTILE: np.eye(4), "c": 1.0, "why": HOSTILE})
    RefusedRun.of(error, {"learner": HOSTILE, "seed": 0}, COURSE).save(folder)
    power = {"W of head 0": 1e-12, HOSTILE: 2e-3, "c": np.inf}
    us.Verification("different", 20, HOSTILE, power, 1e-16, np.inf, (HOSTILE,)).save(folder)
    us.Audit(
        "several heads",
        "certain",
        {"kind": HOSTILE, "width": 1, "coordinate": 0, "precision": [HOSTILE]},
        {"heads": 3},
        (HOSTILE,),
        HOSTILE,
        RecoveryCost({"learner": HOSTILE}, 400, 800, 30_000, 1.25),
        760,
        6000,
        3.5,
        recovery_of(random_heads(), notes=(HOSTILE,), versions={HOSTILE: HOSTILE}),
        (HOSTILE,),
        course=COURSE,
        versions={"unsoftmax": HOSTILE},
    ).save(folder)
    audited(HOSTILE).save(folder)
    compared(HOSTILE).save(folder)
    note_command(folder, "recovery.json", CommandRecord.now(["learn", HOSTILE]))
    return folder
