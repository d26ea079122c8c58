"""Public names of a package that are imported when they are first used (PEP 562).

``import unsoftmax`` waits for nothing, and a command for no more than it needs. So do packages that
come with an extra.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from unsoftmax.errors import missing_extra


def first_use(package: dict[str, Any], name: str, modules: Iterable[str]) -> Any:
    """Import a name from the first of a package's modules that has it, and keep it there.

    ``package`` is what ``globals()`` returns in the package, whose ``__getattr__`` calls this.
    ``modules`` are tried in their order: what imports the least comes first.

    Raises
    ------
    AttributeError
        The name is none that the package lists in ``__all__``.

    Examples
    --------
    >>> package = {"__name__": "unsoftmax", "__all__": ["OracleError"]}
    >>> first_use(package, "OracleError", ["errors"]) is package["OracleError"]
    True
    """
    for module in modules if name in package["__all__"] else ():
        found = import_module(f"{package['__name__']}.{module}")
        if hasattr(found, name):
            value = package[name] = getattr(found, name)
            return value
    raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")


def from_extra(module: str, extra: str) -> Any:
    """Import a module of a package that comes with an extra.

    Raises
    ------
    ImportError
        The package is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise missing_extra(module.partition(".")[0], extra) from error
