"""Endpoints of no protocol: JSON by a template, a pace, and numbers in bfloat16."""

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unsoftmax as us
from tests.oracles.http_server import answering, serving
from tests.oracles.servers import DIM, Server, free_port, head
from unsoftmax.oracles.http_oracle import JsonTemplate
from unsoftmax.oracles.open_inference import ProtocolError, answer, request, signature

pytest.importorskip("httpx", reason="the extra http")
pytest.importorskip("orjson", reason="the extra http")

FASTAPI = os.environ.get("KSERVE", "")
"""A Python that has FastAPI: KServe's own server is written with it."""
SERVICE = Path(__file__).parents[2] / "examples" / "json" / "service.py"


@given(st.lists(st.sampled_from(["a", "hidden", 0, 1]), min_size=1, max_size=4), st.integers(0, 9))
def test_numbers_are_found_at_every_path(steps, seed):
    numbers = np.random.default_rng(seed).standard_normal((2, 3))
    content: object = numbers.tolist()
    for step in reversed(steps):
        content = [None] * step + [content] if isinstance(step, int) else {step: content, "b": 7}
    found = JsonTemplate('{"x": {X}}', ".".join(map(str, steps)))
    received = json.dumps(content).encode()
    np.testing.assert_array_equal(found.numbers(received), numbers)
    with pytest.raises(ProtocolError, match="nothing at"):
        JsonTemplate('{"x": {X}}', f"{found.answer}.absent").numbers(received)


@pytest.mark.parametrize(
    "wrong",
    ['{"inputs": "{X}"}', '{"a": {X}, "b": {x}}', '{"a": {X}, "b": {X}}', '{"a": {X}', '{"a": 1}'],
)
def test_what_is_no_request_is_refused_before_anything_is_sent(wrong):
    with pytest.raises(ValueError, match="once where numbers go"):
        us.oracles.from_url("http://127.0.0.1:9/ask", request=wrong, answer="y")


def test_a_place_that_names_nothing_and_half_a_template_are_refused():
    with pytest.raises(ValueError, match="names and indices"):
        us.oracles.from_url("http://127.0.0.1:9/ask", request="{X}", answer="y..0")
    with pytest.raises(ValueError, match="needs both"):
        us.oracles.from_url("http://127.0.0.1:9/ask", request="{X}")


def test_one_sequence_at_a_time_keeps_what_was_answered():
    """A server that fails at its 5th and 9th request: nothing else is asked twice."""
    seen: list[int] = []
    target = head(2)
    with serving(answering(target, seen, lambda n: 503 if n in (5, 9) else None)) as (url, _):
        oracle = us.oracles.from_url(
            url + "/ask", request='{"inputs": [{x}]}', answer="outputs.0.hidden"
        )
        patient = us.Retries(tries=3, pause_s=0.01)
        recovery = us.learn(
            oracle, us.learners.ExactHead(DIM, biases=True), batch=8, retries=patient
        )
    assert us.equivalent(recovery.model, target, rtol=1e-10)
    assert set(seen) == {1}
    asked_once = recovery.queries - recovery.counts["failed"]
    assert len(seen) == asked_once + 2


def test_requests_keep_to_a_pace():
    with serving(answering(head(0), [])) as (url, _):
        paced = us.oracles.HttpLimits(per_minute=1200)
        oracle = us.oracles.from_url(
            url + "/ask", None, None, None, paced, '{"inputs": [{x}]}', "outputs.0.hidden"
        )
        began = time.monotonic()
        oracle(np.ones((5, 2, DIM)))
        # a lower bound, which no load of the machine breaks
        assert time.monotonic() - began >= 4 * 60 / 1200


def test_an_answer_elsewhere_names_what_is_there():
    with serving(answering(head(0), [])) as (url, _):
        oracle = us.oracles.from_url(url + "/ask", request='{"inputs": {X}}', answer="y")
        with pytest.raises(ConnectionError, match="nothing at y; at its top is outputs"):
            oracle(np.ones((1, 2, DIM)))


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_bfloat16_goes_and_comes_as_the_nearest(numbers):
    model = {"inputs": [{"name": "X", "datatype": "BF16", "shape": [-1, -1, 1]}]}
    X = np.array(numbers)[None, :, None]
    body, headers = request(X, signature(model, {}))
    sent = np.frombuffer(body[int(headers["Inference-Header-Content-Length"]) :], "<u2")
    size = {"binary_data_size": 2 * len(numbers)}
    tensor = {"name": "y", "datatype": "BF16", "shape": [len(numbers)], "parameters": size}
    header = json.dumps({"outputs": [tensor]}).encode()
    lengths = {"Inference-Header-Content-Length": str(len(header))}
    came = answer(header + sent.tobytes(), lengths, signature(model, {}))
    # the nearest of the neighbours that have the upper 16 bits alone, ties to even ones
    bits = X.astype(np.float32).ravel().view(np.uint32) & 0xFFFF0000
    with np.errstate(over="ignore", invalid="ignore"):
        below, above = bits.view(np.float32), (bits + 0x10000).view(np.float32)
        half = below.astype(float) + (above.astype(float) - below.astype(float)) / 2
        half[~np.isfinite(above)] = np.sign(below[~np.isfinite(above)]) * (2.0**127 * (2 - 2**-8))
    x, even = X.ravel(), (bits >> 16) % 2 == 0
    up = (np.abs(x) > np.abs(half)) | ((np.abs(x) == np.abs(half)) & ~even)
    np.testing.assert_array_equal(came, np.where(up, above, below))


@pytest.mark.skipif(not FASTAPI, reason="KSERVE names no Python that has FastAPI")
def test_a_service_of_fastapi(tmp_path, monkeypatch):
    port, target = free_port(), head(0)
    shutil.copy(SERVICE, tmp_path)
    command = [FASTAPI, "-m", "uvicorn", "service:app", "--port", str(port)]
    server = Server(tmp_path, command, port, ready=[f"http://127.0.0.1:{port}/docs"])
    server.serve_head(target)
    try:
        monkeypatch.setenv("TOKEN", "Bearer open sesame")
        where = f"http://127.0.0.1:{port}/generate"

        def asked(auth):
            told = '{"inputs": {X}}', "outputs.*.hidden"
            return us.oracles.from_url(where, auth, request=told[0], answer=told[1])

        oracle = asked("TOKEN")
        recovery = us.learn(oracle, us.learners.ExactHead(DIM, biases=True))
        assert us.equivalent(recovery.model, target, rtol=1e-10)
        with pytest.raises(us.OracleError, match=r"401.*who are you.*no Authorization header"):
            asked(None)(np.ones((1, 1, DIM)))
    finally:
        server.kill()
