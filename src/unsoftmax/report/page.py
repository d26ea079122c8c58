"""The page: every section that a folder's files give, in one file that needs no other."""

import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from unsoftmax.campaign.recovery import RECOVERY_FILE, REFUSAL_FILE
from unsoftmax.figures.panel import THEME, UNPRINTABLE, Panel, lay_out, themed
from unsoftmax.models.files import replace_file
from unsoftmax.questions.defence.defence_comparison import DEFENCE_FILE
from unsoftmax.questions.exposure import AUDIT_FILE
from unsoftmax.questions.verification import VERIFICATION_FILE
from unsoftmax.report.audit_section import audit_section
from unsoftmax.report.blocks import CodeText, DataTable, Facts, Paragraph, Part, Section, Severity
from unsoftmax.report.command_record import CommandRecord, commands_of
from unsoftmax.report.defence_section import defence_section
from unsoftmax.report.recovery_section import recovery_section, refusal_section
from unsoftmax.report.verification_section import verification_section

PAGE_FILE = "report.html"
NO_PRICE = "not known: unsoftmax report DIR --price P says it, P for 1,000 questions"

# A file of a result, and what makes a section of it, in the order of the page.
SECTIONS: Mapping[str, Callable[[Path], Section]] = {
    AUDIT_FILE: audit_section,
    REFUSAL_FILE: refusal_section,
    RECOVERY_FILE: recovery_section,
    VERIFICATION_FILE: verification_section,
    DEFENCE_FILE: defence_section,
}


@dataclass(frozen=True, slots=True)
class _Page:
    """What the template is given."""

    name: str
    """The target, or the folder where it is not recorded."""
    about: Facts
    findings: tuple[tuple[Section, Facts], ...]
    """Each result, and what the first screen says beside its answer."""
    covered: frozenset[str]
    """Results whose answer another one gives."""
    scale: type[Severity]
    reproduction: Part


def write_page(folder: str | os.PathLike[str], price: float = 0.0) -> Path:
    """Write ``report.html`` of the results that a folder holds; return its path.

    Parameters
    ----------
    folder : path
        Where results were saved.
    price : float
        What 1,000 questions cost, to say what an attack costs; 0 where that is not known.

    Raises
    ------
    FileNotFoundError
        The folder holds no result, or lacks a file that belongs to one.
    ValueError
        A file is damaged, or newer than this program.
    """
    path = Path(folder) / PAGE_FILE
    replace_file(path, page(folder, price).encode())
    return path


def page(folder: str | os.PathLike[str], price: float = 0.0) -> str:
    """Return the HTML that `write_page` writes."""
    place = Path(folder)
    there = {name: make for name, make in SECTIONS.items() if (place / name).is_file()}
    with np.errstate(over="ignore", invalid="ignore"):  # norms of entries that float64 just holds
        sections = {name: _section(place / name, make) for name, make in there.items()}
    if not sections:
        raise FileNotFoundError(
            f"There is no result in {place}: none of {', '.join(SECTIONS)} is there. Commands "
            "write them into the folder that they are told to."
        )
    number = count()

    def drawn(panel: Panel) -> Markup:
        return svg(panel, f"figure{next(number)}")

    environment = Environment(
        loader=PackageLoader("unsoftmax.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(drawn=drawn, text=unbroken, words=words_whole)
    commands = {name: one for name, one in commands_of(place).items() if name in sections}
    again, folder_name = _reproduction(sections, commands), place.resolve().name
    facts = {row: None for one in commands.values() for row in one.about.items()}
    targets = [what for name, what in facts if name == "target"]
    about = Facts((*facts, ("folder", folder_name)))
    name = targets[0] if len(targets) == 1 else folder_name
    findings = tuple(
        (section, _beside(section, commands.get(file), price)) for file, section in sections.items()
    )
    covered = frozenset(section.covers for section in sections.values())
    shown = _Page(name, about, findings, covered, Severity, again)
    text = environment.get_template("page.html").render(page=shown)
    return UNPRINTABLE.sub("�", text)


def _beside(section: Section, command: CommandRecord | None, price: float) -> Facts:
    """Say what a reader of an answer asks next: at which cost, and when."""
    first, others = section.cost[:1], section.cost[1:]
    paid = section.money or (f"{section.questions * price / 1000:,.2f}" if price else NO_PRICE)
    money = [("in money", paid)] if section.questions else []
    date = ("date", "not recorded" if command is None else command.at)
    return Facts((*first, *money, *others, date))


def _section(file: Path, make: Callable[[Path], Section]) -> Section:
    """Make the section of a file; name the file where its content is none."""
    try:
        return make(file.parent)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # of the folder's other files, too: a recovery reads its model
        if any(one.name in str(error) for one in file.parent.iterdir()):
            raise
        raise ValueError(f"{file} cannot be shown: {error!r}.") from error


def unbroken(text: str) -> Markup:
    """Escape a text, and keep its small numbers and its options in one line.

    Examples
    --------
    >>> print(unbroken("1e-3 < x"))
    <span class="n">1e-3</span> &lt; x
    """
    return Markup(
        re.sub(r"\d[\d.]*e-\d+|--[\w-]+", r'<span class="n">\g<0></span>', str(escape(text)))
    )


def words_whole(text: str) -> Markup:
    """Escape a command, and let its lines end between its words alone, not inside of an option.

    Examples
    --------
    >>> print(words_whole("learn --out"))
    <span class="w">learn</span> <span class="w">--out</span>
    """
    return Markup(re.sub(r"\S+", r'<span class="w">\g<0></span>', str(escape(text))))


def _reproduction(sections: Mapping[str, Section], commands: Mapping[str, CommandRecord]) -> Part:
    """Say how to get the same again."""
    blocks: list[Paragraph | CodeText | Facts | DataTable] = []
    for name, section in sections.items():
        command = commands.get(name)
        if command is not None:
            blocks.append(CodeText(f"{name}, {command.at}", command.line))
        else:
            blocks.append(Paragraph(f"{name} was written from Python, not by a command."))
        versions = section.versions if command is None else command.versions
        rows = tuple(_setting_rows(section.settings))
        if rows:
            blocks.append(DataTable(f"Settings of {name}", ("setting", "value"), rows))
        blocks.append(Facts(tuple(versions.items()) or (("versions", "not recorded"),)))
    return Part("How to reproduce this", tuple(blocks))


# Of colour bars; heat maps have a pixel per entry.
DPI = 96


def svg(panel: Panel, name: str) -> Markup:
    """Draw a panel as an element of a page.

    Parameters
    ----------
    panel : Panel
        What to draw.
    name : str
        Begins every identifier in it: unique on the page, a letter and letters or digits.
    """
    with themed(**{"svg.hashsalt": name, "figure.facecolor": "none"}):
        figure = Figure(figsize=(panel.width, panel.height), layout="constrained")
        panel.draw(figure.subplots())
        lay_out(figure)
        file = io.StringIO()
        no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", dpi=DPI, metadata=no_metadata)
    return _inlined(file.getvalue(), panel, name)


def _inlined(text: str, panel: Panel, name: str) -> Markup:
    """Turn matplotlib's file into an element: unique identifiers, colours that the page sets."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>{name}-", text)
    for part, colour in THEME.names().items():
        text = text.replace(colour, f"var(--{part})")
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None
    head = (
        f'<svg class="figure" role="img" aria-labelledby="{name}-title {name}-desc" {box[0]} '
        f'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
        f'<title id="{name}-title">{escape(panel.title)}</title>'
        f'<desc id="{name}-desc">{escape(panel.described)}</desc>'
    )
    return Markup(head + re.sub(r"^<svg[^>]*>", "", text))


def _setting_rows(settings: Mapping[str, Any], within: str = "") -> tuple[tuple[str, str], ...]:
    """Return nested settings by their full names."""
    rows: list[tuple[str, str]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            rows += _setting_rows(value, f"{within}{name}.")
        elif isinstance(value, Sequence) and not isinstance(value, str) and len(str(value)) > 200:
            rows.append((f"{within}{name}", f"{len(value)} values: see the file"))
        else:
            rows.append((f"{within}{name}", "not given" if value is None else str(value)))
    return tuple(rows)
