"""Options drawn from the learners: every setting of every learner, and no list to keep.

A command that takes ``settings: Settings`` gets one option per field of the learners in
`MODELS`; it receives those that were given. Adding a learner needs no change here. A field
that is itself a learner (`TransformerLearner.parts` says which) gets the settings that its
owner does not know. Other settings that are arrays than `_ARRAYS` have no option. One that
is a function, `NetworkAlgorithm.algorithm`, is named as module:function and imported; so is a
learner of the user's own, which takes those of these options that it has settings for.

Which settings there are is read off the learners' source: to import all of them takes a second,
which nobody should wait for who asks for --help, or runs one.
"""

from __future__ import annotations

import ast
import functools
import inspect
import pkgutil
import re
import types
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from itertools import pairwise
from pathlib import Path
from traceback import walk_tb
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
    Union,
    get_args,
    get_origin,
)

import typer

from unsoftmax import learners
from unsoftmax.cli.commands import spelled_out
from unsoftmax.cli.console import DIM_IS_MISSING, Refusal, say, signal_behind, stderr
from unsoftmax.cli.targets import found_at, imported
from unsoftmax.errors import AlgorithmError, UnsoftmaxError
from unsoftmax.learners import MODELS, MODULES
from unsoftmax.old_spellings import OLD

if TYPE_CHECKING:
    from unsoftmax.protocol import Learner, Model

Settings: TypeAlias = Mapping[str, Any]

# What a value on a command line can be.
_WRITTEN = (int, float, bool, str)

# Settings that are functions, and their options: A_FFN takes the place of a network's learner.
_FUNCTIONS = {"algorithm": "network"}
TABLE_IS_MISSING = (
    "--table is missing: --model {model} takes ids of a vocabulary where their vectors are known, "
    "an .npy file of shape (V, d). Where they are not, --model token learns from ids."
)
# Settings that are arrays, read from files.
_ARRAYS = ("table",)


def build(model: str, settings: Settings) -> Learner[Model]:
    """Make the learner that ``--model`` and the settings name."""
    if ":" in model:
        return _own(model, settings)
    if model not in MODELS:
        raise Refusal(
            f"--model is one of {', '.join(MODELS)}, or module:Learner for one of your own; it was "
            f"{model!r}."
        )
    learner = getattr(learners, MODELS[model])
    settings = _with_values(_respelled(MODELS[model], settings))
    known = {field.name for field in fields(learner)}
    if "table" in settings.keys() & known:
        settings = {"dim": settings["table"].shape[-1], **settings}
    own = {name: value for name, value in settings.items() if name in known}
    rest = {name: value for name, value in settings.items() if name not in known}
    if "vocabulary" in settings.keys() - known:
        if "table" in known and "table" not in settings:
            raise Refusal(TABLE_IS_MISSING.format(model=model))
        raise Refusal(_no_setting("vocabulary", model))
    if ("dim" in known or _parts(learner)) and "dim" not in settings:
        raise Refusal(DIM_IS_MISSING)
    own_parts: set[str] = set()
    try:
        for name, kinds in _parts(learner).items():
            kind, mine = _fitting(kinds, rest)
            own_parts |= {*mine}
            if mine:
                mine = {"dim": settings["dim"], **mine}
                _refuse_missing(kind, mine, model)
                own[name] = kind(**mine)
                rest = {key: value for key, value in rest.items() if key not in mine}
        for name in rest:
            beside = "".join(f" with {_flag(part)}" for part in _FUNCTIONS if part in own_parts)
            raise Refusal(_no_setting(name, model + beside))
        _refuse_missing(learner, own, model)
        made: Learner[Model] = learner(**own)
    except (TypeError, ValueError) as error:
        raise Refusal(str(error)) from error
    return made


def _no_setting(name: str, model: str) -> str:
    return f"{_flag(name)} is no setting of --model {model}. Leave it out."


# What the runner asks of a learner beside its dim: see `protocol.Asks`.
_LEARNER = ("steps", "plan", "settings", "revision")


def _own(named: str, settings: Settings) -> Learner[Model]:
    """Make a user's own learner of a class, or take one that is made already."""
    from unsoftmax.protocol import Plan

    found, of_class = found_at(named, "Learner"), f"--model {named}"
    if missing := [name for name in _LEARNER if not hasattr(found, name)]:
        what = found.__name__ if isinstance(found, type) else type(found).__name__
        raise Refusal(
            f"{named} is no learner: {what} has no {', '.join(missing)}. Name a class with those, "
            "or an object of one; docs/howto/own_learner.md shows a complete one."
        )
    with blamed_on(named):
        made, given = found, {name: value for name, value in settings.items() if name != "dim"}
        if isinstance(found, type):
            known = inspect.signature(found).parameters
            given = {name: value for name, value in settings.items() if name in known}
            needed = (n for n, p in known.items() if p.default is p.empty and n not in given)
            if absent := next(needed, None):
                raise Refusal(
                    f"{_flag(absent)} is missing: {of_class} needs it. Where there is no such "
                    "option make an object in the module, and name that."
                )
            made = found(**_with_values(given))
            given = {name: settings[name] for name in settings if name not in {*known, "dim"}}
        if given:
            flag = _flag(next(iter(given)))
            raise Refusal(f"{flag} is no setting of {of_class}. Leave it out.")
        dim, plan, _ = made.dim, made.plan(), made.settings()
    if not isinstance(plan, Plan):
        raise Refusal(f"{named}.plan() must return a Plan; it returned {type(plan).__name__}.")
    if settings.get("dim", dim) != dim:
        raise Refusal(f"{named} takes tokens of dimension {dim}, not {settings['dim']}.")
    learner: Learner[Model] = made
    return learner


@contextmanager
def blamed_on(model: str) -> Iterator[None]:
    """Say of what an own learner raises that it is that learner's, and no bug of unsoftmax."""
    try:
        yield
    except Exception as error:
        frames = (frame.f_globals.get("__name__") for frame, _ in walk_tb(error.__traceback__))
        # a ValueError that did not pass through its module is about the command's other options
        ours = isinstance(error, ValueError) and model.partition(":")[0] not in frames
        ours = ours or isinstance(error, (Refusal, UnsoftmaxError))
        if ours or ":" not in model or signal_behind(error) is not None:
            raise
        raise AlgorithmError(f"{model} failed: {type(error).__name__}: {error}") from error


def _respelled(learner: str, settings: Settings) -> Settings:
    """Say settings of a learner in today's names, and to the user which ones these are."""
    now = dict(settings)
    for old in OLD.get(learner, ()):
        if old.name != old.now and old.name in now:
            said = f"{_flag(old.name)} is {_flag(old.now)} now, and goes with the next release."
            say(said, stderr)
            now[old.now] = old.value(now.pop(old.name))
    return now


def _refuse_missing(learner: type[Any], given: Settings, model: str) -> None:
    for field in fields(learner):
        if field.default is MISSING and field.name not in given:
            raise Refusal(f"{_flag(field.name)} is missing: --model {model} needs it (see --help).")


def _with_values(settings: Settings) -> Settings:
    """Import the functions among the settings, and read the arrays, where there are any."""
    values = dict(settings)
    for name in settings.keys() & _FUNCTIONS.keys():
        values[name] = imported(settings[name])
    for name in settings.keys() & {*_ARRAYS}:
        from unsoftmax.cli.model_files import numbers_in

        values[name] = numbers_in(Path(settings[name]), _flag(name))
    return values


def _parts(learner: type) -> Mapping[str, tuple[type[Any], ...]]:
    """Return the fields that are learners themselves, and what they may be."""
    parts: Mapping[str, tuple[type[Any], ...]] = getattr(learner, "parts", {})
    return parts


def _fitting(kinds: tuple[type[Any], ...], settings: Settings) -> tuple[type[Any], dict[str, Any]]:
    """Choose the kind that knows a function, else most of the settings, the first of equals."""
    known = [{f.name for f in fields(kind)} & set(settings) for kind in kinds]
    best = max(range(len(kinds)), key=lambda k: (bool(known[k] & {*_FUNCTIONS}), len(known[k])))
    return kinds[best], {name: settings[name] for name in sorted(known[best])}


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the learners' settings as options; it receives those that are given."""
    own = inspect.signature(command).parameters
    options = {name: (kind, None) for name, kind in _options().items() if name not in own}

    def given(values: Mapping[str, Any]) -> Settings:
        return {name: value for name, value in values.items() if value is not None}

    run = spelled_out(command, options, lambda values: {"settings": given(values)}, "settings")
    run.arrange_help = functools.partial(arrange_help, own={*own})  # type: ignore[attr-defined]
    return run


def arrange_help(command: Any, args: Sequence[str], own: Collection[str] = ()) -> None:
    """Show the settings of the model that is named among a command's arguments, and no other's.

    Where none is named the settings that all models share are shown, or all but one. Options of the
    command's ``own`` are no settings, though one may be called so.
    """
    model = _model_in(args)
    for option in command.params:
        texts = _texts().get(option.name)
        if texts is None or option.name in own:
            continue
        of_most = len({name for names in texts.values() for name in names}) + 1 >= len(MODELS)
        said = [text for text, names in texts.items() if model in names]
        option.hidden = not said and not of_most
        if said:
            option.help = " ".join(said)
            option.rich_help_panel = f"Settings of --model {model}"
        elif of_most:
            usual = max(texts, key=lambda text: len(texts[text]))
            told = 2 * len(texts[usual]) > len(MODELS)
            option.help = usual if told else "Every model has it: see --model NAME --help."


def _model_in(args: Sequence[str]) -> str:
    """Return what follows --model, the last time; "" without one that is known."""
    named = [word.removeprefix("--model=") for word in args if word.startswith("--model=")]
    named += [after for word, after in pairwise(args) if word == "--model"]
    return named[-1] if named and named[-1] in MODELS else ""


def in_flags(message: str, others: Mapping[str, str]) -> str:
    """Say by which options a message's settings are given here; "" where it names none.

    ``others`` are further names with their options.
    """
    models = {learner: f"--model {model}" for model, learner in MODELS.items()}
    flags = {name: _flag(name) for name in _options()} | models | dict(others)
    named = [name for name in flags if _names(message, name)]
    listed = [f"{name} is {flags[name]}" for name in named]
    return f"On the command line {', '.join(listed)}." if listed else ""


def _names(message: str, name: str) -> bool:
    """Whether a message speaks of a setting; a plain word such as "rank" may be no name."""
    if name.islower() and name.isalpha():
        return re.search(rf"\b(?:(?:raise|[Ll]eave out) {name}\b|{name}=)", message) is not None
    return re.search(rf"\b{re.escape(name)}\b", message) is not None


def _options() -> dict[str, Any]:
    """Return every setting's annotation for typer, by name."""
    now = {
        name: Annotated[kind | None, typer.Option(_flags(name), help=_help_text(_texts()[name]))]
        for name, kind in _kinds().items()
    }
    for old in (old for spellings in OLD.values() for old in spellings if old.name not in now):
        said = f"Until the next release: {_flag(old.now)}."
        now[old.name] = Annotated[
            old.kind | None, typer.Option(_flag(old.name), help=said, hidden=True)
        ]
    return now


def _flags(name: str) -> str:
    """Return a setting's option, and the one that says no where some model's default is not no."""
    flag, every = _flag(name), (one for _, learner in _all() for one in learner.settings)
    undo = any(one.name == name and one.kind is bool and one.default is not False for one in every)
    return f"{flag}/--no-{flag[2:]}" if undo else flag


@functools.cache
def _kinds() -> dict[str, Any]:
    """Return every setting's type, by name."""
    kinds: dict[str, Any] = {}
    for _, learner in _all():
        for setting in learner.settings:
            kinds.setdefault(setting.name, setting.kind)
    return kinds


@functools.cache
def _texts() -> dict[str, dict[str, list[str]]]:
    """Return what is said of every setting, each text with the models it is for."""
    texts: dict[str, dict[str, list[str]]] = {}
    for model, learner in _all():
        for setting in learner.settings:
            models = texts.setdefault(setting.name, {}).setdefault(setting.text, [])
            if model not in models:
                models.append(model)
    return texts


def _all() -> Iterator[tuple[str, _Described]]:
    """Yield every model with its learner, and with the learners that are parts of it."""
    for model, name in MODELS.items():
        learner = _described(name)
        yield model, learner
        yield from ((model, _described(part)) for part in learner.parts)


class _Setting(NamedTuple):
    """A field of a learner that a command line can say."""

    name: str
    kind: Any
    default: Any
    text: str


class _Described(NamedTuple):
    """A learner as its source has it; ``parts`` are the learners that its own fields may be."""

    settings: list[_Setting]
    parts: list[str]


@functools.cache
def _described(name: str) -> _Described:
    """Read a learner's settings without importing it."""
    source = pkgutil.get_data(learners.__name__, f"{MODULES[name].replace('.', '/')}.py")
    body = ast.parse(source or b"").body
    [found] = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
    helps, learner = _helps(ast.get_docstring(found) or ""), _Described([], [])
    for field in found.body:
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        own, hint, default = field.target.id, _hint(field.annotation), _default(field.value)
        kind = str if own in (*_FUNCTIONS, *_ARRAYS) else _kind(hint)
        if kind in _WRITTEN:
            text = _text(own, hint, default, helps.get(own, ""))
            learner.settings.append(_Setting(own, kind, default, text))
        elif own == "parts" and isinstance(field.value, ast.Dict):
            named = (node for kinds in field.value.values for node in ast.walk(kinds))
            learner.parts.extend(node.id for node in named if isinstance(node, ast.Name))
    return learner


def _hint(annotation: ast.expr) -> Any:
    """Return a field's type as far as a command line can say it, Any for other types."""
    known = {"int": int, "float": float, "bool": bool, "str": str, "Literal": Literal}
    try:
        return eval(ast.unparse(annotation), {}, defaultdict(lambda: Any, known))
    except TypeError:  # another generic type
        return Any


def _default(value: ast.expr | None) -> Any:
    """Return a field's default; what is no plain value has no option either."""
    if isinstance(value, ast.Call):  # field(default=…)
        value = next((word.value for word in value.keywords if word.arg == "default"), None)
    return MISSING if value is None else getattr(value, "value", None)


def _text(name: str, hint: Any, default: Any, text: str) -> str:
    """Add to what a setting means what may be given."""
    if get_origin(hint) is Literal:
        text += f" One of: {', '.join(get_args(hint))}."
    if default not in (MISSING, None, False):
        text += f" [default: {default}]"
    if name == "dim":
        text += " Needed, unless the target knows it."
    elif name in _FUNCTIONS:
        text += " As module:function, which is imported and run."
    elif name in _ARRAYS:
        text += " As an .npy file."
    elif default is MISSING:
        text += " Needed."
    return text


def _flag(name: str) -> str:
    return f"--{_FUNCTIONS.get(name, name).replace('_', '-')}"


def _help_text(texts: Mapping[str, list[str]]) -> str:
    """Return one text where all models agree, else each text with the models it is for."""
    if sum(map(len, texts.values())) == len(MODELS):
        return next(iter(texts))
    return " ".join(f"({', '.join(models)}) {text}" for text, models in texts.items())


def _kind(hint: Any) -> Any:
    """Reduce a field's type to one that an option can have."""
    if get_origin(hint) is Literal:
        return str
    if get_origin(hint) in (Union, types.UnionType):
        return next(part for part in get_args(hint) if part is not type(None))
    return hint


def _helps(doc: str) -> dict[str, str]:
    """Read what each setting means from the docstring's Parameters section."""
    section = re.split(r"\n(?=\w+\n-+\n)", doc)
    parameters = next((part for part in section if part.startswith("Parameters\n")), "")
    found = re.findall(r"^(\w+) : .*\n((?:    .*\n?)+)", parameters, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}
