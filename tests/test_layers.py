"""The rooms of the house: who may import whom, who may touch the world, and what is documented.

Read off the source with `ast`, so that late imports and imports for types count too.
"""

import ast
import doctest
import graphlib
import importlib
import inspect
import pickle
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

import unsoftmax as us
from tests.campaign.lives import unmeasured
from unsoftmax.cli.commands import COMMANDS, MODULES

SOURCE = Path(us.__file__).parent
FILES = {
    ".".join(("unsoftmax", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in sorted(SOURCE.rglob("*.py"))
}

# A room imports only rooms above it; rooms on one line do not import each other.
ROOMS = (
    ("models",),
    ("theory",),
    ("measure",),
    ("solve",),
    ("arrangement",),
    ("validate",),
    ("learners", "oracles"),
    ("figures",),
    ("campaign",),
    ("questions",),
    ("report",),
    ("__init__",),  # the public names
    ("cli",),
    ("__main__",),  # runs the command line
)
EVERYBODYS = ("errors", "first_use", "old_spellings", "probes", "protocol", "refusals")
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}

# What a room without I/O may import from outside; os is allowed for os.PathLike alone.
PURE_ROOMS = (
    *("errors", "first_use", "refusals", "probes", "protocol", "models", "theory", "measure"),
    *("solve", "arrangement", "validate", "learners"),
)
PURE = {
    *("__future__", "abc", "collections", "dataclasses", "decimal", "enum", "fractions"),
    *("contextlib", "functools", "hashlib", "itertools", "math", "numbers", "numpy", "scipy"),
    *("types", "typing", "unsoftmax"),
}
DOES_IO = ("unsoftmax.models.files",)
# Runs a function in a thread that waits whenever it asks: one side at a time, no clock, no I/O.
THREADS = {
    "unsoftmax.learners.network_algorithm": {"contextvars", "queue.SimpleQueue", "threading"}
}
# Imports a package's modules when their names are first used.
LAZY = ("unsoftmax.first_use",)
WORLDLY = {"open", "print", "input", "exec", "eval", "compile", "breakpoint", "__import__"}


@cache
def parsed(source):
    """The tree of a module, read once for all rules."""
    return ast.parse(source)


@cache
def nodes(source):
    """What rules look at anywhere in a module: one walk for all of them."""
    kinds = (ast.Import, ast.ImportFrom, ast.Name, ast.Attribute, ast.ClassDef)
    return [node for node in ast.walk(parsed(source)) if isinstance(node, kinds)]


def room_of(module):
    return [*module.split("."), "__init__"][1]


def is_pure(module):
    return room_of(module) in PURE_ROOMS and module not in DOES_IO


def imports(module, nodes):
    """Everything that the nodes import, by its dotted name; of ours, the module."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} uses a relative import: name the room"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                attribute = name.startswith("unsoftmax.") and name not in FILES
                yield str(node.module) if attribute else name


def forbidden(module, source):
    """What is wrong with the imports of a module, a sentence each."""
    room = room_of(module)
    for name in imports(module, nodes(source)):
        if name.split(".")[0] != "unsoftmax":
            continue
        other = room_of(name)
        if other == room or other in EVERYBODYS:
            continue
        if room in EVERYBODYS or LEVEL[other] >= LEVEL[room]:
            yield f"{module} imports {name}: {other} is not above {room}"


def worldly(module, source):
    """How a module that may not touch the world does it."""
    for name in imports(module, nodes(source)):
        if name in ("os", "os.PathLike") and room_of(module) == "models":
            continue
        if module in LAZY and name == "importlib.import_module":
            continue
        if name in THREADS.get(module, ()):
            continue
        if name.split(".")[0] not in PURE:
            yield f"{module} imports {name}"
    paths = {
        id(node.value)
        for node in nodes(source)
        if isinstance(node, ast.Attribute) and node.attr == "PathLike"
    }
    for node in nodes(source):
        if isinstance(node, ast.Name):
            if node.id == "os" and id(node) not in paths:
                yield f"{module} uses os for more than os.PathLike (line {node.lineno})"
            if node.id in WORLDLY:
                yield f"{module} uses {node.id} (line {node.lineno})"


# -- the house as it stands


def test_every_module_is_in_a_room():
    assert {room_of(module) for module in FILES} <= {*LEVEL, *EVERYBODYS}
    assert len(FILES) > 20


def test_a_room_imports_only_rooms_above_it():
    found = [said for module, path in FILES.items() for said in forbidden(module, read(path))]
    refuse(found, "imports of what is not above")


def test_pure_rooms_do_not_touch_the_world():
    pure = [module for module in FILES if is_pure(module)]
    found = [said for module in pure for said in worldly(module, read(FILES[module]))]
    refuse(found, "rooms without I/O that have some")


def test_only_one_module_of_the_models_does_io():
    assert [module for module in DOES_IO if module in FILES] == list(DOES_IO)
    for module in DOES_IO:
        assert list(worldly(module, read(FILES[module])))


def module_level(module, source):
    """Yield modules imported when the module itself is."""
    for statement in parsed(source).body:
        # a function's body runs later
        if not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            yield from imports(module, ast.walk(statement))


# What makes a start slow: who asks for help waits for none of it.
SLOW = (
    *("httpx", "matplotlib", "numpy", "onnxruntime", "scipy", "sqlite3", "unsoftmax.learners."),
    *("unsoftmax.models", "unsoftmax.oracles", "unsoftmax.questions"),
)


def loaded_by(code, *words):
    """Names of all modules that a program has loaded when it ends."""
    code = (
        f"import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); {code}"
    )
    # measured, a program loads what coverage does
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=unmeasured(),
    )
    assert done.returncode == 0
    return set(done.stderr.split())


def test_the_public_names_wait_for_nothing():
    loaded = loaded_by("import unsoftmax")
    assert {name for name in loaded if name.startswith("unsoftmax")} == {"unsoftmax"}
    assert {name for name in loaded if name.startswith(SLOW)} == set()


def test_help_waits_for_nothing_that_only_a_run_needs(trials):
    for command in [None, *COMMANDS][:: trials(4, 1)]:
        words = ["--help"] if command is None else [command, "--help"]
        loaded = loaded_by("from unsoftmax.cli import main; main()", *words)
        commands = {f"unsoftmax.cli.{MODULES.get(name, name)}" for name in COMMANDS} & loaded
        own = set() if command is None else {f"unsoftmax.cli.{MODULES.get(command, command)}"}
        # its options begin with those of `plan`
        assert commands - own <= ({"unsoftmax.cli.plan"} if command == "learn" else set()), command
        assert own <= commands, command
        # these two compute with arrays themselves
        few = ("numpy",) if command in ("compare", "demo") else ()
        slow = {name for name in loaded if name.startswith(SLOW) and not name.startswith(few)}
        assert slow == set(), command


def test_verify_loads_no_learner_and_nothing_of_defend():
    loaded = loaded_by("import unsoftmax; unsoftmax.verify")
    assert "unsoftmax.questions.verification" in loaded
    late = ("unsoftmax.questions.defence", "unsoftmax.questions.exposure", "matplotlib", "httpx")
    assert {name for name in loaded if name.startswith(late)} == set()
    assert not {f"unsoftmax.learners.{name}" for name in us.learners.MODULES.values()} & loaded
    assert not {"scipy.linalg", "scipy.optimize", "scipy.special"} & loaded


@pytest.mark.parametrize("package", ["campaign", "learners", "questions"])
def test_names_that_are_found_on_first_use(package):
    module = importlib.import_module(f"unsoftmax.{package}")
    assert sorted(dir(module)) == sorted(module.__all__)
    for name in module.__all__:
        named = getattr(module, name)
        if inspect.isclass(named) or inspect.isfunction(named):
            assert pickle.loads(pickle.dumps(named)) is named
    with pytest.raises(AttributeError, match="has no attribute 'absent'"):
        module.absent  # noqa: B018


def test_a_signal_finds_its_handler_before_anything_slow_is_imported():
    """What the command line is before its `main` runs."""
    command = [sys.executable, "-X", "importtime", "-c", "import unsoftmax.cli"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    loaded = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert {name for name in loaded if name.startswith("unsoftmax")} == {
        "unsoftmax",
        "unsoftmax.cli",
        "unsoftmax.errors",
    }
    assert not {"numpy", "typer", "rich"} & loaded


def test_no_module_waits_for_itself():
    graph = {
        module: {name for name in module_level(module, read(path)) if name in FILES}
        for module, path in FILES.items()
    }
    order = list(graphlib.TopologicalSorter(graph).static_order())
    assert set(order) == set(FILES)


# What a layer or its parts may be: a case of what is read, and no module of its own.
TRAITS = ("biased_", "normalised_", "prenorm_", "rotary_", "turned_")


def circles(graph):
    """The names that wait for each other, set by set."""
    after: dict[str, set[str]] = {name: set() for name in graph}
    for name in graph:
        further = [name]
        while further:
            for other in graph[further.pop()] - after[name]:
                after[name].add(other)
                further.append(other)
    alike = {frozenset(other for other in after[x] if x in after[other]) for x in graph}
    return sorted(map(sorted, alike - {frozenset()}))


def test_folders_of_learners_import_each_other_one_way():
    graph: dict[str, set[str]] = defaultdict(set)
    for module, path in FILES.items():
        own = path.relative_to(SOURCE).parts[1:-1]
        if room_of(module) == "learners" and own:
            named = {*imports(module, nodes(read(path)))} & {*FILES}
            others = [FILES[name].relative_to(SOURCE).parts for name in named]
            graph[own[0]] |= {x[1] for x in others if x[0] == "learners" and len(x) > 2}
    apart = {name: (graph[name] & {*graph}) - {name} for name in list(graph)}
    found = [" ⇄ ".join(circle) for circle in circles(apart)]
    refuse(found, "folders of learners that import each other")


def test_no_module_of_learners_is_named_after_a_trait():
    named = (path.relative_to(SOURCE).parts for path in FILES.values())
    found = [
        "/".join(parts)
        for parts in named
        if parts[0] == "learners" and any(part.startswith(TRAITS) for part in parts)
    ]
    refuse(found, "modules named after a trait")


def test_circles_are_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": {"f"}, "f": {"e"}}
    assert circles(graph) == [["a", "b", "c"], ["e", "f"]]
    assert circles({"a": {"b"}, "b": set()}) == []


# -- one name, one thing


def shared(names):
    """Names that several have, and who has them; ``names`` are pairs (name, who)."""
    owners = defaultdict(list)
    for name, owner in names:
        owners[name].append(owner)
    return [
        f"{name}: {', '.join(map(str, sorted(who)))}"
        for name, who in sorted(owners.items())
        if len(who) > 1
    ]


def refuse(offenders, why):
    """Fail with all offenders, a line each."""
    assert not offenders, "\n".join([why, *offenders])


def classes(module, source):
    """Every class of a module, private and nested ones too, with where it is."""
    for node in nodes(source):
        if isinstance(node, ast.ClassDef):
            yield node.name, f"{module}:{node.lineno}"


def path_of(module):
    path = FILES.get(module)
    return path.relative_to(SOURCE).as_posix() if path else module


def test_rooms_are_all_there_is_and_each_has_modules():
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name[0] != "_"}
    assert folders - {*LEVEL} == set(), "folders that are no room"
    assert {room_of(module) for module in FILES} - {*LEVEL, *EVERYBODYS} == set(), "no room's"
    empty = {*LEVEL, *EVERYBODYS} - {room_of(module) for module in FILES}
    assert not empty, "rooms without a module"


def test_no_two_modules_share_a_name():
    named = (
        (path.stem, path.relative_to(SOURCE).as_posix())
        for path in FILES.values()
        if path.stem != "__init__"
    )
    refuse(shared(named), "modules of one name")


def test_no_two_classes_share_a_name():
    found = [pair for name, path in FILES.items() for pair in classes(path_of(name), read(path))]
    refuse(shared(found), "classes of one name")


def read(path):
    return path.read_text(encoding="utf-8")


# -- the test itself


def test_shared_names_are_seen():
    assert shared([("a", 1), ("b", 2), ("a", 3)]) == ["a: 1, 3"]
    source = "class A:\n    class _B: ...\ndef f():\n    class A: ..."
    assert shared(classes("x", source)) == ["A: x:1, x:4"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("unsoftmax.models.x", "from unsoftmax.learners import ExactHead"),
        ("unsoftmax.models.x", "from unsoftmax import theory"),
        ("unsoftmax.theory.x", "import unsoftmax.campaign.ledger"),
        ("unsoftmax.learners.x", "from unsoftmax.oracles import rounded"),
        ("unsoftmax.oracles.x", "from unsoftmax.learners import ExactHead"),
        ("unsoftmax.learners.x", "def late():\n    from unsoftmax.campaign import learn"),
        ("unsoftmax.campaign.x", "import unsoftmax as us"),
        ("unsoftmax.probes", "from unsoftmax.models import SingleHead"),
        ("unsoftmax", "from unsoftmax.cli import main"),
    ],
)
def test_a_forbidden_import_is_seen(module, source):
    assert len(list(forbidden(module, source))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("unsoftmax.learners.x", "from unsoftmax.models import SingleHead"),
        ("unsoftmax.learners.x", "from unsoftmax.validate import sequences as holdout"),
        ("unsoftmax.models.x", "from unsoftmax.probes import Array"),
        ("unsoftmax.cli.x", "import unsoftmax as us\nfrom unsoftmax.report import figures"),
    ],
)
def test_an_allowed_import_is_not(module, source):
    assert list(forbidden(module, source)) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("unsoftmax.theory.x", "import time"),
        ("unsoftmax.theory.x", "import os\npath: os.PathLike"),
        ("unsoftmax.models.x", "import os\nos.getpid()"),
        ("unsoftmax.models.x", "from os import PathLike, getpid"),
        ("unsoftmax.models.x", "import os.path"),
        ("unsoftmax.learners.x", "def f():\n    import threading"),
        ("unsoftmax.learners.network_algorithm", "import time"),
        ("unsoftmax.learners.x", "print(1)"),
        ("unsoftmax.probes", "from pathlib import Path"),
    ],
)
def test_touching_the_world_is_seen(module, source):
    assert list(worldly(module, source))


def test_naming_a_path_is_not_touching_the_world():
    assert list(worldly("unsoftmax.models.x", "import os\ndef f(p: os.PathLike[str]): ...")) == []


# -- what is public is documented, and its examples run


def test_every_public_name_is_there_and_documented():
    things = {name: getattr(us, name) for name in us.__all__}
    said = {name: vars(x).get("__doc__") or inspect.getdoc(x) or "" for name, x in things.items()}
    refuse([name for name in said if len(said[name].split("\n")[0]) <= 10], "undocumented names")


def test_public_names_are_sorted_once_and_nothing_else():
    assert list(us.__all__) == sorted(set(us.__all__))
    public = {name for name in vars(us) if not name.startswith("_")}
    rooms = {room_of(module) for module in FILES}
    assert public - rooms <= set(us.__all__)


def test_learners_are_documented_under_their_names():
    assert set(us.learners.__all__) == {
        "BY_NAME",
        "NetworkAlgorithm",  # --network: a function, not a model
        *(x.__name__ for x in us.learners.BY_NAME.values()),
    }
    for learner in us.learners.BY_NAME.values():
        for part in ("*Queries*", "*Determined up to*", "*Source*"):
            assert part in (learner.__doc__ or "")


# attacking every defence takes as long as all other examples
LONG_EXAMPLES = {"unsoftmax.questions.defence.defending"}


@pytest.mark.parametrize("room", [room for room in (*EVERYBODYS, *LEVEL) if room != "__main__"])
def test_examples_in_docstrings_run(room, trials):
    if room in ("figures", "report"):
        pytest.importorskip("matplotlib")
        pytest.importorskip("jinja2")
    missing, failing = [], []
    late = trials(LONG_EXAMPLES, set())
    for name in (name for name in FILES if room_of(name) == room and name not in late):
        module = importlib.import_module(name)
        for test in doctest.DocTestFinder(exclude_empty=False).find(module, name):
            promised = "\nExamples\n" in inspect.cleandoc(test.docstring or "")
            missing += [test.name] if promised and not test.examples else []
        failing += [name] if doctest.testmod(module, name).failed else []
    refuse(missing, "examples that are promised and not there")
    refuse(failing, "modules whose examples fail: see what was printed")
