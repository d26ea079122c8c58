"""Every extra is optional: without it the rest works, and a sentence names it."""

import subprocess
import sys
import textwrap

WITHOUT = """
    import sys

    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in {absent!r}:
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

    sys.meta_path.insert(0, Absent())
    import unsoftmax as us

    us.learn(us.SingleHead([[1.0]], [1.0]), us.learners.ExactHead(1))
    for call in {calls!r}:
        try:
            eval(call)
        except ImportError as error:
            print(error)
"""

# package, what needs it, and the extra it comes with
EXTRAS = [
    ("torch", "us.oracles.from_torch(None)", "torch"),
    ("httpx", "us.oracles.from_url('http://127.0.0.1:9/v2/models/x')", "http"),
    ("tritonclient", "us.oracles.from_grpc('grpc://127.0.0.1:9/x')", "grpc"),
    ("distributed", "us.oracles.on_dask(None, len)", "dask"),
    ("onnxruntime", "us.oracles.from_onnx(__file__)", "onnx"),
]


def test_what_is_not_installed_is_named(tmp_path):
    script = tmp_path / "script.py"
    packages, calls, extras = zip(*EXTRAS, strict=True)
    script.write_text(textwrap.dedent(WITHOUT).format(absent=packages, calls=calls))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"This needs {package}: pip install 'unsoftmax[{extra}]'."
        for package, extra in zip(packages, extras, strict=True)
    ]
