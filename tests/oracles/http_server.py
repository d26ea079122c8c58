"""A small real HTTP server on loopback that speaks the Open Inference Protocol."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

METADATA = {
    "inputs": [{"name": "X", "datatype": "FP64", "shape": [-1, -1, 3]}],
    "outputs": [{"name": "y", "datatype": "FP64", "shape": [-1]}],
}
BINARY = ("binary_tensor_data",)
"""The extension by which tensors go in binary."""


@contextmanager
def serving(infer, metadata=METADATA, extensions=()):
    """Serve a model whose answers ``infer(handler, body)`` writes; yields its URL and requests."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # headers and body are two packets: with Nagle's algorithm every answer waits 40 ms
        disable_nagle_algorithm = True

        def send(self, status=200, body=b"", **headers):
            self.send_response(status)
            for name, value in {"Content-Length": len(body), **headers}.items():
                self.send_header(name.replace("_", "-"), str(value))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            content = metadata if "models" in self.path else {"extensions": list(extensions)}
            requests.append((self.path, dict(self.headers), b""))
            self.send(body=json.dumps(content).encode())

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((self.path, dict(self.headers), body))
            infer(self, body)

        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v2/models/head", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def sequences(body):
    """Read a request's sequences."""
    [tensor] = json.loads(body)["inputs"]
    return np.array(tensor["data"]).reshape(tensor["shape"])


def output(y):
    """Write an answer's tensor."""
    tensor = {"name": "y", "shape": list(y.shape), "datatype": "FP64", "data": y.ravel().tolist()}
    return json.dumps({"outputs": [tensor]}).encode()


def in_json(target):
    """Answer by a function, tensors in JSON."""

    def infer(handler, body):
        handler.send(body=output(target(sequences(body))))

    return infer


def in_binary(target):
    """Answer by a function, tensors in binary."""

    def infer(handler, body):
        end = int(handler.headers["Inference-Header-Content-Length"])
        [tensor] = json.loads(body[:end])["inputs"]
        dtype = {"FP64": "<f8", "FP32": "<f4", "FP16": "<f2"}[tensor["datatype"]]
        assert tensor["parameters"]["binary_data_size"] == len(body) - end
        y = target(np.frombuffer(body[end:], dtype).reshape(tensor["shape"])).astype(dtype)
        size = {"binary_data_size": y.nbytes}
        one = {"name": "y", "shape": [*y.shape], "datatype": tensor["datatype"], "parameters": size}
        # another output stands before ours
        gap = {"binary_data_size": 8}
        other = {"name": "z", "shape": [1], "datatype": "FP64", "parameters": gap}
        header = json.dumps({"outputs": [other, one]}).encode()
        answer = header + bytes(8) + y.tobytes()
        handler.send(body=answer, Inference_Header_Content_Length=len(header))

    return infer


def failing_as_500(infer):
    """Answer 500 where the function raises, as servers do."""

    def careful(handler, body):
        try:
            infer(handler, body)
        except RuntimeError as error:
            handler.send(500, str(error).encode())

    return careful


def answering(model, seen, fails=lambda asked: None):
    """Answer JSON requests {"inputs": …} with {"outputs": [{"hidden": number}, …]}."""

    def infer(handler, body):
        X = np.array(json.loads(body)["inputs"])
        seen.append(len(X))
        status = fails(len(seen))
        y = [] if status else [{"hidden": float(one)} for one in model(X)]
        handler.send(status or 200, json.dumps({"outputs": y}).encode())

    return infer
