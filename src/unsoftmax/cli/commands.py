"""The commands by name; a command's module is imported when the command runs.

``unsoftmax --help`` needs none of them.
"""

import functools
import importlib
import importlib.metadata
import inspect
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

# The first line of each command's docstring: a test holds them together.
COMMANDS = {
    "demo": "Recover attention heads of all-MiniLM-L6-v2 from their answers alone.",
    "plan": "Say what recovering a model would cost, without asking anything.",
    "learn": "Recover TARGET's parameters by asking it.",
    "compare": "Say whether two models compute the same function: 0 equal, 1 different, "
    "3 undecided.",
    "verify": "Say whether TARGET serves these weights: 0 the same, 1 different, 3 undecided.",
    "audit": "Say what TARGET is, what can be recovered of it, and at which cost.",
    "defend": "Say what defences of TARGET would cost, and what the best attack still gets.",
    "convert": "Turn weights (W and v; or torch, BERT, Llama, OPT names) into a model file.",
    "report": "Write DIR/report.html, one page of everything that commands wrote into DIR.",
    "ledger": "Show what a ledger holds, whether it is sound, and copy what is.",
}
# Where a command is not in the module of its name: that of the ledger itself is in `campaign`.
MODULES = {"ledger": "ledger_contents"}
# What a command works with, beside what its options need. It is imported before the command begins,
# while a signal still ends the process at once, and never for --help.
WORKS_WITH = {
    "audit": ("oracles", "questions.exposure", "report.command_record"),
    "compare": ("cli.model_files",),
    "convert": ("models",),
    "defend": ("oracles", "questions.defence.defending"),
    "demo": ("campaign.runner", "cli.minilm"),
    "learn": ("campaign.recovery", "campaign.runner", "oracles", "report.certified_bounds"),
    "ledger": ("campaign.ledger_salvage",),
    "verify": ("cli.model_files", "oracles", "questions.verification", "report.command_record"),
}
PANELS = {
    "Target": ("auth", "coordinate", "answers", "request", "answer", "most_tokens", "radius"),
    "Budget": ("budget", "token_budget", "price", "token_price", "ledger"),
    "Network": ("batch", "workers", "per_minute", "retries", "longest_wait", "timeout"),
    "Output": ("sarif", "report", "as_json", "quiet", "all_rows"),
    "More": ("sampler", "eps", "delta", "like", "debug", "run_file", "help"),
}
"""How a command's help groups its options; what is here nowhere is the command's own."""
WORDS: ContextVar[tuple[str, ...]] = ContextVar("WORDS", default=())
"""The command that runs, as it was typed: its name and its arguments."""


class Commands(TyperGroup):
    """A group whose commands are listed by name, and imported when one is called."""

    # typer has its own copy of click in some releases: its types have no name in all of them
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command that is called."""
        WORDS.set(tuple(args))
        name, command, rest = super().resolve_command(ctx, args)
        for module in () if "--help" in rest else WORKS_WITH.get(str(name), ()):
            importlib.import_module(f"unsoftmax.{module}")
        return name, None if command is None else load_command(str(command.name), rest), rest


def load_command(name: str, args: Sequence[str] = ()) -> Any:
    """Import one command; its help may depend on what it is called with."""
    module = importlib.import_module(f"{__package__}.{MODULES.get(name, name)}")
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    function = _with_shared(getattr(module, name))
    alone.command(name)(function)
    command = typer.main.get_command(alone)
    if hasattr(function, "arrange_help"):
        function.arrange_help(command, args)
    _arrange(command)
    command.parse_args = _with_values_shown(command.parse_args)  # type: ignore[method-assign]
    return command


def _arrange(command: Any) -> None:
    """Group options in the help, and let its paragraphs be as wide as the terminal."""
    command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", command.help or "")
    panels = {name: panel for panel, names in PANELS.items() for name in names}
    for option in command.params:
        if option.name in panels and option.rich_help_panel is None:
            option.rich_help_panel = panels[option.name]
    order = ["", *PANELS]
    command.params.sort(key=lambda one: order.index(panels.get(one.name, "")))


def _with_shared(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that all have."""
    from unsoftmax.cli.console import ALL_ROWS, QUIET

    def kept(values: Mapping[str, Any]) -> Mapping[str, Any]:
        QUIET.set(values["quiet"])
        ALL_ROWS.set(values["all_rows"])
        return {}  # a file's options were read before the others: see `_take_from_file`

    options = {
        "quiet": (_Quiet, False),
        "all_rows": (_AllRows, False),
        "run_file": (_RunFile, None),
    }
    return spelled_out(command, options, kept)


def spelled_out(
    command: Callable[..., None],
    options: Mapping[str, tuple[Any, Any]],
    made: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    place: str | None = None,
) -> Callable[..., None]:
    """Give a command options, each a type and a default: last, or in place of a parameter.

    ``made`` says what of their values the command is given.
    """
    own, hints = inspect.signature(command), get_type_hints(command, include_extras=True)

    @functools.wraps(command)
    def run(**given: Any) -> None:
        values = {option: given.pop(option) for option in options}
        command(**given, **made(values))

    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(option, keyword, default=default, annotation=kind)
        for option, (kind, default) in options.items()
    ]
    parameters = [one.replace(annotation=hints[name]) for name, one in own.parameters.items()]
    at = len(parameters) if place is None else [*own.parameters].index(place)
    parameters[at : at + 1] = added
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _take_from_file(ctx: typer.Context, path: Path | None) -> Path | None:
    """Let a TOML file's keys be the defaults of the options, and of the arguments, of their names.

    What the command line says comes first.
    """
    if path is None:
        return None
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}") from error
    named = {
        spelling.lstrip("-").replace("-", "_"): option
        for option in ctx.command.params
        for spelling in option.opts
        if option.name not in ("run_file", "help")
    }
    defaults = {}
    for key, value in content.items():
        option = named.get(key.replace("-", "_"))
        if option is None:
            raise typer.BadParameter(f"{path}: {key} is no option of {ctx.info_name}.")
        flag = getattr(option, "is_flag", False)
        if flag != isinstance(value, bool) or isinstance(value, (dict, list)):
            wanted = "true or false" if flag else "a number or a text"
            raise typer.BadParameter(f"{path}: {key} is {wanted}; it was {value!r}.")
        # as a text it is read, and refused, as on the command line
        defaults[option.name] = value if flag else str(value)
    ctx.default_map = defaults
    return path


_Quiet = Annotated[
    bool, typer.Option("--quiet", help="Say the result and errors alone: no progress, no notes.")
]
_AllRows = Annotated[bool, typer.Option("--all", help="Show tables whole, not ten rows of them.")]
_RunFile = Annotated[
    Path | None,
    typer.Option(
        "--run",
        help="TOML file of these options (budget = 500); the command line comes first.",
        is_eager=True,
        callback=_take_from_file,
        metavar="FILE.toml",
    ),
]


def _with_values_shown(parse: Callable[..., Any]) -> Callable[..., Any]:
    """Say of an option's value that cannot be read what it was, which typer leaves out."""

    def parse_args(ctx: Any, args: list[str]) -> Any:
        words = list(args)
        try:
            return parse(ctx, args)
        except typer.BadParameter as error:
            value = value_of(getattr(error.param, "opts", ()), words)
            if value is None:  # it may be from a file
                value = (ctx.default_map or {}).get(getattr(error.param, "name", None))
            if value is not None:
                error.message = _in_our_words(value, error.message)
            elif not error.message:  # it is missing
                error.message = getattr(error.param, "help", None) or ""
            raise

    return parse_args


def value_of(names: Sequence[str], words: Sequence[str]) -> str | None:
    """Return what an option was given, the last time."""
    values = [after for word, after in pairwise(words) if word in names]
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name in names:
            values.append(value)
    return values[-1] if values else None


def _in_our_words(value: str, message: str) -> str:
    for said, wanted in (
        ("valid integer", "a whole number"),
        ("valid number", "a number"),
        ("valid float", "a number"),
    ):
        if said in message:
            return f"{value!r} was given; {wanted} is wanted."
    if least := re.search(r"greater than or equal to (\S+)", message):
        return f"{value!r} was given. It must be at least {least[1]}."
    return message if value in message else f"{value!r} was given. {message}"


app = typer.Typer(
    cls=Commands,
    help="Recover the parameters of attention models from black-box queries, and prove how well.",
    epilog=(
        "Exit status: 0 done; 1 the answer is no; 2 wrong usage, or the ledger; 3 not "
        "identifiable, wrong model class, undecided; 4 budget spent; 5 the target does not "
        "answer; 70 a bug in unsoftmax; 130 interrupted (129, 143 by SIGHUP, SIGTERM). For "
        "models you are authorised to test."
    ),
    no_args_is_help=True,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(importlib.metadata.version("unsoftmax"))
        raise typer.Exit


for _name, _summary in COMMANDS.items():
    app.command(_name, help=_summary)(lambda: None)
