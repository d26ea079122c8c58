"""The client's side: a server that attacks whoever asks it; real sockets on loopback."""

import json
import socket
import threading
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest

import unsoftmax as us
from tests.oracles.http_server import METADATA, in_json, serving

pytest.importorskip("httpx", reason="the extra http")
pytest.importorskip("orjson", reason="the extra http")

HEAD = us.SingleHead(np.eye(3), [1.0, 2.0, -1.0])
ONE = np.ones((1, 1, 3))
SECRET = "Bearer s3cr3t-of-the-test"
QUICK = us.oracles.HttpLimits(timeout_s=0.5)


# -- time: a call ends when it must, whatever comes slowly


def head_byte_by_byte(connection):
    for byte in b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * 10_000:
        connection.sendall(bytes([byte]))
        time.sleep(0.05)


def continue_for_ever(connection):
    for _ in range(1000):
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(0.05)


def body_byte_by_byte(connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    for _ in range(1000):
        connection.sendall(b" ")
        time.sleep(0.05)


def endless_headers(connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for k in range(100_000):
        connection.sendall(b"X-%d: %s\r\n" % (k, b"a" * 1000))


def wrong_length(connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}")


def two_lengths(connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 9\r\n\r\n{}")


def no_http(connection):
    connection.sendall(b"220 smtp.example ESMTP\r\n" * 3)


@contextmanager
def attacking(attack):
    """Answer every connection by an attack on its socket."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    connection.recv(65536)
                    attack(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v2/models/head"


@pytest.mark.parametrize(
    "attack",
    [head_byte_by_byte, continue_for_ever, body_byte_by_byte, endless_headers, wrong_length,
     two_lengths, no_http],
)  # fmt: skip
def test_a_call_ends_in_time_and_in_a_sentence(attack):
    with attacking(attack) as url:
        began = time.monotonic()
        with pytest.raises(us.OracleError, match="does not answer") as refused:
            us.oracles.from_url(url, limits=QUICK)
        assert time.monotonic() - began < 20
        assert len(str(refused.value)) < 600


# -- words: what a server says is cut, cleaned and free of the secret


@pytest.mark.parametrize(
    "status", [200, 302, 400, 401, 403, 404, 422, 500],
)  # fmt: skip
def test_the_secret_that_a_server_sends_back_is_not_shown(status, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("TOKEN_OF_THE_TEST", SECRET)
    monkeypatch.setattr(us.Retries, "pause", lambda self, failed: 0.0)
    caplog.set_level("DEBUG")

    def echo(handler, body):
        said = handler.headers["Authorization"]
        content = {"outputs": [{"name": "y", "shape": [1], "datatype": said, "data": [said]}]}
        body = json.dumps(content).encode() if status == 200 else f"no {said}!".encode()
        where = f"http://{said.split()[1]}.example/"
        handler.send(status, body, Location=where, X_Echo=said)

    with serving(echo) as (url, _):
        oracle = us.oracles.from_url(url, auth="TOKEN_OF_THE_TEST")
        with pytest.raises(us.OracleError) as failed:
            us.learn(oracle, us.learners.ExactHead(3), ledger=tmp_path / "ledger.sqlite")
    chain: list[str] = []
    error: BaseException | None = failed.value
    while error is not None:
        chain.append(str(error) + repr(error) + repr(getattr(error, "__notes__", "")))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    # httpcore's own DEBUG log has what headers a server sends (docs/security.md)
    logged = [str(x.getMessage()) for x in caplog.records if not x.name.startswith("httpcore")]
    for text in (*chain, *logged, repr(oracle), written.decode("latin-1")):
        assert "s3cr3t" not in text


def test_what_a_terminal_would_obey_is_not_shown():
    said = "\x1b[2J\x1b]0;owned\x07 no\r\nSecond line \u202e reversed" + "x" * 5000
    with (
        serving(lambda handler, body: handler.send(400, said.encode())) as (url, _),
        pytest.raises(us.OracleError) as refused,
    ):
        us.oracles.from_url(url)(ONE)
    told = str(refused.value)
    assert told.isprintable()
    assert "Second line" in told
    assert len(told) < 600


@pytest.mark.parametrize(
    "value", ["Bearer s3cr3t\nX-Other: 1", "Bearer s3cr3t\u20ac", "s3\x00cr3t"]
)
def test_a_secret_that_no_header_may_hold_is_not_told(value, monkeypatch):
    if "\x00" in value:
        monkeypatch.setattr("os.environ", {"TOKEN_OF_THE_TEST": value})
    else:
        monkeypatch.setenv("TOKEN_OF_THE_TEST", value)
    with pytest.raises(ValueError, match="TOKEN_OF_THE_TEST holds characters") as refused:
        us.oracles.from_url("http://127.0.0.1:9/v2/models/head", auth="TOKEN_OF_THE_TEST")
    assert "cr3t" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://me:s3cr3t@127.0.0.1/v2/models/head",
        "me:s3cr3t@127.0.0.1/v2/models/head",
        "http://127.0.0.1/v2/models/head?key=s3cr3t",
        "http://127.0.0.1/models/head?key=s3cr3t",
        "http://127.0.0.1/v2/models/head#s3cr3t",
    ],
)
def test_a_secret_in_the_url_is_refused_and_not_told(url):
    with pytest.raises(ValueError, match="would be logged") as refused:
        us.oracles.from_url(url)
    assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize("host", ["127.0.0.1:99999", "[::1", "127.0.0.1:0", "h\u00f6st", "a b"])
def test_what_is_no_host_is_a_value_error(host):
    with pytest.raises(ValueError, match=r"\w"):
        us.oracles.from_url(f"http://{host}/v2/models/head")


def test_no_cookie_is_kept():
    def infer(handler, body):
        handler.send_response(200)
        answer = b'{"outputs": [{"name": "y", "shape": [1], "datatype": "FP64", "data": [1.0]}]}'
        handler.send_header("Set-Cookie", "known=you; Path=/")
        handler.send_header("Content-Length", str(len(answer)))
        handler.end_headers()
        handler.wfile.write(answer)

    with serving(infer) as (url, requests):
        oracle = us.oracles.from_url(url)
        for _ in range(3):
            oracle(ONE)
        assert not any("Cookie" in headers for _, headers, _ in requests)


# -- shapes: metadata and answers of any form are sentences


@pytest.mark.parametrize(
    "tensors",
    [
        5, "X", {"name": "X"}, [[]], [None], [{"name": None}], [{"name": ["X"]}],
        [{"name": "X", "datatype": ["FP64"]}], [{"name": "X", "datatype": {}}],
        [{"name": "X", "shape": 3}], [{"name": "X", "shape": [True, True, True]}],
        [{"name": "X", "shape": [-1, -1, 10**30]}], [{"name": "X" * 10**6, "datatype": "Y"}],
        [{"name": "\x1b[2J", "datatype": "Y"}],
    ],
)  # fmt: skip
def test_metadata_of_any_form(tensors):
    metadata = {"inputs": tensors, "outputs": tensors, "extensions": 7}
    told = "ok"
    with serving(in_json(HEAD), metadata) as (url, _):
        try:
            us.oracles.from_url(url)
        except us.OracleError as error:
            told = str(error)
    assert told.isprintable()
    assert len(told) < 600


BODIES = [
    {"outputs": 5}, {"outputs": [5]}, {"outputs": [{"name": "y"}]}, {"outputs": {"name": "y"}},
    *(
        {"outputs": [{"name": "y", "datatype": "FP64", "shape": [1], "data": [1.0]} | change]}
        for change in (
            {"shape": [10**18]}, {"shape": [1, 10**30]}, {"shape": [0, 2**62]}, {"shape": [-1]},
            {"shape": "1"}, {"shape": None}, {"shape": [1.5]}, {"data": {"a": 1}}, {"data": None},
            {"data": [[1.0], [1.0, 2.0]]}, {"data": ["1"]}, {"datatype": ["FP64"]},
            {"parameters": None}, {"parameters": {"binary_data_size": 10**40}},
            {"parameters": {"binary_data_size": -1}}, {"parameters": {"binary_data_size": "1e9"}},
            {"data": [1.0, 2.0], "shape": [2]}, {"data": [], "shape": [1, 0]},
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("content", BODIES, ids=lambda content: json.dumps(content)[12:60])
def test_answers_of_any_form(content, monkeypatch):
    monkeypatch.setattr(us.Retries, "pause", lambda self, failed: 0.0)
    body = json.dumps(content).encode()
    with (
        serving(lambda handler, _: handler.send(body=body), METADATA) as (url, _),
        pytest.raises(us.UnsoftmaxError) as refused,
    ):
        us.learn(us.oracles.from_url(url), us.learners.ExactHead(3), retries=2)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 900
