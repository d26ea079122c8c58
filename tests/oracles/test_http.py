"""The HTTP oracle before servers that fail, stall or attack: real sockets on loopback."""

import json
import pickle
import socket
import threading
import time
from contextlib import ExitStack
from urllib.parse import urlsplit

import numpy as np
import pytest

import unsoftmax as us
from tests.oracles.http_server import BINARY, METADATA, in_binary, in_json, sequences, serving

pytest.importorskip("httpx", reason="the extra http")
pytest.importorskip("orjson", reason="the extra http")

HEAD = us.SingleHead(np.eye(3), [1.0, 2.0, -1.0])
PATIENT = us.oracles.HttpLimits(timeout_s=20.0)


answered = in_json(HEAD)


def learn(url, **settings):
    oracle = us.oracles.from_url(url, limits=PATIENT)
    return us.learn(oracle, us.learners.ExactHead(3), **settings)


def test_numbers_come_and_go_with_all_their_digits():
    with serving(answered) as (url, requests):
        oracle = us.oracles.from_url(url + "/")
        X = np.random.default_rng(0).standard_normal((5, 4, 3)) * 10.0 ** np.arange(-2, 1)
        assert np.array_equal(oracle(X), HEAD(X))
        assert np.array_equal(sequences(requests[-1][2]), X)
        assert oracle.dim == 3
        assert requests[-1][1]["Accept-Encoding"] == "identity"


@pytest.mark.parametrize(("datatype", "digits"), [("FP64", 1e-15), ("FP32", 1e-6), ("FP16", 1e-2)])
def test_tensors_in_binary(datatype, digits):
    metadata = {**METADATA, "inputs": [{**METADATA["inputs"][0], "datatype": datatype}]}
    X = np.random.default_rng(0).standard_normal((5, 4, 3))
    for serve, extensions in ((in_binary(HEAD), BINARY), (answered, ())):
        with serving(serve, metadata, extensions) as (url, _):
            y = us.oracles.from_url(url)(X)
            assert np.allclose(y, HEAD(X), rtol=digits, atol=digits)


def test_an_answer_in_binary_shows_an_extension_that_metadata_does_not_name():
    """As of KServe, which also writes null for what it leaves out."""

    def infer(handler, body):
        if handler.headers["Inference-Header-Content-Length"]:
            return in_binary(HEAD)(handler, body)
        [wanted] = json.loads(body)["outputs"]
        assert wanted["parameters"] == {"binary_data": True}
        y = HEAD(sequences(body))
        one = {"name": "y", "shape": [len(y)], "datatype": "FP64", "data": None}
        other = {"name": "z", "shape": [1], "datatype": "FP64", "parameters": None, "data": [0.0]}
        header = json.dumps(
            {"outputs": [other, one | {"parameters": {"binary_data_size": y.nbytes}}]}
        ).encode()
        handler.send(body=header + y.tobytes(), Inference_Header_Content_Length=len(header))

    X = np.random.default_rng(0).standard_normal((5, 4, 3))
    with serving(infer) as (url, requests):
        oracle = us.oracles.from_url(url)
        assert np.array_equal(oracle(X), HEAD(X))
        assert np.array_equal(pickle.loads(pickle.dumps(oracle))(X), HEAD(X))
        lengths = [len(body) for _, _, body in requests if body]
        assert lengths[1] < lengths[0]
    with serving(answered) as (url, requests):
        oracle = us.oracles.from_url(url)
        assert np.array_equal(oracle(X), oracle(X))
        assert len({body for _, _, body in requests if body}) == 1


# -- what does not fit is a sentence before anything is paid


@pytest.mark.parametrize(
    ("metadata", "named", "sentence"),
    [
        ({"inputs": [{"name": "X", "datatype": "BYTES", "shape": [-1, -1, 3]}]}, {}, "is BYTES"),
        ({"inputs": [{"name": "X", "datatype": "FP32", "shape": [-1, 3]}]}, {}, "has shape"),
        ({"inputs": [*METADATA["inputs"], {"name": "Z"}]}, {}, "several inputs, X, Z: name one"),
        (METADATA, {"input": "Z"}, "no input Z, but X"),
        (METADATA, {"output": "Z"}, "no output Z, but y"),
        ([], {}, "no JSON object"),
    ],
)
def test_a_model_that_takes_no_sequences_of_vectors(metadata, named, sentence):
    with serving(answered, metadata) as (url, requests):
        with pytest.raises(us.OracleError, match=sentence):
            us.oracles.from_url(url, **named)
        assert all(body == b"" for _, _, body in requests)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://127.0.0.1/models/head", "no model's URL"),
        ("http://127.0.0.1/v2/models/", "no model's URL"),
        ("ftp://127.0.0.1/v2/models/head", "no model's URL"),
        ("head", "no model's URL"),
    ],
)
def test_what_is_no_url_of_a_model(url, sentence):
    with pytest.raises(ValueError, match=sentence):
        us.oracles.from_url(url)


def test_nobody_there_and_no_such_model():
    with serving(answered) as (url, _):
        pass
    with pytest.raises(us.OracleError, match="does not answer"):
        us.oracles.from_url(url)

    # every path but the model's own is unknown
    with serving(lambda handler, body: handler.send(404, b'{"error": "unknown model"}')) as (
        url,
        _,
    ):
        oracle = us.oracles.from_url(url + "/versions/2")
        with pytest.raises(us.OracleError, match=r"answered 404: .*unknown model"):
            oracle(np.ones((1, 1, 3)))


def test_metadata_may_leave_tensors_out():
    with serving(answered, {}) as (url, _):
        oracle = us.oracles.from_url(url, input="X")
        assert np.array_equal(oracle(np.ones((2, 1, 3))), [2.0, 2.0])
        assert not hasattr(oracle, "dim")


# -- faults that pass


class Sometimes:
    """Misbehaves at every third request."""

    def __init__(self, fault):
        self.fault, self.asked, self.lock = fault, 0, threading.Lock()

    def __call__(self, handler, body):
        with self.lock:
            self.asked += 1
            bad = self.asked % 3 == 2
        (self.fault if bad else answered)(handler, body)


def cut(handler, body):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"outputs": [')
    handler.wfile.flush()
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


FAULTS = {
    "500": lambda handler, body: handler.send(500, b"out of memory"),
    "502": lambda handler, body: handler.send(502),
    "429 with seconds": lambda handler, body: handler.send(429, Retry_After="0"),
    "503 with a date": lambda handler, body: handler.send(
        503, Retry_After="Wed, 21 Oct 2015 07:28:00 GMT"
    ),
    "a cut connection": cut,
    "no JSON": lambda handler, body: handler.send(body=b"{"),
    "deep JSON": lambda handler, body: handler.send(body=b"[" * 100_000),
    "another object": lambda handler, body: handler.send(body=b"[1, 2]"),
    "no output": lambda handler, body: handler.send(body=b'{"outputs": []}'),
    "a tensor of another size": lambda handler, body: handler.send(
        body=b'{"outputs": [{"name": "y", "shape": [7], "datatype": "FP64", "data": [1]}]}'
    ),
    "words": lambda handler, body: handler.send(
        body=b'{"outputs": [{"name": "y", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}'
    ),
    "NaN": lambda handler, body: handler.send(
        body=b'{"outputs": [{"name": "y", "shape": [1], "datatype": "FP64", "data": [NaN]}]}'
    ),
    "a wrong header": lambda handler, body: handler.send(
        body=b"{}", Inference_Header_Content_Length="-1"
    ),
}


@pytest.mark.few(13)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("workers", [1, 3])
def test_what_passes_is_asked_again_and_nothing_is_paid_twice(fault, workers):
    with serving(Sometimes(FAULTS[fault])) as (url, requests):
        retries = us.Retries(tries=6, pause_s=0.0)
        recovery = learn(url, workers=workers, batch=4, retries=retries)
        assert us.equivalent(recovery.model, HEAD)
        asked = sum(len(sequences(body)) for _, _, body in requests if body)
        put_off = fault.startswith(("429", "503"))
        assert asked >= recovery.queries if put_off else asked == recovery.queries
        assert ("failed" in recovery.counts) != put_off


def test_an_endpoint_that_stays_busy_is_left(monkeypatch):
    with serving(lambda handler, body: handler.send(429, Retry_After="30")) as (url, _):
        with pytest.raises(us.OracleError, match="put off"):
            learn(url, retries=us.Retries(longest_wait_s=0.2))
        with pytest.raises(us.RetryLater) as later:
            us.oracles.from_url(url)(np.ones((1, 1, 3)))
        assert later.value.seconds == 30.0


# -- what does not pass is refused, bounded


def slowly(handler, body):
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    for _ in range(100):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)


def endless(handler, body):
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    for _ in range(2000):
        handler.wfile.write(b"10000\r\n" + b" " * 65536 + b"\r\n")


@pytest.mark.parametrize(
    ("infer", "error", "sentence"),
    [
        (slowly, TimeoutError, "longer than 0.5 s"),
        (lambda handler, body: time.sleep(2), TimeoutError, "longer than 0.5 s"),
        (endless, us.OracleError, r"more than [\d,]+ bytes"),
        (lambda handler, body: handler.send(302, Location="http://elsewhere.example/x"),
         us.OracleError, r"redirects to elsewhere\.example"),
        (lambda handler, body: handler.send(body=b"x", Content_Encoding="gzip"),
         us.OracleError, "sends gzip"),
        (lambda handler, body: handler.send(422, b"x" * 10_000), us.OracleError, "answered 422: x"),
        (lambda handler, body: handler.send(401, b"who?"), us.OracleError, "no Authorization"),
    ],
)  # fmt: skip
def test_a_hostile_server_is_bounded(infer, error, sentence):
    with serving(infer) as (url, _):
        oracle = us.oracles.from_url(url, limits=us.oracles.HttpLimits(timeout_s=0.5))
        began = time.monotonic()
        with pytest.raises(error, match=sentence) as refused:
            oracle(np.ones((1, 1, 3)))
        assert time.monotonic() - began < 10
        assert len(str(refused.value)) < 600


def test_another_model_behind_the_url_after_a_restart_is_noticed(tmp_path):
    ledger = tmp_path / "ledger.sqlite"
    with serving(answered) as (url, _), pytest.raises(us.BudgetExceeded):
        learn(url, ledger=ledger, budget=10)
    other = us.SingleHead(2 * np.eye(3), [1.0, 2.0, -1.0])
    with serving(in_json(other)) as (url, _), pytest.raises(us.LedgerMismatch):
        learn(url, ledger=ledger)


# -- the secret


def test_the_authorization_header_is_sent_and_nowhere_else(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TOKEN_OF_THE_TEST", "Bearer s3cr3t")
    caplog.set_level("DEBUG")
    with serving(Sometimes(FAULTS["500"])) as (url, requests):
        oracle = us.oracles.from_url(url, auth="TOKEN_OF_THE_TEST")
        recovery = us.learn(oracle, us.learners.ExactHead(3), ledger=tmp_path / "ledger.sqlite")
        recovery.save(tmp_path)
        assert all(headers["Authorization"] == "Bearer s3cr3t" for _, headers, _ in requests)
    with serving(FAULTS["500"]) as (url, _):
        oracle = us.oracles.from_url(url, auth="TOKEN_OF_THE_TEST")
        with pytest.raises(us.OracleError) as failed:
            us.learn(oracle, us.learners.ExactHead(3), retries=1)
    chain: list[str] = []
    error: BaseException | None = failed.value
    while error is not None:
        chain.append(repr(error) + repr(vars(error)))
        error = error.__cause__ or error.__context__
    written = [path.read_bytes() for path in tmp_path.iterdir()]
    shown = " ".join([*chain, repr(oracle), str(pickle.dumps(oracle)), caplog.text])
    assert "s3cr3t" not in shown
    assert not any(b"s3cr3t" in content for content in written)
    monkeypatch.delenv("TOKEN_OF_THE_TEST")
    with pytest.raises(ValueError, match="TOKEN_OF_THE_TEST, which should hold"):
        us.oracles.from_url(url, auth="TOKEN_OF_THE_TEST")


# -- the way there


PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")


@pytest.fixture
def no_proxies(monkeypatch):
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", PROXIES[:4])
@pytest.mark.parametrize("scheme", ["http://", ""])
def test_a_proxy_of_the_environment_is_used(monkeypatch, no_proxies, name, scheme):
    with serving(answered) as (url, requests):
        monkeypatch.setenv(name, scheme + urlsplit(url).netloc)
        oracle = us.oracles.from_url("http://model.example/v2/models/head")
        assert np.array_equal(oracle(np.ones((2, 1, 3))), [2.0, 2.0])
        assert {path.partition("/v2")[0] for path, _, _ in requests} == {"http://model.example"}


@pytest.mark.parametrize("name", PROXIES[:4])
def test_nothing_is_said_to_a_proxy_that_speaks_another_protocol(monkeypatch, no_proxies, name):
    with serving(answered) as (url, requests):
        monkeypatch.setenv(name, url.partition("/v2")[0].replace("http", "socks5"))
        monkeypatch.setenv("TOKEN", "Bearer not-for-a-proxy")
        with pytest.raises(ValueError, match=r"speaks socks5.*nothing was sent"):
            us.oracles.from_url("http://model.example/v2/models/head", auth="TOKEN")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        us.oracles.from_url(url)
    assert all(path.startswith("/v2") for path, _, _ in requests)


def test_https_to_a_server_without_it_with_a_secret(monkeypatch):
    monkeypatch.setenv("TOKEN", "Bearer secret")
    with serving(answered) as (url, _), pytest.raises(us.OracleError, match="go in clear"):
        us.oracles.from_url(url.replace("http:", "https:"), auth="TOKEN", limits=PATIENT)


def test_https_to_a_server_without_it():
    with serving(answered) as (url, requests):
        with pytest.raises(us.OracleError, match="does not speak TLS there; try http://"):
            us.oracles.from_url(url.replace("http:", "https:"), limits=PATIENT)
        assert not requests


@pytest.mark.parametrize(("header", "said"), [("abc12345678", True), ("Bearer abc12345678", False)])
def test_a_token_without_its_scheme_is_said_where_it_is_refused(monkeypatch, header, said):
    monkeypatch.setenv("TOKEN_OF_THE_TEST", header)
    with serving(lambda handler, body: handler.send(401, b"who?")) as (url, _):
        oracle = us.oracles.from_url(url, auth="TOKEN_OF_THE_TEST")
        with pytest.raises(us.OracleError, match="It was sent the header in") as refused:
            oracle(np.zeros((1, 1, 3)))
    assert ("write Bearer before it" in str(refused.value)) == said
    assert "abc12345678" not in str(refused.value)


def test_a_host_that_takes_no_connection_fails_in_a_second():
    """A full backlog drops what comes, as a wrong address does."""
    with ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        began = time.monotonic()
        with pytest.raises(us.OracleError, match=r"took no connection in time\. Check the host"):
            us.oracles.from_url(f"http://127.0.0.1:{full.getsockname()[1]}/v2/models/head")
        assert time.monotonic() - began < 10  # of 60 that a call may take
