"""What must work with the core dependencies alone: run by `make core` in an environment of its own.

No pytest: nothing but the package is installed there.
"""

import importlib.util
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

import numpy as np

import unsoftmax as us

COMMAND = Path(sys.executable).with_name("unsoftmax")
HEAD = us.SingleHead(np.eye(2), np.ones(2))
EXTRAS = {
    "matplotlib": ("report", lambda: us.learn(HEAD, us.learners.ExactHead(2)).plot()),
    "torch": ("torch", lambda: us.oracles.from_torch(None)),
    "onnxruntime": ("onnx", lambda: us.oracles.from_onnx(__file__)),
    "httpx": ("http", lambda: us.oracles.from_url("http://127.0.0.1:9/v2/models/x")),
    "tritonclient": ("grpc", lambda: us.oracles.from_grpc("grpc://127.0.0.1:9/x")),
    "distributed": ("dask", lambda: us.oracles.on_dask(None, len)),
}


def called(*words: object, status: int = 0) -> str:
    """Run the command line; return what it said."""
    done = subprocess.run([str(COMMAND), *map(str, words)], capture_output=True, text=True)
    if done.returncode != status:
        sys.exit(f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def named(package: str, extra: str, said: str) -> None:
    """End unless a sentence names the extra."""
    wanted = f"This needs {package}: pip install 'unsoftmax[{extra}]'."
    if wanted not in said or "Traceback" in said:
        sys.exit(f"Without {package} one line should name the extra {extra}; it was: {said}")


def main() -> None:
    """Recover a head in Python and on the command line; see that every extra is named."""
    rng = np.random.default_rng(0)
    secret = us.SingleHead(rng.standard_normal((6, 6)), rng.standard_normal(6))
    if not us.equivalent(us.learn(secret, us.learners.ExactHead(6)).model, secret):
        sys.exit("The head was not recovered.")
    if not resources.files("unsoftmax.report").joinpath("templates/page.html").is_file():
        sys.exit("The page's template is not installed.")
    for package, (extra, ask) in EXTRAS.items():
        if importlib.util.find_spec(package) is not None:
            sys.exit(f"{package} is installed: this is to run without the extras.")
        try:
            ask()
        except ImportError as error:
            named(package, extra, str(error))
        else:
            sys.exit(f"{package} is missing, and nothing said so.")
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "m.safetensors", Path(folder) / "out"
        secret.save(file)
        called("--help")
        called("plan", "--dim", 6)
        named("matplotlib and jinja2", "report", called("learn", file, "--out", out))
        named("matplotlib and jinja2", "report", called("report", out, status=2))
        called("compare", file, out / "model.safetensors")
        onnx = Path(folder) / "m.onnx"
        onnx.write_bytes(b"")
        url = "http://127.0.0.1:9/v2/models/x"
        for target, package, extra in ((onnx, "onnxruntime", "onnx"), (url, "httpx", "http")):
            said = called("learn", target, "--dim", 6, "--out", out, status=2)
            named(package, extra, said)


if __name__ == "__main__":
    main()
