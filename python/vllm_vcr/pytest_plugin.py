"""The plugin of pytest: the fixture vllm_server, and the cases of conform as items."""

from __future__ import annotations

import shlex
from collections.abc import Generator
from typing import Any

import pytest

from vllm_vcr.conform import Conform, ConformError, group
from vllm_vcr.server import Server

# By their options: a server starts once in each process of pytest, and again after it has ended.
_servers = pytest.StashKey[dict[str, Server]]()
# The server of a test, and the size of its log when the test began.
_used = pytest.StashKey[tuple[Server, int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plugin."""
    ours = parser.getgroup("vllm-vcr", "vllm-vcr, a vLLM server without a GPU or a model")
    for name, text in {
        "vllm_vcr_args": "flags of `vllm-vcr serve` for each vllm_server, such as --frontend=rust",
        "vllm_vcr_conform_args": "flags of `vllm-vcr conform`, such as --line=0.33 --suite=live",
    }.items():
        ours.addoption("--" + name.replace("_", "-"), help=text)
        parser.addini(name, text, default="")
    ours.addoption("--vllm-vcr-conform", action="store_true", help="run the cases of `vllm-vcr conform`, one an item")
    ours.addoption("--engine-command", help="engine under test of --vllm-vcr-conform")
    ours.addoption("--frontend-command", help="frontend under test of --vllm-vcr-conform")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    text = "vllm_server(model=None, *, args=(), frontend_args=(), **flags): options of the fixture, see vllm_vcr.Server"
    config.addinivalue_line("markers", text)
    config.stash[_servers] = {}


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the servers."""
    for server in config.stash.get(_servers, {}).values():
        server.close()


def _args(config: pytest.Config, name: str) -> list[str]:
    return shlex.split(str(config.getini(name))) + shlex.split(config.getoption(name) or "")


@pytest.fixture
def vllm_server(request: pytest.FixtureRequest) -> Server:
    """Return a server, which forgets requests, chosen answers and faults before each test."""
    options: dict[str, Any] = {}
    model = None
    for marker in reversed(list(request.node.iter_markers("vllm_server"))):  # the nearest one comes last
        options.update(marker.kwargs)
        model = marker.args[0] if marker.args else model
    model = options.pop("model", model)
    options["args"] = [*_args(request.config, "vllm_vcr_args"), *options.get("args", ())]
    servers, key = request.config.stash[_servers], repr((model, sorted(options.items())))
    if key in servers and not servers[key].running:
        servers.pop(key).close()
    if key not in servers:
        servers[key] = Server(model, **options)
    server = servers[key]
    request.node.stash[_used] = (server, server.log_size())
    server.reset()
    return server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach what the server has logged to the report of a test that failed."""
    report = yield
    if report.failed and (used := item.stash.get(_used, None)) and (text := used[0].log(used[1])):
        report.sections.append((f"vllm-vcr {used[0].url} {report.when}", text))
    return report


class _ConformItem(pytest.Item):
    def __init__(self, *, conform: Conform, **options: Any) -> None:  # noqa: ANN401 - those of pytest
        super().__init__(**options)
        self.conform = conform
        self.add_marker(pytest.mark.xdist_group(group(self.name)))

    def runtest(self) -> None:
        names = [i.name for i in self.session.items if isinstance(i, _ConformItem)]
        if reason := self.conform.check(self.name, names):
            pytest.skip(reason)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:  # noqa: ANN401
        if isinstance(excinfo.value, ConformError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[str, None, str]:
        return "vllm-vcr", None, "conform " + self.name


class _ConformCases(pytest.Collector):
    def collect(self) -> list[pytest.Item]:
        config = self.config
        args = _args(config, "vllm_vcr_conform_args")
        for name in ("engine-command", "frontend-command"):
            if command := config.getoption(name.replace("-", "_")):
                args.append(f"--{name}={command}")
        conform = Conform(args)
        try:
            names = conform.names()
        except ConformError as error:
            raise pytest.UsageError(f"vllm-vcr conform: {error}") from None
        return [_ConformItem.from_parent(self, name=name, conform=conform) for name in names]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the cases of conform, of which -k and the like then choose."""
    if config.getoption("vllm_vcr_conform"):
        items += _ConformCases.from_parent(session, name="vllm-vcr", nodeid="vllm-vcr").collect()
