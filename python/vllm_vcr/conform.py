"""The cases of `vllm-vcr conform`, for pytest (see vllm_vcr.pytest_plugin) and for unittest (see tests)."""

from __future__ import annotations

import json
import subprocess
import tempfile
import unittest
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from vllm_vcr.program import program


class ConformError(Exception):
    """A case did not hold, or conform could not run."""


class Conform:
    """Runs cases. Those of a golden, or of a suite without goldens, run together, when the first of them is wanted."""

    def __init__(self, args: Sequence[str]) -> None:
        """Take flags of `vllm-vcr conform`, such as --engine-command, which say what is under test."""
        self.args = list(args)
        self._results: dict[str, dict[str, Any]] = {}

    def names(self) -> list[str]:
        """Return the names of the cases that the flags select, in the order in which they run."""
        done = self._run("--list", "--json")
        if done.returncode != 0:
            raise ConformError(done.stderr.strip())
        return [case["name"] for case in json.loads(done.stdout)["cases"]]

    def check(self, name: str, wanted: Iterable[str]) -> str:
        """Return why a case was skipped, or "". Run it with the others of its group that are wanted, if it has not run.

        ConformError has its failures.
        """
        if name not in self._results:
            self._run_group([n for n in wanted if group(n) == group(name)] or [name])
        case = self._results[name]
        if case["verdict"] in ("pass", "xfail", "flaky"):
            return ""
        reason = str(case.get("reason") or case.get("note") or case["verdict"])
        if case["verdict"] == "skip":
            return reason
        failures = [f"{f['code']} {f['message']}" for f in case.get("failures", [])]
        shown = failures[:10] + ([f"… {len(failures) - 10} more"] if len(failures) > 10 else [])
        raise ConformError("\n".join([*(shown or [reason]), f"repeat: {case.get('repeat', name)}"]))

    def _run_group(self, names: list[str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            patterns, report = Path(folder, "cases"), Path(folder, "report.json")
            patterns.write_text("\n".join(names) + "\n")
            done = self._run(f"--run=@{patterns}", f"--report-json={report}")
            cases = json.loads(report.read_text())["cases"] if report.exists() else []
        self._results.update({case["name"]: case for case in cases})
        for name in names:
            missing = {"verdict": "error", "reason": f"exit code {done.returncode}: {done.stderr.strip()}"}
            self._results.setdefault(name, missing)

    def _run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program(), "conform", *self.args, *args], capture_output=True, text=True, check=False)


def group(name: str) -> str:
    """Return line and golden of a case, or line and suite."""
    return name.rpartition("/")[0]


class _Case(unittest.TestCase):
    def __init__(self, conform: Conform, name: str, names: list[str]) -> None:
        super().__init__("check")
        self.conform, self.name, self.names = conform, name, names

    def id(self) -> str:
        return self.name

    def __str__(self) -> str:
        return self.name

    def check(self) -> None:
        try:
            skipped = self.conform.check(self.name, self.names)
        except ConformError as error:
            raise self.failureException(str(error)) from None
        if skipped:
            self.skipTest(skipped)


def tests(*args: str) -> Callable[..., unittest.TestSuite]:
    """Return a function load_tests for a module of unittest, whose tests are the cases that the flags select.

    load_tests = vllm_vcr.conform.tests("--line=0.33", "--engine-command=./my-engine {handshake} {trace}")
    """

    def load_tests(_loader: unittest.TestLoader, own: unittest.TestSuite, _pattern: str | None) -> unittest.TestSuite:
        conform = Conform(args)
        names = conform.names()
        return unittest.TestSuite([own, *(_Case(conform, name, names) for name in names)])

    return load_tests
