"""What the package does with the program that VLLM_VCR_PROGRAM names."""

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from vllm_vcr import Server, ServerError, program


def post(server, path="/v1/completions", timeout=10, headers=None, **body):
    data = json.dumps({"model": server.model, "prompt": "Hi", "max_tokens": 5, **body}).encode()
    headers = {"Content-Type": "application/json", **(headers or {})}
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url + path, data, headers), timeout=timeout) as got:
            return json.load(got)
    except urllib.error.HTTPError as error:
        error.close()
        raise


def test_requests(vllm_server):
    post(vllm_server, temperature=0.25, headers={"X-Request-Id": "mine"})
    (request,) = vllm_server.requests(ended=1)
    assert (request.prompt, request.finish_reason, request.aborted) == ("Hi", "length", False)
    assert request.external_id == "cmpl-mine"
    assert request.params["temperature"] == 0.25
    assert len(request.output_token_ids) == 5
    assert 0 <= request.ttft_ms <= request.duration_ms
    assert request.other == {}


def test_each_test_begins_anew(vllm_server):
    assert vllm_server.requests() == []
    assert vllm_server.model == "tiny"


@pytest.mark.vllm_server("my-model", line="0.32", inter_token_latency="1ms")
def test_options_and_abort(vllm_server):
    assert (vllm_server.model, vllm_server.line) == ("my-model", "0.32")
    body = {"model": "my-model", "prompt": "Hi", "max_tokens": 30000, "ignore_eos": True, "stream": True}
    asked = urllib.request.Request(
        vllm_server.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked) as stream:
        assert stream.readline().startswith(b"data: ")
    (request,) = vllm_server.requests(ended=1)
    assert request.aborted


def test_too_few_requests(vllm_server):
    with pytest.raises(TimeoutError, match="0 of 0 requests have ended after 0 s, expected 1"):
        vllm_server.requests(ended=1, timeout=0)


def test_faults(vllm_server):
    vllm_server.fault("http-fail:1:429:2s")
    with pytest.raises(urllib.error.HTTPError) as failed:
        post(vllm_server)
    assert (failed.value.code, failed.value.headers["Retry-After"]) == (429, "2")
    assert post(vllm_server)["choices"]
    with pytest.raises(ServerError, match="only faults of HTTP can be changed"):
        vllm_server.fault("kill")


def test_answers(vllm_server, tmp_path):
    def ask(server, question):
        got = post(server, "/v1/chat/completions", messages=[{"role": "user", "content": question}], max_tokens=50)
        message = got["choices"][0]["message"]
        return message["content"] or message["tool_calls"][0]["function"]

    vllm_server.answer("Rain.", match="weather")
    vllm_server.answer("Sun.", match="weather", nth=2)
    vllm_server.answer(tool_calls=[{"name": "add", "arguments": {"a": 1}}], match="sum")
    assert [ask(vllm_server, "Which weather?") for _ in range(3)] == ["Rain.", "Sun.", "Rain."]
    with pytest.raises(ServerError, match="reasoning: the frontend has no parser"):
        vllm_server.answer("x", reasoning="y")
    rules = tmp_path / "rules.json"
    rules.write_text('{"rules": [{"match": {"model": "t.*"}, "answer": {"text": "Of the file.", "delay": "1ms"}}]}')
    with Server(answers=str(rules)) as server:
        server.answer("Chosen.")
        assert ask(server, "x") == "Chosen."
        server.reset()
        assert ask(server, "x") == "Of the file."


def test_metrics(vllm_server):
    before = vllm_server.metrics()["vllm:prompt_tokens_total"]
    tokens = post(vllm_server)["usage"]["prompt_tokens"]
    vllm_server.requests(ended=1)
    assert vllm_server.metrics()["vllm:prompt_tokens_total"] == before + tokens


def test_end():
    with Server(faults="kill:1") as server:
        with pytest.raises(OSError):
            post(server)
        server._process.wait(10)
        with pytest.raises(ServerError, match="the server has ended with exit code"):
            server.requests()
    assert "kill" in server.log()


def test_no_start():
    with pytest.raises(ServerError, match=r"(?s)exit code 2.*--time-scale"):
        Server(time_scale="x")


def test_command():
    done = subprocess.run([sys.executable, "-m", "vllm_vcr", "serve", "--port", "x"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "--port" in done.stderr


def test_log_of_a_failed_test(pytester):
    pytester.makepyfile("""
        def test_it(vllm_server):
            vllm_server.fault("status:503")
            assert False
    """)
    result = pytester.runpytest_subprocess("--vllm-vcr-args=--frontend=builtin --verbose")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*- vllm-vcr http://127.0.0.1:*", "*the configuration was changed*status:503*"])


GATEWAY = """
import contextlib, json, types, urllib.error, urllib.request

@contextlib.contextmanager
def Gateway(url):
    def complete(prompt, **options):
        body = json.dumps({"model": "my-model", "prompt": prompt, **options}).encode()
        for _ in range(3):
            try:
                request = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
                with urllib.request.urlopen(request) as answer:
                    return types.SimpleNamespace(status=answer.status)
            except urllib.error.HTTPError as error:
                error.close()
    yield types.SimpleNamespace(complete=complete)
"""


def test_page(pytester):
    page = Path(__file__).parents[2] / "docs" / "python.md"
    block = re.search(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    pytester.makepyfile(my_gateway=GATEWAY, test_gateway=block[1])
    pytester.runpytest_subprocess("-n1").assert_outcomes(passed=1)


def test_guidellm_of_the_docs():
    """The options of the page are those of a run of guidellm 0.8.1, whose report has what it made of them."""
    docs, data = Path(__file__).parents[2] / "docs", Path(__file__).parent / "data"
    ran = json.loads((data / "guidellm-0.8.1-config.json").read_text())
    command = re.search(r"^    guidellm run ((?:.*\\\n)*.*)", (docs / "converting.md").read_text(), re.MULTILINE)[1]
    options = re.findall(r"--(\w+) (\S+)", command)
    assert len(options) == len(ran)
    for name, values in options:
        kept = ran.get(name) or ran.get(f"{name}s")
        kept = kept[0] if isinstance(kept, list) else kept
        for key, value in (pair.split("=") for pair in values.split(",")):
            of = kept[key][0] if isinstance(kept[key], list) else kept[key]
            assert str(of) == value, name


@pytest.fixture
def engine(tmp_path):
    """An engine that plays random tokens in the place of the trace."""
    script = tmp_path / "engine.py"
    script.write_text(
        "import os, sys\n"
        f"os.execv({program()!r}, ['vllm-vcr', 'play', '--frontend-handshake', sys.argv[1], '--mode', 'random'])\n"
    )
    return f"{sys.executable} {script} {{handshake}}"


def test_conform_items(pytester, engine):
    args = ["--vllm-vcr-conform", "--vllm-vcr-conform-args=--line=0.33 --golden=edge-s1", "-v"]
    result = pytester.runpytest_subprocess(*args)
    result.assert_outcomes(passed=8)
    result.stdout.fnmatch_lines(["vllm-vcr::0.33/edge-s1/fidelity-index-1 PASSED*"])
    result = pytester.runpytest_subprocess(*args, f"--engine-command={engine}", "-k", "fidelity-index-1 or integrity")
    result.assert_outcomes(passed=1, failed=2, deselected=3)
    result.stdout.fnmatch_lines(["F001 request 0 *", "repeat: vllm-vcr conform *--run 0.33/edge-s1/fidelity-index-1"])


def test_conform_that_cannot_run(pytester):
    result = pytester.runpytest_subprocess("--vllm-vcr-conform", "--vllm-vcr-conform-args=--golden=edge-s2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: vllm-vcr conform: *edge-s2*"])


def test_conform_as_unittest(tmp_path, engine):
    (tmp_path / "test_engine.py").write_text(
        "import vllm_vcr.conform\n"
        f"load_tests = vllm_vcr.conform.tests('--line=0.33', '--golden=edge-s1', '--engine-command={engine}')\n"
    )
    done = subprocess.run([sys.executable, "-m", "unittest", "-v"], cwd=tmp_path, capture_output=True, text=True)
    assert "0.33/edge-s1/integrity ... ok" in done.stderr
    assert "FAILED (failures=2)" in done.stderr
