"""The page: all that the files say, nothing that they could do, and small."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import unsoftmax as us
from tests.report.results import HOSTILE, audited, compared, fill, random_heads, recovery_of
from tests.rotary_heads import rotary_head
from unsoftmax.campaign.recovery import RefusedRun
from unsoftmax.learners import BY_NAME
from unsoftmax.protocol import Certificate, Course, Evidence
from unsoftmax.questions import AttackOutcome
from unsoftmax.questions.exposure import WholeCost
from unsoftmax.report.blocks import DataTable, Paragraph, Pictures
from unsoftmax.report.certified_bounds import certified_bounds
from unsoftmax.report.command_record import CommandRecord, commands_of, note_command
from unsoftmax.report.page import SECTIONS, page, write_page
from unsoftmax.report.recovery_section import LearnerFacts, recovery_section

REACHES_OUT = {"src", "href", "xlink:href", "srcset", "action", "data", "poster", "background"}


class Read(HTMLParser):
    """A page as a browser would take it: its elements, its text, and what is wrong with it."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.text, self.ids, self.wrong = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name.startswith("on"):
                self.wrong.append((tag, name))
            if name in REACHES_OUT and not (value or "").startswith(("#", "data:")):
                self.wrong.append((tag, name, value))

    def handle_data(self, data):
        self.text.append(data)

    @property
    def said(self):
        return " ".join(" ".join(self.text).split())


def read(folder):
    return Read(page(folder))


def test_everything_is_on_the_page(tmp_path):
    recovery = us.learn(us.SingleHead(np.diag([1.0, 2, 3]), [1.0, 1, 1]), us.learners.ExactHead(3))
    recovery.save(tmp_path)
    note_command(tmp_path, "recovery.json", CommandRecord.now(["learn", "my head", "--seed", "7"]))
    assert write_page(tmp_path) == tmp_path / "report.html"
    found = Read((tmp_path / "report.html").read_text(encoding="utf-8"))
    for part in (
        "44 queries recovered a model, SingleHead(d=3)",
        "What was asked, and why",
        "Learn a single head from exact values (Theorem 4.1).",
        "It asked 44 questions.",
        "How the number of queries grows: d + d²",
        "Source",
        "the hold-out: predicted, never learned from",
        "Answers over time",
        "Singular values of W: from 3 down to 1.",
        "Those below the bound on ‖ΔW‖",
        f"W 3 × 3 {np.sqrt(14):.3g}",
        "known to 1",
        *recovery.certificate.assumes,
        "residuals are within their tolerance",
        "The answers determine every parameter; W and w are free when v = 0.",
        "unsoftmax learn 'my head' --seed 7",
        "seed 0",
        f"numpy {np.__version__}",
    ):
        assert " ".join(part.split()).lower() in found.said.lower(), part
    assert found.elements.count("svg") == 6


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A page of everything, each result full of texts that mean harm."""
    return page(fill(tmp_path_factory.mktemp("hostile")))


def test_what_files_say_is_text(hostile):
    text, found = hostile, Read(hostile)
    assert found.wrong == []
    assert not {"script", "iframe", "object", "embed", "form"} & {*found.elements}
    assert "<img" not in text
    assert "<script" not in text
    assert found.said.count("fetch('http://evil.test')") >= 8
    assert "default-src 'none'" in text


def test_identifiers_are_unique_and_every_figure_has_a_text(hostile):
    text, found = hostile, Read(hostile)
    assert len(found.ids) == len({*found.ids})
    figures = text.count("<svg")
    assert figures == text.count('role="img"') == text.count("<desc id=")
    assert figures == text.count("<figcaption>") >= 10
    assert "<title id" in text
    assert "></desc>" not in text
    for at in text.split('aria-labelledby="')[1:]:
        assert set(at.split('"')[0].split()) <= {*found.ids}


def test_colours_are_the_pages_own(hostile):
    text = hostile
    drawn = text[text.index("<svg") : text.rindex("</svg>")]
    left = set(re.findall(r"(?:fill|stroke): (#\w+)", drawn))
    assert left <= {"#ffffff", "#000000"}, left  # behind a colour bar


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "model",
    [
        us.MultiHead(np.zeros((0, 4, 4)), np.zeros((0, 4))),
        us.MultiHead(np.zeros((2, 1, 1)), np.ones((2, 1))),
        us.SingleHead(np.zeros((3, 3)), np.zeros(3)),
        us.SingleHead.from_factors(np.ones((1, 5)), np.ones((1, 5)), np.ones(5)),
        us.ReluNetwork(np.zeros((3, 0)), np.zeros(0)),
        us.ReluNetwork(np.ones((2, 50)), np.ones(50)),
        us.Transformer(np.eye(3), us.ReluNetwork(np.ones((3, 2)), np.ones(2))),
        us.SingleHead([[1e308]], [1e308]),
        us.SingleHead([[5e-324]], [1.0]),
    ],
    ids=repr,
)
def test_any_model_has_its_page(tmp_path, model):
    recovery_of(model, course=None).save(tmp_path)
    found = read(tmp_path)
    assert repr(model).replace(" ", "") in found.said.replace(" ", "")
    assert "nan" not in found.said.lower().split()


@pytest.mark.few(2)
@pytest.mark.parametrize("number", [np.nan, np.inf, 5e-324, 1e308])
def test_any_number_has_its_page(tmp_path, number):
    errors = {} if np.isnan(number) else {"W": number, "v": number, "slope": number}
    evidence = Evidence(3, number, number, number, False, ((number, np.inf), (0.0, number)))
    course = Course(((1e-300, 1, "x"),), {"x": (1, 0.0)})
    changes = {"certificate": Certificate(errors, ()), "evidence": evidence, "course": course}
    recovery_of(us.SingleHead(np.eye(2), np.ones(2)), **changes).save(tmp_path)
    assert "recovered a model" in read(tmp_path).said


def test_what_is_not_recorded_is_said(tmp_path):
    nothing = {"counts": {}, "notes": (), "learner": {}, "certificate": Certificate({}, ())}
    model = us.MultiHead(np.zeros((0, 2, 2)), np.zeros((0, 2)))
    recovery_of(model, course=Course(recorded=7), **nothing).save(tmp_path)
    assert "All 7 answers were in the ledger" in read(tmp_path).said
    unchecked = Evidence.of(0, np.zeros(0), np.zeros(0))
    recovery_of(model, course=None, evidence=unchecked, **nothing).save(tmp_path)
    said = read(tmp_path).said
    assert "When the answers came is not recorded." in said
    assert "No query was held out" in said
    assert "Nothing, under the assumptions of the certificate." in said


def test_a_page_of_twelve_large_heads_is_below_a_megabyte(tmp_path, evidence):
    recovery_of(random_heads(12, 384)).save(tmp_path)
    fill_in = us.Verification("same", 20, None, dict.fromkeys(map(str, range(50)), 1e-9), 0, 0)
    fill_in.save(tmp_path)
    text = page(tmp_path)
    assert 100_000 < len(text.encode()) < 1_000_000
    size = f"{len(text.encode()) / 1000:,.0f} kB"
    evidence("report: a page of 12 heads of d = 384 is below 1 MB", size=size)
    assert text.count("image/png") == 12
    assert "A pixel is the largest of 5 × 5 entries." in text


def test_more_heads_than_are_drawn_are_in_the_table(tmp_path):
    recovery_of(random_heads(70, 4)).save(tmp_path)
    section = recovery_section(tmp_path)
    [part] = [part for part in section.parts if part.title == "What was recovered"]
    left, spectrum, table = part.blocks
    assert isinstance(left, Paragraph)
    assert isinstance(spectrum, Pictures)
    assert isinstance(table, DataTable)
    assert left.text.startswith("38 matrices are not drawn")
    assert [panel.title for panel in section.pictures if panel.title.startswith("W of head 31")]
    assert len([panel for panel in section.pictures if panel.title.startswith("W of")]) == 32
    assert len(spectrum.panels) == 1
    assert len(table.rows) == len(table.shown) == 70 + 3
    many = DataTable("many", ("a", "b"), (("x", "y"),) * 1000)
    assert many.shown[-1] == ("and 800 more", "")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("course", "points"), [[float("nan"), 1, "W"]]),
        (("course", "points"), [[1.0, -1, "W"]]),
        (("course", "points"), [["1", 1, "W"]]),
        (("course", "phases"), {"W": [True, 1.0]}),
        (("course", "recorded"), 1e300),
        (("course", "paid"), None),
        (("evidence", "residuals"), [[1.0]]),
        (("evidence", "residuals"), [["x", 1.0]]),
        (("certificate", "errors"), {"W": -1.0}),
    ],
)
def test_numbers_that_are_none_are_refused(tmp_path, place, value):
    recovery_of(random_heads()).save(tmp_path)
    path = tmp_path / "recovery.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content[place[0]][place[1]] = value
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=r"recovery\.json cannot be read"):
        write_page(tmp_path)


def test_a_file_whose_content_is_none_is_named(tmp_path):
    fill(tmp_path)
    path = tmp_path / "audit.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    for part, name, value, said in (
        ("answers", "precision", 10, "shown"),
        ("cost", "queries", "ten", "read"),
    ):
        content[part][name] = value
        path.write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(ValueError, match=rf"audit\.json cannot be {said}"):
            write_page(tmp_path)


def test_files_that_hold_very_much_have_a_page_of_usual_size(tmp_path):
    rng = np.random.default_rng(0)
    points = tuple((float(n), n, str(n)) for n in range(1, 20_001))
    course = Course(points, {str(n): (1, 1.0) for n in range(20_000)})
    residuals = tuple((float(x), 1.0) for x in rng.uniform(size=20_000))
    evidence = Evidence(20_000, 1.0, 0.5, 1.0, True, residuals)
    recovery_of(random_heads(), course=course, evidence=evidence).save(tmp_path)
    power = {f"tensor {n}": 1e-9 for n in range(20_000)}
    us.Verification("same", 20, None, power, 0.0, 0.0).save(tmp_path)
    assert len(page(tmp_path).encode()) < 1_000_000


def test_a_folder_without_a_result_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no result in"):
        write_page(tmp_path)
    with pytest.raises(FileNotFoundError, match="There is no result in"):
        write_page(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [*SECTIONS, "commands.json"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: "[]",
        lambda text: "[" * 100_000,
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"format_version": 1', '"format_version": 99'),
        lambda text: json.dumps(dict.fromkeys(json.loads(text), 1)),
    ],
    ids=["empty", "list", "deep", "half", "newer", "ones"],
)
def test_a_damaged_file_is_named_and_no_page_is_written(tmp_path, name, damage):
    fill(tmp_path)
    path = tmp_path / name
    path.write_text(damage(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(ValueError, match=name):
        write_page(tmp_path)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "determined.safetensors"])
def test_a_missing_file_is_named(tmp_path, name):
    (fill(tmp_path) / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        write_page(tmp_path)


@pytest.mark.usefixtures("undrawn")
def test_a_recovery_of_before_has_its_page(tmp_path):
    recovery_of(random_heads()).save(tmp_path)
    path = tmp_path / "recovery.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["course"], content["versions"], content["evidence"]["residuals"]
    path.write_text(json.dumps(content), encoding="utf-8")
    said = read(tmp_path).said
    assert "When the answers came is not recorded." in said
    assert "versions not recorded" in said


@pytest.mark.usefixtures("undrawn")
def test_passwords_are_in_no_command(tmp_path):
    target = "https://me:pa%40ss@host/v2/models/m?key=hidden#hidden"
    words = ["learn", target, "--out", "a b"]
    note_command(tmp_path, "recovery.json", CommandRecord.now(words, target=target))
    [command] = commands_of(tmp_path).values()
    assert command.line == "unsoftmax learn https://host/v2/models/m --out 'a b'"
    assert command.about == {"target": "https://host/v2/models/m"}
    recovery_of(random_heads()).save(tmp_path)
    text = page(tmp_path)
    assert "<h1>Report on https://host/v2/models/m</h1>" in text
    assert "pa%40ss" not in text
    assert "hidden" not in text
    (tmp_path / "commands.json").write_text("{", encoding="utf-8")
    note_command(tmp_path, "verification.json", CommandRecord.now(["verify"]))
    assert [*commands_of(tmp_path)] == ["verification.json"]


@pytest.mark.usefixtures("undrawn")
def test_a_page_of_several_targets_names_each_and_the_folder(tmp_path):
    place = fill(tmp_path / "results")
    for name, target in (("audit.json", "one"), ("recovery.json", "one"), ("defence.json", "two")):
        note_command(place, name, CommandRecord.now(["audit"], target=target, weights="w"))
    text = page(place)
    assert "<h1>Report on results</h1>" in text
    assert [text.count(f"<dt>target</dt><dd>{name}</dd>") for name in ("one", "two")] == [1, 1]
    content = json.loads((place / "commands.json").read_text(encoding="utf-8"))
    for command in content["commands"].values():
        del command["about"]
    (place / "commands.json").write_text(json.dumps(content), encoding="utf-8")
    assert "<h1>Report on results</h1>" in page(place)
    command["about"] = ["x"]
    (place / "commands.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=r"commands\.json"):
        page(place)


@pytest.mark.usefixtures("undrawn")
def test_queries_without_a_dot_are_explained(tmp_path):
    head = us.SingleHead(np.diag([1.0, 2, 3]), [1.0, 1, 1])
    us.learn(head, us.learners.ExactHead(3)).save(tmp_path)
    said = read(tmp_path).said
    assert "20 of 20 residuals" in said
    assert "The other 12 of 32 queries have no dot" in said


@pytest.mark.parametrize("learner", BY_NAME.values(), ids=lambda kind: kind.__name__)
def test_every_learner_says_what_a_page_tells(learner):
    facts = LearnerFacts.of({"learner": learner.__name__})
    assert facts.purpose.endswith(".")
    assert facts.queries
    assert facts.source
    assert facts.determined_up_to[-1] == "."
    assert "*" not in "".join((facts.queries, facts.source, facts.determined_up_to))


def first_screen(folder, price=0.0):
    """The answer of a folder's only finding, its severity, and the rest of its first screen."""
    text = page(folder, price)
    [one] = re.findall(r'<section class="finding".*?</section>', text, re.DOTALL)
    [answer] = re.findall(r"<h2[^>]*>(.*?)</h2>", one)
    [level] = re.findall(r'aria-current="true"><b>(\w+)</b>', one)
    return answer, level, Read(one).said


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("changes", "answer", "level"),
    [
        ({}, "Anyone who may ask about 10 questions can probably copy this model.", "High"),
        (
            {"whole": WholeCost("attention-layer", False, 5000)},
            "Anyone who may ask about 5,000 questions can probably copy this model.",
            "High",
        ),
        (
            {"cost": None, "target_class": "normalised vectors"},
            "Some models of this kind can be copied, and this audit cannot tell whether this one "
            "can.",
            "Medium",
        ),
        (
            {"cost": None, "target_class": "none of these"},
            "No attack of this program copies this target. Other attacks may.",
            "Low",
        ),
        (
            {"cost": None, "target_class": "undecided", "certainty": "undecided"},
            "The answers do not show whether this target can be copied.",
            "Unknown",
        ),
        (
            {"target_class": "constant"},
            "Every answer of this target is the same, so it has nothing to copy.",
            "Low",
        ),
    ],
)
def test_an_audits_first_screen(tmp_path, changes, answer, level):
    replace(audited("x"), **changes).save(tmp_path)
    assert first_screen(tmp_path)[:2] == (answer, level)


@pytest.mark.usefixtures("undrawn")
def test_the_page_of_a_block_says_how_all_of_it_is_copied(tmp_path):
    whole = WholeCost("block", False, 300)
    found = replace(audited("x"), cost=None, target_class="whole block", whole=whole)
    found.save(tmp_path)
    answer, level, said = first_screen(tmp_path)
    assert answer == "Anyone who may ask about 300 questions can probably copy its attention."
    assert (level, "--model block --part block" in said) == ("High", True)


@pytest.mark.usefixtures("undrawn")
def test_an_audit_that_has_copied_is_one_finding_with_its_own_counts(tmp_path):
    recovery = recovery_of(random_heads())
    replace(audited("x"), recovery=recovery, queries=760, money=3.5).save(tmp_path)
    answer, level, said = first_screen(tmp_path)
    assert answer == "Anyone who may ask 760 questions can copy this model. This audit did it."
    assert level == "Critical"
    assert "questions of the attack 760 in money 3.50 date not recorded" in said
    assert "340" not in said  # of the recovery alone
    unchecked = replace(recovery, evidence=Evidence.of(0, np.zeros(0), np.zeros(0)))
    unchecked.save(tmp_path / "alone")
    answer, level, _ = first_screen(tmp_path / "alone")
    assert answer == "A copy was made by 340 questions. Nobody checked it, and it may be wrong."
    assert level == "High"


@pytest.mark.usefixtures("undrawn")
def test_money_is_said_where_a_price_is_given_and_only_there(tmp_path):
    recovery_of(random_heads()).save(tmp_path)
    assert "in money 0.85 date" in first_screen(tmp_path, 2.5)[2]
    assert "in money not known: unsoftmax report DIR --price P" in first_screen(tmp_path)[2]
    audited("x").save(tmp_path / "audit")  # priced by itself
    assert "in money 1.50" in first_screen(tmp_path / "audit", 99.0)[2]
    replace(audited("x"), whole=WholeCost("attention-layer", False, 9)).save(tmp_path / "whole")
    assert "in money 1.50 for one number of each answer" in first_screen(tmp_path / "whole")[2]


@pytest.mark.parametrize(
    ("verdict", "level"), [("same", "Low"), ("different", "Critical"), ("undecided", "Unknown")]
)
def test_a_verifications_first_screen(tmp_path, verdict, level):
    tensor = "W of head 3" if verdict == "different" else None
    us.Verification(verdict, 20, tensor, {"W": 1e-9}, 1e-16, 0.3).save(tmp_path)
    answer, shown, said = first_screen(tmp_path)
    assert shown == level
    assert ("What was changed: W of head 3." in answer) == (verdict == "different")
    assert "questions of this check 20" in said


@pytest.mark.usefixtures("undrawn")
def test_a_comparisons_first_screen(tmp_path):
    result = compared("mask")
    result.save(tmp_path)
    refused = ("Whether a protection holds could not be judged.", "Unknown")
    assert first_screen(tmp_path)[:2] == refused
    weak, strong = (AttackOutcome("fit", 12, error, error) for error in (1e-9, 0.6))
    bare, mask = (
        replace(trial, kind=kind, words=kind, attacks=(attack,))
        for trial, kind, attack in zip(
            result.trials, ("nothing", "mask"), (weak, strong), strict=True
        )
    )
    replace(result, trials=(bare, mask)).save(tmp_path)
    answer, level, said = first_screen(tmp_path)
    assert answer == "One protection holds against every attack tried here: mask."
    assert level == "Medium"
    assert "questions of the best attack 12" in said
    assert "ordinary answers change by 2.0%" in said
    assert "the best copy is still off by 60.0%" in said
    replace(result, trials=(bare, replace(mask, attacks=(weak,)))).save(tmp_path)
    answer, level, _ = first_screen(tmp_path)
    assert answer.startswith("No protection tried here stops copying")
    assert level == "Critical"


@pytest.mark.usefixtures("undrawn")
def test_a_refusals_first_screen(tmp_path):
    settings = us.learners.ExactHead(4).settings()
    for error, level in (
        (us.NotIdentifiable("v = 0.", determined={"v": np.zeros(4)}), "Medium"),
        (us.NotIdentifiable("v = 0.", determined={}), "Low"),
        (us.ModelMismatch("Not one."), "Unknown"),
    ):
        RefusedRun.of(error, settings, Course(paid=36)).save(tmp_path)
        answer, shown, said = first_screen(tmp_path)
        assert "cop" in answer
        assert shown == level
        assert "questions of this run 36" in said


def test_a_refusal_says_what_is_determined(tmp_path):
    target = us.SingleHead(np.eye(4), np.zeros(4))
    with pytest.raises(us.NotIdentifiable) as refused:
        us.learn(target, us.learners.ExactHead(4))
    settings = us.learners.ExactHead(4).settings()
    RefusedRun.of(refused.value, settings, Course(paid=36)).save(tmp_path)
    said = read(tmp_path).said
    assert "36 queries, and no model: v = 0." in said
    assert "In determined.safetensors name shape norm, or value c a number 0 v 4 0" in said
    RefusedRun.of(us.ModelMismatch(HOSTILE), {}, Course()).save(tmp_path)
    assert not (tmp_path / "determined.safetensors").exists()
    assert "Nothing that could be kept." in read(tmp_path).said


def test_norms_and_functions_and_biases_of_0_are_told_apart():
    norm = us.LayerNorm([0.5, 2.0], [0.1, 0.0], 1e-5)
    layer = us.FeedForward(np.eye(2), np.ones(2), np.eye(2), np.zeros(2), norm=norm)
    errors = {"A": 1e-12, "b": 1e-12, "c": 1e-13, "scale": 1e-14, "constant": 1e-9, "slope": np.inf}
    A, b, c, scale, constant, slope = certified_bounds(layer, {**errors, "B": 1e-12})[:6]
    assert scale.norm == pytest.approx(np.hypot(0.5, 2.0))
    assert scale.words == "known to 14 digits of its norm"
    assert (constant.norm, constant.words) == (None, "")
    assert (slope.norm, slope.words) == (None, "not bounded")
    assert A.words == b.words == "known to 12 digits of its norm"
    assert c.words == "0 as recovered, and no larger than the bound"
    head = us.SingleHead(np.eye(2), [1.0, 0.0], [1e-14, 0.0])
    known = certified_bounds(head, {"W": 1e-12, "w": 2e-13, "v": 2.0})
    assert [one.words for one in known][1:] == [
        "0 within the bound",
        "not known: it may be off by all of its size",
    ]
    heads = us.MultiHeadTransformer([np.eye(2)], [np.eye(2)], np.ones(2))
    assert certified_bounds(heads, {"slope": 1e-9})[0].label == "the network, more per ‖p‖"


@pytest.mark.usefixtures("undrawn")
def test_a_head_with_positions_says_what_is_free_and_lists_its_frequencies(tmp_path):
    target = rotary_head(6, 4, 1)
    us.learn(target, us.learners.LowRankHead(6, 4, rotary=True)).save(tmp_path)
    said = read(tmp_path).said
    assert "The answers determine the model up to one complex number per plane" in said
    assert "The answers determine every parameter" not in said
    assert "1, 0.01, in radians per token" in said
    assert re.search(r"W\(Δ\)\s+\S+\s+\S+, the norm of W\(0\)\s+\d+ digits\s", said)
