"""What the wheel and the sdist must hold: run by `make package` on the folder they were built into.

No pytest, nor the package itself: only what a release is made with is installed there.
"""

import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
# What someone who builds, tests or changes a release needs beside its source.
BESIDE = ("LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "Makefile", "tests/laws.py")


def the_one(folder: Path, pattern: str) -> Path:
    """Return the one file of its kind."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        sys.exit(f"There should be one {pattern} in {folder}: {[path.name for path in found]}.")
    return found[0]


def missed(what: str, wanted: set[str], held: set[str]) -> None:
    """End unless all files are there."""
    if lost := sorted(wanted - held):
        sys.exit(f"{what} lacks {', '.join(lost)}.")


def sources() -> set[str]:
    """Return the package's own files, relative to where it is imported from."""
    files = (path for path in (SOURCE / "unsoftmax").rglob("*") if path.is_file())
    return {
        path.relative_to(SOURCE).as_posix() for path in files if "__pycache__" not in path.parts
    }


def check_wheel(path: Path) -> str:
    """Refuse a wheel that lacks something, or holds more; return its version."""
    with zipfile.ZipFile(path) as wheel:
        held = set(wheel.namelist())
        [about] = {name.split("/")[0] for name in held if ".dist-info/" in name}
        version = str(message_from_bytes(wheel.read(f"{about}/METADATA"))["Version"])
        commands = wheel.read(f"{about}/entry_points.txt").decode()
    wanted = sources() | {"unsoftmax/py.typed", f"{about}/licenses/LICENSE"}
    missed(path.name, wanted, held)
    if more := sorted(name for name in held - wanted if not name.startswith(f"{about}/")):
        sys.exit(f"{path.name} holds what is no part of the package: {', '.join(more)}.")
    if "unsoftmax = unsoftmax.cli:main" not in commands:
        sys.exit(f"{path.name} has no command: {commands}")
    return version


def check_sdist(path: Path, version: str) -> None:
    """Refuse an sdist that lacks something."""
    with tarfile.open(path) as sdist:
        tops, names = set(), set()
        for name in sdist.getnames():
            top, _, rest = name.partition("/")
            tops.add(top)
            names.add(rest)
    if tops != {f"unsoftmax-{version}"}:
        sys.exit(f"{path.name} unpacks into {sorted(tops)}.")
    missed(path.name, {f"src/{name}" for name in sources()} | {*BESIDE}, names)


def main() -> None:
    """Check the wheel and the sdist of one version."""
    folder = Path(sys.argv[1])
    wheel, sdist = the_one(folder, "*.whl"), the_one(folder, "*.tar.gz")
    check_sdist(sdist, check_wheel(wheel))
    sizes = ", ".join(f"{path.name} ({path.stat().st_size:,} bytes)" for path in (wheel, sdist))
    print(f"Checked: {sizes}.")


if __name__ == "__main__":
    main()
