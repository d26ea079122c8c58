"""Which commands wrote a folder's results: ``commands.json``, so that they can be run again."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from unsoftmax.campaign.recovery import versions
from unsoftmax.models.files import of_json, read_json, replace_file

COMMANDS_FILE = "commands.json"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class CommandRecord:
    """A command that was run.

    Attributes
    ----------
    line : str
        As one would type it; passwords in URLs left out.
    at : str
        When it ended, in UTC.
    versions : dict of str to str
        What it ran with.
    about : dict of str to str
        What it was about: its target, the claimed weights; such URLs without secrets too.
    """

    line: str
    at: str
    versions: Mapping[str, str] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def now(cls, words: Sequence[str], **about: object) -> CommandRecord:
        """Record a command that ends now; ``words`` are its arguments."""
        line = shlex.join(["unsoftmax", *map(without_secret, words)])
        named = {name: without_secret(str(what)) for name, what in about.items()}
        return cls(line, f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC", versions(), named)


_Records = dict[str, CommandRecord]


def without_secret(word: str) -> str:
    """Leave out user and password of a URL, and its query, where tokens are.

    Examples
    --------
    >>> without_secret("http://me:secret@host/v2/models/m?key=secret")
    'http://host/v2/models/m'
    """
    return re.sub(r"(://)(?:[^/@?#]*@)?([^?#]*).*", r"\1\2", word)


def note_command(folder: str | os.PathLike[str], result: str, record: CommandRecord) -> None:
    """Note which command wrote a result, a file of a folder."""
    path = Path(folder) / COMMANDS_FILE
    try:
        known = commands_of(folder)
    except ValueError:  # damaged, and only a record
        known = {}
    every = {**known, result: record}
    content = {
        "format_version": FORMAT_VERSION,
        "commands": {name: asdict(one) for name, one in every.items()},
    }
    replace_file(path, (json.dumps(content, indent=2, ensure_ascii=True) + "\n").encode())


def commands_of(folder: str | os.PathLike[str]) -> _Records:
    """Return the commands that wrote a folder's results; none where nothing is recorded.

    Raises
    ------
    ValueError
        The record is damaged, or newer than this program.
    """
    path = Path(folder) / COMMANDS_FILE
    if not path.is_file():
        return {}
    return read_json(path, FORMAT_VERSION, lambda content: of_json(_Records, content["commands"]))
