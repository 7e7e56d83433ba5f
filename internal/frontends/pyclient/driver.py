"""Drives the engine core client of a vLLM release, and writes what became of it as JSON lines.

The first line of stdin is the plan: which client classes to construct, and which cases to try with each. Everything that
crosses the wire is written and read by the release's own code. The driver judges nothing but whether that code raised
something: it writes what came out, and its owner compares.
"""

import asyncio
import contextlib
import errno
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback

HOST = "127.0.0.1"


class Unusable(Exception):
    """The driver cannot go on, which says nothing about the wire."""


class Absent(Exception):
    """The client has no such method."""


class Late(Exception):
    """Nothing came for too long."""


def main():
    # The release logs to stdout: what is ours goes to a copy of it, and all else to stderr.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)

    def tell(**message):
        out.write(json.dumps(message) + "\n")

    status = 0
    try:
        drive(json.loads(sys.stdin.readline()), tell)
    except Unusable as e:
        tell(event="unusable", message=str(e))
    except BaseException:
        traceback.print_exc()
        status = 1
    out.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of a client that was refused must not keep this alive


def drive(plan, tell):
    release = Release(plan)
    tell(event="ready", version=release.version)
    for session in plan["sessions"]:
        Session(release, plan, session, tell).run()
    tell(event="done")


class Release:
    """The modules of the release under test."""

    def __init__(self, plan):
        self.sources = os.path.realpath(plan["sources"]) + os.sep
        for package in ("zmq", "msgspec", "torch"):
            self.load(package, "the environment of " + sys.executable)
        self.core = self.module("vllm.v1.engine")
        self.core_client = self.module("vllm.v1.engine.core_client")
        self.exceptions = self.module("vllm.v1.engine.exceptions")
        self.sampling = self.module("vllm.sampling_params")
        self.lora = self.module("vllm.lora.request")
        self.arguments = self.module("vllm.engine.arg_utils")
        self.version = str(getattr(self.module("vllm"), "__version__", ""))
        self.inspect_here()

    def inspect_here(self):
        """Has the release look at the model's class here, not in a process that imports everything once more."""
        with contextlib.suppress(Exception):
            registry = importlib.import_module("vllm.model_executor.models.registry")
            if hasattr(registry, "_run_in_subprocess"):
                registry._run_in_subprocess = lambda look: look()

    def module(self, name):
        module = self.load(name, "the release")
        if not os.path.realpath(module.__file__ or "").startswith(self.sources):
            raise Unusable(f"{name} is {module.__file__}, which is not of the release in {self.sources}")
        return module

    def load(self, name, owner):
        try:
            return importlib.import_module(name)
        except BaseException as e:
            raise Unusable(f"import {name} of {owner}: {described(e)}{self.place(e)}") from e

    def name(self, module, name):
        """An attribute of a module, or why there is nothing to drive."""
        try:
            return getattr(module, name)
        except AttributeError:
            raise Unusable(f"{module.__name__} has no {name}") from None

    def build(self, module, name, **arguments):
        """An object of the release, made of what this driver knows of its class."""
        cls = self.name(module, name)
        try:
            return cls(**arguments)
        except Exception as e:
            raise Unusable(f"{module.__name__}.{name}({', '.join(arguments)}): {described(e)}{self.place(e)}") from e

    def config(self, plan, port):
        arguments = self.build(
            self.arguments, "AsyncEngineArgs", model=plan["model"], served_model_name="tiny", max_model_len=plan["max_model_len"],
            dtype="float32", load_format="dummy", enforce_eager=True, enable_lora=True,
            data_parallel_size=1, data_parallel_size_local=0, data_parallel_address=HOST, data_parallel_rpc_port=port,
        )
        try:
            return arguments.create_engine_config()
        except Exception as e:
            raise Unusable(f"AsyncEngineArgs.create_engine_config: {described(e)}{self.place(e)}") from e

    def place(self, e):
        """Where in the release an error was raised: " (vllm/v1/engine/core_client.py:851 in _apply_ready_response)"."""
        for frame in reversed(traceback.extract_tb(e.__traceback__)):
            path = os.path.realpath(frame.filename)
            if path.startswith(self.sources):
                return f" ({path[len(self.sources):]}:{frame.lineno} in {frame.name})"
        return ""


class Session:
    """One client from its handshake to its engine's end."""

    def __init__(self, release, plan, session, tell):
        self.release, self.plan, self.tell = release, plan, tell
        self.kind, self.cases = session["client"], session["cases"]
        self.patience = plan["patience"]
        self.client = None
        self.loop = None
        self.broken = False  # the client has given up hearing the engine

    def run(self):
        if self.kind == "AsyncMPClient":
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        try:
            for case in self.cases:
                if not self.attempt(case):
                    break
            # Before the client leaves, so that the engine's end is expected.
            self.tell(event="end", client=self.kind)
        finally:
            self.shut_down()

    def attempt(self, case):
        """Tries a case. Without an answer, or a client that hears, there is nothing to go on with."""
        self.tell(event="case", case=case["name"])
        try:
            facts = getattr(self, "do_" + case["do"])(case)
        except Late as e:
            self.result(case, self.cause(e))
            return False
        except (Absent, Unusable) as e:
            if self.client is None:
                raise
            self.tell(event="result", case=case["name"], ok=False, unable=True, message=str(e))
            return True
        except Exception as e:
            self.result(case, e)
            return self.client is not None and not self.broken
        self.tell(event="result", case=case["name"], ok=True, **facts)
        return True

    def cause(self, late):
        """What a client has to say that gave no answer: it may have failed to read one."""
        if self.client is None:
            return late
        self.patience = 1
        try:
            for _ in range(1000):
                self.call("get_output")
        except Exception as e:
            return late if isinstance(e, Late) else e
        return late

    def result(self, case, e):
        late = isinstance(e, Late)
        where = self.release.place(e).strip(" ()")
        message = str(e) if late else described(e)
        self.tell(event="result", case=case["name"], ok=False, late=late, message=message, where=where)

    # What differs between the two kinds of clients.

    def wait(self, start):
        """Returns what start() does, or what the coroutine comes to that it returns, unless that takes too long."""
        if self.loop is not None:
            return self.loop.run_until_complete(self.within(start))
        return alarmed(self.patience, start)

    async def within(self, start):
        try:
            return await asyncio.wait_for(start(), self.patience)
        except asyncio.TimeoutError:
            raise Late(f"no answer within {self.patience} s") from None

    def method(self, name):
        """A method by its name for synchronous clients."""
        if self.loop is not None:
            name += "_async"
        found = getattr(self.client, name, None)
        base = getattr(self.release.core_client.EngineCoreClient, name, None)
        if found is None or getattr(type(self.client), name, None) is base:
            raise Absent(f"{self.kind} has no {name}")
        return found

    def call(self, name, *arguments):
        method = self.method(name)
        return self.wait(lambda: method(*arguments))

    def shut_down(self):
        if self.client is None:
            return
        try:
            self.client.shutdown()
        except Exception as e:
            print(f"{self.kind}.shutdown: {described(e)}", file=sys.stderr)

    # The cases.

    def do_handshake(self, case):
        port = free_port()
        config = self.release.config(self.plan, port)
        self.tell(event="engine", address=f"tcp://{HOST}:{port}")
        cls = self.release.name(self.release.core_client, self.kind)

        def construct():
            try:
                return cls(config, None, True)  # no class of executors: no engine is started here
            except Exception as e:
                if getattr(e, "errno", None) == errno.EADDRINUSE:
                    raise Unusable(f"another process took port {port}: try again") from e
                raise

        async def construct_inside():
            return construct()

        if self.loop is not None:
            self.client = alarmed(self.patience, lambda: self.loop.run_until_complete(construct_inside()))
        else:
            self.client = alarmed(self.patience, construct)
        cache = config.cache_config
        return {"values": [config.model_config.max_model_len, cache.num_gpu_blocks, cache.block_size]}

    def do_generate(self, case):
        """Adds requests and hears them to their ends; while the engine pauses, if the client can ask for it."""
        requests = [self.request(r) for r in case["requests"]]
        with self.paused() if case.get("pause") else contextlib.nullcontext():
            for request in requests:
                self.call("add_request", request)
            if case.get("abort"):
                self.call("abort_requests", case["abort"])
        return self.hear({r["id"] for r in case["requests"]} - set(case.get("abort", ())))

    @contextlib.contextmanager
    def paused(self):
        """The engine makes no step meanwhile. It goes on whatever happens, as other cases come after this one."""
        self.call("pause_scheduler", "keep", False)
        try:
            yield
        finally:
            self.call("resume_scheduler")

    def request(self, r):
        sampling = self.release.build(
            self.release.sampling, "SamplingParams", temperature=0.0, max_tokens=r["max_tokens"],
            stop_token_ids=r.get("stop_token_ids"), logprobs=r.get("logprobs"), prompt_logprobs=r.get("prompt_logprobs"),
        )
        return self.release.build(
            self.release.core, "EngineCoreRequest", request_id=r["id"], prompt_token_ids=r["prompt"], mm_features=None,
            sampling_params=sampling, pooling_params=None, arrival_time=time.time(),
            lora_request=self.adapter(r["lora"]) if r.get("lora") else None, cache_salt=None, data_parallel_rank=None,
        )

    def adapter(self, a):
        return self.release.build(self.release.lora, "LoRARequest", lora_name=a["name"], lora_int_id=a["id"], lora_path=a["path"])

    def hear(self, open_ids):
        """What is said until each of the requests has ended."""
        answers, most, stats = {}, 0, []
        open_ids = set(open_ids)
        while open_ids:
            outputs = self.next()
            most = max(most, len(outputs.outputs))
            if outputs.scheduler_stats is not None:
                stats.append(outputs.scheduler_stats)
            for o in outputs.outputs:
                answer = answers.setdefault(o.request_id, {"id": o.request_id, "tokens": [], "ends": 0})
                heard(answer, o)
                if o.finish_reason is not None:
                    open_ids.discard(o.request_id)
        return {
            "answers": list(answers.values()), "together": most, "stats": len(stats),
            "running": max((s.num_running_reqs for s in stats), default=0),
        }

    def next(self):
        """The next outputs. A client that fails to read some reads no more."""
        try:
            return self.call("get_output")
        except Exception:
            self.broken = True
            raise

    def do_call(self, case):
        """Calls utility methods one after the other, if the client has them all."""
        values = []
        for name, *_ in case["calls"]:
            self.method(name)
        for name, *arguments in case["calls"]:
            arguments = [self.adapter(a["lora"]) if isinstance(a, dict) else a for a in arguments]
            values.append(plain(self.call(name, *arguments)))
        return {"values": values}

    def do_die(self, case):
        """Has the engine end, and looks whether the client notices."""
        self.tell(event="kill")
        values = []
        dead = self.release.exceptions.EngineDeadError
        try:
            while True:
                self.call("get_output")
        except dead:
            values.append("EngineDeadError")
        try:
            self.call("add_request", self.request(case["requests"][0]))
        except dead:
            values.append("EngineDeadError")
        return {"values": values}


def heard(answer, o):
    """Adds an output to what is known of the answer to a request."""
    answer["tokens"] += list(o.new_token_ids)
    if o.new_logprobs is not None:
        ids = o.new_logprobs.logprob_token_ids.tolist()
        values = o.new_logprobs.logprobs.tolist()
        answer.setdefault("logprobs", []).extend([*i, *v] for i, v in zip(ids, values, strict=True))
    if o.new_prompt_logprobs_tensors is not None:
        answer["prompt_logprobs"] = o.new_prompt_logprobs_tensors.logprob_token_ids.tolist()
    if o.finish_reason is not None:
        answer["ends"] += 1
        answer["finish"] = str(o.finish_reason)
        answer["stop"] = o.stop_reason


def plain(value):
    """A result as JSON has it."""
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def alarmed(seconds, do):
    """Does something that blocks, unless it takes too long."""
    if not hasattr(signal, "setitimer"):
        return do()

    def late(*_):
        raise Late(f"no answer within {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return do()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def free_port():
    with socket.socket() as s:
        s.bind((HOST, 0))
        return s.getsockname()[1]


def described(e):
    return " ".join(f"{type(e).__name__}: {e}".split()).removesuffix(":")


if __name__ == "__main__":
    main()
