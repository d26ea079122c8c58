"""What a refusal leaves behind, and when answers came."""

import json

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.campaign.recovery import RefusedRun
from unsoftmax.campaign.watching import GOING_ON, CourseWatch
from unsoftmax.models.files import as_json, of_json
from unsoftmax.protocol import Course
from unsoftmax.refusals import Reason

COURSE = Course(((0.5, 3, "W"),), {"W": (3, 0.5)}, 0, 3)


def refused(**determined):
    error = us.ModelMismatch("No.", determined=determined)
    return RefusedRun.of(error, us.learners.ExactHead(3).settings(), COURSE)


def test_saved_and_read_again(tmp_path):
    network = us.ReluNetwork(np.ones((3, 2)), np.ones(2))
    made = refused(v=np.arange(3.0), c=2, network=network, why="a word", W=np.array([[np.nan]]))
    made.save(tmp_path / "made" / "here")
    again = RefusedRun.load(tmp_path / "made" / "here")
    assert again.to_json() == made.to_json()
    assert {*again.determined} == {"v", "c", "W", *(f"network.{x}" for x in ("A", "w_o", "b", "c"))}
    for name, array in made.determined.items():
        assert np.array_equal(again.determined[name], array, equal_nan=True)
    assert (again.kind, again.message, again.course) == ("ModelMismatch", "No.", COURSE)


def test_without_arrays_there_is_no_file_of_them(tmp_path):
    refused(v=np.ones(3)).save(tmp_path)
    refused().save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["refusal.json"]
    assert RefusedRun.load(tmp_path).determined == {}


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda text: "{", "cannot be read"),
        (lambda text: "[]", "cannot be read"),
        (lambda text: text.replace("course", "way"), "cannot be read"),
        (lambda text: text.replace('"format_version": 1', '"format_version": 2'), "newer than"),
    ],
)
def test_a_damaged_refusal_is_refused(tmp_path, damage, sentence):
    refused(v=np.ones(3)).save(tmp_path)
    path = tmp_path / "refusal.json"
    whole = path.read_text()
    path.write_text(damage(whole))
    with pytest.raises(ValueError, match=sentence):
        RefusedRun.load(tmp_path)
    path.write_text(json.dumps(json.loads(whole)))
    (tmp_path / "determined.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"determined\.safetensors"):
        RefusedRun.load(tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"no refusal\.json"):
        RefusedRun.load(tmp_path)


def test_the_reason_is_kept_by_its_name(tmp_path):
    error = Reason.VALUE_IS_0.error({"v": np.zeros(3)}, known="")
    RefusedRun.of(error, us.learners.ExactHead(3).settings(), COURSE).save(tmp_path)
    assert RefusedRun.load(tmp_path).reason == "VALUE_IS_0"
    path = tmp_path / "refusal.json"
    content = json.loads(path.read_text())
    assert content.pop("reason") == "VALUE_IS_0"
    path.write_text(json.dumps(content))
    assert RefusedRun.load(tmp_path).reason == ""  # as earlier programs wrote it


def reports(*pairs):
    return [us.Progress(phase, answered, None, answered) for phase, answered in pairs]


def test_a_course_is_what_was_reported():
    told: list[us.Progress] = []
    watch = CourseWatch(told.append)
    events = reports(
        (GOING_ON, 10), ("W", 15), ("waiting 1 s: the target asks to", 15), ("v", 20), ("W", 22)
    )
    for event in events:
        watch(event)
    course = watch.course()
    assert told == events
    assert (course.recorded, course.paid) == (10, 22)
    assert [(answers, phase) for _, answers, phase in course.points] == [
        (15, "W"),
        (20, "v"),
        (22, "W"),
    ]
    assert {phase: count for phase, (count, _) in course.phases.items()} == {"W": 7, "v": 5}
    assert course.points[-1][0] == pytest.approx(sum(s for _, s in course.phases.values()))
    assert of_json(Course, json.loads(json.dumps(as_json(course)))) == course
    assert CourseWatch().course() == Course()


def test_a_long_course_keeps_some_of_its_points_and_all_of_its_sums():
    watch = CourseWatch(most=16)
    for event in reports(*(("even" if n % 2 else "odd", n) for n in range(1, 1002))):
        watch(event)
    course = watch.course()
    assert 8 <= len(course.points) <= 18
    answers = [count for _, count, _ in course.points]
    assert answers == sorted({*answers})
    assert answers[-1] == 1001
    assert course.phases["even"][0] + course.phases["odd"][0] == 1001


def test_a_runs_course_has_every_answer():
    seen: list[us.Progress] = []
    target = us.SingleHead(np.eye(3), np.ones(3))
    found = us.learn(target, us.learners.ExactHead(3), batch=4, progress=seen.append)
    course = found.course
    assert course is not None
    assert course.points[-1][1] == seen[-1].answered == found.queries == course.paid
    assert sum(count for count, _ in course.phases.values()) == found.queries
    assert {phase for _, _, phase in course.points} == {event.phase for event in seen}
    assert found.versions["numpy"] == np.__version__
