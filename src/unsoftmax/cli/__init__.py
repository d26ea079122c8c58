"""The command line: one thin module per command, each a twin of a Python call.

Results go to stdout, progress and errors to stderr. Exit status: 0 done; 1 the answer is no
(compare); 2 wrong usage or a ledger that cannot be used; 3 not identifiable, wrong model
class, undecided; 4 budget spent; 5 the target does not answer; 130 interrupted.
"""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import typer

from unsoftmax.cli.compare import compare
from unsoftmax.cli.demo import demo
from unsoftmax.cli.learn import learn
from unsoftmax.cli.plan import plan

app = typer.Typer(
    help="Recover the parameters of attention models from black-box queries, and prove how well.",
    epilog=(
        "Exit status: 0 done; 1 the answer is no; 2 wrong usage, or the ledger; 3 not "
        "identifiable, wrong model class, undecided; 4 budget spent; 5 the target does not "
        "answer; 130 interrupted. For models you are authorised to test."
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


for command in (demo, plan, learn, compare):
    app.command()(command)


def main() -> None:
    """Run the command line."""
    app()
