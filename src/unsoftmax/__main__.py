"""`python -m unsoftmax`, the same as `unsoftmax`."""

from unsoftmax.cli import main

main()
