"""A server of `vllm-vcr serve` for tests."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from vllm_vcr.program import program

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

Flag: TypeAlias = "str | int | float | bool | Sequence[str] | None"

# A proxy of the environment does not reach servers of this machine.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServerError(Exception):
    """The server did not start, has ended, or refused what a test wants of it."""


@dataclass(frozen=True)
class Request:
    """A request as the engine got it, and what has become of it. Times are in ms since its arrival."""

    request_id: str
    arrival: datetime
    prompt: str
    prompt_token_ids: list[int]
    params: dict[str, Any]  # sampling or pooling parameters, by vLLM's names
    output: str
    output_token_ids: list[int]
    ttft_ms: float | None  # None before the first token
    duration_ms: float | None  # None while it runs
    finish_reason: str  # stop, length, abort, error, repetition; "" while it runs
    external_id: str = ""  # as the HTTP client knows it
    engine: int = 0
    lora: str = ""
    priority: int = 0
    other: dict[str, Any] = field(default_factory=dict)  # of a newer server

    @property
    def aborted(self) -> bool:
        """Whether the frontend took it back, as it does when its client leaves."""
        return self.finish_reason == "abort"

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Request:
        """Make one of the JSON of /admin/requests."""
        known = {f.name for f in fields(cls)} - {"other"}
        chosen = {k: v for k, v in values.items() if k in known}
        seconds, _, fraction = values["arrival"].removesuffix("Z").partition(".")
        micros = int((fraction + "000000")[:6])
        chosen["arrival"] = datetime.fromisoformat(seconds).replace(microsecond=micros, tzinfo=timezone.utc)
        return cls(**chosen, other={k: v for k, v in values.items() if k not in known})


def flags(options: Mapping[str, Flag]) -> list[str]:
    """Return options as flags of the program: time_scale=2 is --time-scale 2. A list repeats the flag."""
    made = []
    for name, value in options.items():
        flag = "--" + {"line": "vllm-version"}.get(name, name).replace("_", "-")
        values: Iterable[Any] = value if isinstance(value, (list, tuple)) else [value]
        made += [f"{flag}={str(v).lower() if isinstance(v, bool) else v}" for v in values if v is not None]
    return made


class Server:
    """A running server. It ends with the block of a `with` statement, or by close()."""

    url: str
    """The base of its API, such as http://127.0.0.1:40123, without a slash at the end."""
    model: str
    line: str

    def __init__(
        self, model: str | None = None, *, args: Sequence[str] = (), frontend_args: Sequence[str] = (), **options: Flag
    ) -> None:
        """Start a server and wait until it answers.

        Options are flags of `vllm-vcr serve` (faults="kill:5", line="0.32"); args are flags as they are, and
        frontend_args those of the frontend. The frontend is by default "builtin", which starts at once.
        """
        if not any(a == "--frontend" or a.startswith("--frontend=") for a in args):
            options.setdefault("frontend", "builtin")
        self._token = secrets.token_hex(16)
        handle, path = tempfile.mkstemp(prefix="vllm-vcr-", suffix=".log")
        self._log, self._logged = Path(path), b""
        command = [program(), "serve", *([model] if model else []), "--port=0", "--json", *args, *flags(options)]
        self._process = subprocess.Popen(
            [*command, *(["--", *frontend_args] if frontend_args else [])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=handle,
            env={**os.environ, "VLLM_VCR_ADMIN_TOKEN": self._token},
        )
        os.close(handle)
        ready = self._process.stdout.readline() if self._process.stdout is not None else b""
        if not ready:
            self.close()
            raise ServerError(f"{' '.join(command)}: exit code {self._process.returncode}:\n{self.log()}")
        started = json.loads(ready)
        self.url, self.model, self.line = started["url"], started["models"][0], started["line"]
        config = self._admin("GET", "config")
        self._initial = {"faults": config["faults"], "seed": config["seed"]}
        self._rules: list[dict[str, Any]] = self._admin("GET", "answers")["rules"]
        self._chosen: list[dict[str, Any]] = []

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the server. Its log stays."""
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:  # a request still runs
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._log.exists():
            self._logged = self._log.read_bytes()
            self._log.unlink()

    @property
    def running(self) -> bool:
        """Whether it has not ended. A fault of the kind kill ends it."""
        return self._process.poll() is None

    def log(self, start: int = 0) -> str:
        """Return what server, frontend and engine have logged since a position in bytes."""
        logged = self._log.read_bytes() if self._log.exists() else self._logged
        return logged[start:].decode(errors="replace")

    def log_size(self) -> int:
        """Return the size of the log in bytes."""
        return self._log.stat().st_size if self._log.exists() else len(self._logged)

    def openai(self, **options: Any) -> OpenAI:  # noqa: ANN401 - those of the SDK
        """Return a client of the OpenAI SDK, which has to be installed."""
        from openai import OpenAI

        return OpenAI(**{"base_url": self.url + "/v1", "api_key": "none", **options})

    def async_openai(self, **options: Any) -> AsyncOpenAI:  # noqa: ANN401 - those of the SDK
        """Return an asynchronous client of the OpenAI SDK, which has to be installed."""
        from openai import AsyncOpenAI

        return AsyncOpenAI(**{"base_url": self.url + "/v1", "api_key": "none", **options})

    def requests(self, ended: int = 0, timeout: float = 10) -> list[Request]:
        """Return what has reached the engine, once so many requests have ended.

        An engine learns a moment later that a client has left. TimeoutError says that fewer have ended in time.
        """
        got = self._admin("GET", f"requests?ended={ended}&timeout={timeout:f}s", timeout=timeout + 10)
        made = [Request.of(r) for r in got["requests"]]
        if not got["complete"]:
            over = sum(r.finish_reason != "" for r in made)
            raise TimeoutError(f"{over} of {len(made)} requests have ended after {timeout} s, expected {ended}")
        return made

    def answer(
        self,
        text: str | None = None,
        *,
        match: str | None = None,
        model: str | None = None,
        header: Mapping[str, str] | None = None,
        nth: int | None = None,
        tool_calls: Sequence[Mapping[str, Any]] | None = None,
        reasoning: str | None = None,
        refusal: str | None = None,
        embedding: Sequence[float] | None = None,
        finish_reason: str | None = None,
        logprobs: Sequence[float] | None = None,
        chunk: int | Sequence[int] | None = None,
        delay: str | Sequence[str] | None = None,
    ) -> None:
        """Choose the answer of the requests that match. Those chosen before, and the file of answers, come after it.

        match is a regular expression for a part of the last message of the user; model and the values of header are
        ones for all of the value; nth is the number, from 1, of the request among those that match. chunk is how many
        tokens come together, and delay the time before each such chunk, such as "50ms". docs/serving.md has the rest.
        """
        when = {"last_user": match, "model": model, "header": header, "nth": nth}
        then = {
            "text": text, "tool_calls": tool_calls, "reasoning": reasoning, "refusal": refusal, "embedding": embedding,
            "finish_reason": finish_reason, "logprobs": logprobs, "chunk": chunk, "delay": delay,
        }  # fmt: skip
        rule = {
            name: {k: v for k, v in part.items() if v is not None} for name, part in (("match", when), ("answer", then))
        }
        self._admin("PUT", "answers", {"rules": [rule, *self._chosen, *self._rules]})
        self._chosen.insert(0, rule)

    def fault(self, *faults: str) -> None:
        """Inject these faults of HTTP from now on, such as "status:429:1s" or "http-reset:3"; none ends them.

        Faults of the engine, such as kill:5, are options of the start: faults="kill:5".
        """
        self._admin("POST", "config", {"faults": ",".join(faults)})

    def metrics(self) -> dict[str, float]:
        """Return the values of /metrics by their names with labels, and by their names alone the sums over labels."""
        with _opener.open(self.url + "/metrics", timeout=10) as answer:
            text = answer.read().decode()
        values: dict[str, float] = {}
        for name, labels, number in re.findall(r"^([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)", text, re.MULTILINE):
            for key in {name, name + labels}:
                values[key] = values.get(key, 0) + float(number)
        return values

    def reset(self) -> None:
        """Forget requests and chosen answers, and inject the faults of the start, whose counts begin anew."""
        self._admin("DELETE", "requests")
        self._admin("POST", "config", self._initial)
        if self._chosen:
            self._chosen = []
            self._admin("PUT", "answers", {"rules": self._rules})

    def _admin(self, method: str, path: str, body: object = None, timeout: float = 10) -> Any:  # noqa: ANN401 - JSON
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": "Bearer " + self._token, "Content-Type": "application/json"}
        asked = urllib.request.Request(f"{self.url}/admin/{path}", data, headers, method=method)  # noqa: S310
        try:
            with _opener.open(asked, timeout=timeout) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
            try:
                message = json.loads(text)["error"]["message"]
            except (ValueError, KeyError, TypeError):
                message = f"status {error.code}: {text.decode(errors='replace').strip()}"
            raise ServerError(f"{method} /admin/{path}: {message}") from None
        except OSError as error:
            code = self._process.poll()
            gone = "" if code is None else f": the server has ended with exit code {code}:\n{self.log()}"
            raise ServerError(f"{method} /admin/{path}: {error}{gone}") from error
        return json.loads(text) if text else None
