"""An endpoint that takes JSON, from the command line."""

import json

import pytest
from tests.commands import run
from tests.oracles.http_server import answering, serving
from tests.oracles.servers import DIM, head

import unsoftmax as us

pytest.importorskip("httpx", reason="the extra http")


def test_a_head_behind_json_is_recovered_from_the_command_line(tmp_path, monkeypatch):
    seen: list[int] = []
    target = head(1)
    monkeypatch.setenv("TOKEN", "Bearer open sesame")
    with serving(answering(target, seen)) as (url, requests):
        where = url.replace("/v2/models/head", "/generate")
        told = "--request", '{"inputs": {X}, "mode": "raw"}', "--answer", "outputs.*.hidden"
        done = run(
            tmp_path,
            *("learn", where, *told, "--auth", "TOKEN", "--model", "exact", "--biases"),
            *("--dim", DIM, "--out", "found"),
        )
        assert done.returncode == 0, done.stderr
        assert requests[0][1]["Authorization"] == "Bearer open sesame"
        assert json.loads(requests[0][2])["mode"] == "raw"
        assert {path for path, *_ in requests} == {"/generate"}
        target.save(tmp_path / "served.safetensors")
        checked = run(tmp_path, "verify", where, *told, "--weights", "served.safetensors")
    assert us.equivalent(us.load(tmp_path / "found" / "model.safetensors"), target, rtol=1e-10)
    assert checked.returncode == 0, checked.stderr
    counted = json.loads((tmp_path / "found" / "recovery.json").read_text())["queries"]
    assert counted <= sum(seen)
    local = "learn", "served.safetensors", "--model", "exact", "--out", "local"
    refused = run(tmp_path, *local, *told)
    assert refused.returncode == 2
    assert "are for endpoints" in refused.stderr
