"""`unsoftmax report`: the HTML page of a folder of results."""

from pathlib import Path
from typing import Annotated

import typer

from unsoftmax.cli.console import Refusal, say, with_exit_status
from unsoftmax.cli.out_folder import PAGE_NEEDS


@with_exit_status
def report(
    folder: Annotated[Path, typer.Argument(help="Where --out wrote.", metavar="DIR")],
    price: Annotated[
        float, typer.Option(min=0, help="What 1,000 questions cost: the page says what for.")
    ] = 0.0,
) -> None:
    """Write DIR/report.html, one page of everything that commands wrote into DIR."""
    try:
        from unsoftmax.report.page import write_page
    except ModuleNotFoundError as error:
        from unsoftmax.errors import missing_extra

        raise Refusal(str(missing_extra(PAGE_NEEDS, "report"))) from error
    try:
        page = write_page(folder, price)
    except OSError as error:
        wrong = error.filename if Path(error.filename or folder).is_file() else folder
        said = str(error) if error.strerror is None else f"{wrong}: {error.strerror}."
        raise Refusal(f"No page was written. {said}") from error
    except ValueError as error:
        raise Refusal(f"No page was written. {error}") from error
    say(f"Written: {page}", soft_wrap=True)
