"""What the documents say is what happens: README's snippets run, in order, in a new folder."""

import importlib
import os
import re
import runpy
import subprocess

import pytest

import unsoftmax as us
from tests.evidence_rows import PAGE, read_rows, renewed
from tests.oracles.servers import MLSERVER
from tests.page_snippets import PAGES, ROOT, in_this_process, masked, run_page, snippets

README = ROOT / "README.md"
ROOMS = (".", "src/unsoftmax")
SCRIPTS = {
    f"{page.relative_to(ROOT).with_suffix('')}-{number}": snippet
    for page in PAGES
    for number, snippet in enumerate(snippets(page))
    if snippet.language == "python" and not snippet.file and page != README
}
COMMANDS = {
    str(page.relative_to(ROOT).with_suffix("")): page
    for page in PAGES
    if page != README and any(snippet.language == "sh" for snippet in snippets(page))
}
LONG = ("curve", "defend")
"""How the names of scripts begin that take long."""
GALLERY = sorted((ROOT / "docs" / "gallery").glob("*.py"))


def test_the_readmes_snippets_run_and_print_what_they_say(tmp_path, run_script):
    [code] = [snippet.code for snippet in snippets(README) if snippet.language == "python"]
    printed = run_script(code).splitlines()
    assert len(printed) == code.count("print(")
    promised = re.findall(r"print\(.*?\)\s+# ([^\n]*)", code)
    for promise, line in zip(promised, printed, strict=True):
        literal = re.split(r"[ :]", promise)[0]
        if literal in ("272", "SingleHead(d=16)", "True"):
            assert line.startswith(literal)
    make, commands = [snippet.code for snippet in snippets(README) if snippet.language == "sh"]
    assert {"make demo", "make test"} <= {line.split("#")[0].strip() for line in make.splitlines()}
    status, _, stderr = in_this_process(commands, tmp_path, reports=False)
    assert status == 0, stderr
    assert us.load(tmp_path / "again" / "model.safetensors").dim == 16


@pytest.fixture
def run_script(tmp_path, monkeypatch, capsys):
    """Run a snippet in a folder of its own, and return what it prints."""

    def run(code):
        script = tmp_path / "snippet.py"
        script.write_text(code, encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        runpy.run_path(str(script), run_name="__main__")
        return capsys.readouterr().out

    return run


# attacking every defence takes half a minute
@pytest.mark.parametrize(
    "snippet",
    [
        pytest.param(snippet, id=name, marks=pytest.mark.claimed if "defend-0" in name else ())
        for name, snippet in SCRIPTS.items()
    ],
)
def test_pages_run_and_end_as_they_say(snippet, run_script):
    for extra in ("torch", "onnxscript", "distributed"):
        if f"import {extra}" in snippet.code or f"from {extra}" in snippet.code:
            pytest.importorskip(extra)
    printed = run_script(snippet.code)
    if snippet.prints is not None:
        assert masked(printed) == masked(snippet.prints)
    else:
        assert len(printed.splitlines()) == snippet.code.count("print(")
        assert printed.split()[-1] == snippet.code.split()[-1]


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("page", COMMANDS.values(), ids=COMMANDS)
def test_commands_of_a_page_run_and_print_what_it_says(page, tmp_path):
    text = page.read_text(encoding="utf-8")
    if "mlserver start" in text and not MLSERVER:
        pytest.skip("MLSERVER names no installed mlserver")
    run_page(page, tmp_path, os.path.dirname(MLSERVER) or ".")


def test_the_gallery_is_listed_and_uses_public_names_alone():
    index = (ROOT / "docs" / "gallery" / "index.md").read_text(encoding="utf-8")
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for script in GALLERY:
        code = script.read_text(encoding="utf-8")
        assert code.startswith("# %% [markdown]\n# # "), script
        assert set(re.findall(r"^(?:from|import) ([\w.]+)", code, flags=re.MULTILINE)) <= {
            "numpy",
            "matplotlib.figure",
            "unsoftmax",
        }, script
        assert script.with_suffix(".png").is_file()
        assert f"]({script.name})" in index, script
        assert f"{script.stem}.png)" in pages, script


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(path, marks=pytest.mark.claimed if path.stem.startswith(LONG) else ())
        for path in GALLERY
    ],
    ids=lambda path: path.stem,
)
def test_the_gallery_is_drawn_by_its_scripts(script, tmp_path, run_script):
    """From any folder; what they end with is true; the picture is there."""
    pytest.importorskip("matplotlib")
    code = script.read_text(encoding="utf-8")
    printed = run_script(code)
    assert len(printed.splitlines()) == code.count("print(")
    assert printed.split()[-1] == "True"
    assert (tmp_path / f"{script.stem}.png").stat().st_size > 10_000


def test_the_page_on_choosing_names_every_learner():
    page = (ROOT / "docs" / "howto" / "choosing.md").read_text(encoding="utf-8")
    for name in us.learners.__all__:
        if isinstance(getattr(us.learners, name), type) and name != "NetworkAlgorithm":
            assert f"`{name}" in page, name


def test_links_lead_to_files_that_exist():
    for page in PAGES:
        for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), (page.name, link)


def test_measured_blocks_show_their_claim():
    """The claim is the body, all that GitHub shows of such a block; `make docs` finds its row."""
    found = 0
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"^```\{measured\}\n.+\n```$", text, flags=re.MULTILINE)
        said = f"{page.name}: put the claim on a line of its own below ```{{measured}}"
        assert len(blocks) == text.count("```{measured}"), said
        found += len(blocks)
    assert found >= 30


def test_the_architecture_names_modules_and_tests_that_exist():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.count("|") == 5][2:]
    assert len(rows) >= 10
    for row in rows:
        *_, modules, tests, _ = row.split("|")
        for module in re.findall(r"`([^`]+)`", modules):
            assert (ROOT / "src" / "unsoftmax" / module).exists(), module
        for test in re.findall(r"`([^`]+)`", tests):
            assert (ROOT / "tests" / "theorems" / test).is_file(), test
    assert {path.name for path in (ROOT / "tests" / "theorems").glob("test_*.py")} == {
        *re.findall(r"`(test_\w+\.py)`", "".join(rows))
    }


def test_the_architecture_and_the_decisions_name_files_that_exist():
    pages = [ROOT / "docs" / "architecture.md", *(ROOT / "docs" / "decisions").glob("*.md")]
    found = {
        (page.name, name)
        for page in pages
        for name in re.findall(r"`((?:\w+/)+\w+\.py)`", page.read_text(encoding="utf-8"))
        if "NAME" not in name
    }
    assert len(found) >= 60
    lost = {one for one in found if not any((ROOT / at / one[1]).exists() for at in ROOMS)}
    assert not lost


def test_the_page_of_the_paper_names_what_exists():
    """Every statement has its module and its test; every figure its row or its benchmark."""
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    statements = re.split(r"\n(?=\*\*)", page)[1:]
    assert len(statements) >= 25
    for statement in statements:
        title = statement.split("\n")[0]
        here = re.findall(r"`((?:\w+/)*\w+\.py|(?:\w+/)+)`", statement)
        for name in here:
            assert any((ROOT / room / name).exists() for room in ("src/unsoftmax", "tests")), name
        refused = "*Here*: refused" in statement or "*Here*: the same" in statement
        assert any((ROOT / "src/unsoftmax" / name).exists() for name in here) or refused, title
        assert "*Test*: " in statement, title
    claims = {re.sub(r"= +", "= ", claim) for claim in read_rows()}
    quoted = re.findall(r"\(\[evidence\]\(evidence\.csv\): \*(.+?)\*\)", page)
    assert len(quoted) >= 15
    for claim in quoted:
        assert claim in claims, claim


def test_the_page_of_evidence_shows_its_rows():
    """Who changes a headline's row by hand is told; `make evidence` writes both."""
    page = PAGE.read_text(encoding="utf-8")
    assert renewed(page, read_rows()) == page
    assert 30 <= len(re.findall(r"\* \|$", page, flags=re.MULTILINE)) <= 40


def test_the_glossary_names_what_exists():
    page = (ROOT / "docs" / "notation.md").read_text(encoding="utf-8")
    rooms = {path.stem for path in (ROOT / "src" / "unsoftmax").iterdir()}
    for name in re.findall(r"`(\w+(?:\.\w+)+)`", page.replace("us.", "unsoftmax.")):
        first, *rest = name.removeprefix("unsoftmax.").split(".")
        if first not in rooms:
            continue
        found = importlib.import_module(f"unsoftmax.{first}")
        for part in rest:
            if not hasattr(found, part):
                importlib.import_module(f"{found.__name__}.{part}")
            found = getattr(found, part)


def test_the_readme_stays_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 85


def test_ci_calls_the_readmes_commands():
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert ci.count("make test") == 1
    assert ci.count("make demo") == 1


def test_make_help_lists_the_targets():
    done = subprocess.run(
        ["make", "-C", str(ROOT), "help"], capture_output=True, text=True, timeout=30, check=True
    )
    for name in ("setup", "demo", "test", "evidence", "lint", "bench", "docs"):
        assert f"make {name}" in done.stdout


def test_every_public_name_and_error_is_in_the_reference():
    reference = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    for name in us.__all__:
        if name == "learners":
            continue
        kind = getattr(us, name)
        error = getattr(kind, "__module__", "") == "unsoftmax.errors"  # listed by that module
        assert f"unsoftmax.{name}" in reference or error, name


def test_versions_agree():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{us.__version__}"' in project
    assert us.__version__ in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\nversion: {us.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version = {{{us.__version__}}}" in README.read_text(encoding="utf-8")
