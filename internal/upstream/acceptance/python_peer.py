"""A vLLM release's Python client of an engine core (AsyncLLM) behind a few HTTP routes, or its engine core, as many times as
somebody connects.

    python_peer.py serve SOCKET MODEL client|engine   loads vLLM once, and makes a copy of itself for each connection
    python_peer.py SOCKET serve MODEL …               connects, with the arguments of a frontend, and lives as long as the copy
    python_peer.py SOCKET engine HANDSHAKE            connects, with the address of a frontend

What takes long, to load vLLM, to make a configuration and to load the model, is done once. A copy of a client constructs
AsyncLLM, which does the handshake, decodes what the engine says, processes outputs and records statistics as the release does.
The routes stand for those of the API server that lead to these calls. A copy of an engine runs EngineCoreProc.
"""

import json
import os
import signal
import socket
import sys

if sys.argv[1] == "serve":  # the rest happens a thousand times, and needs none of these
    import asyncio
    import itertools
    import threading
    import time
    import traceback

HOST = "127.0.0.1"


def launch(path, arguments):
    """Connects, and ends with the copy; the copy ends with this."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    with socket.socket(socket.AF_UNIX) as conn:
        conn.connect(path)
        flags = dict(zip(arguments, arguments[1:]))
        if "engine" in flags:
            asked = {"handshake": flags["engine"]}
        else:
            asked = {
                "rpc": int(flags["--data-parallel-rpc-port"]), "http": int(flags["--port"]),
                "patience": int(os.environ.get("VLLM_ENGINE_READY_TIMEOUT_S", "60")),
            }
        conn.sendall(json.dumps(asked).encode() + b"\n")
        said = b""
        while part := conn.recv(1 << 16):
            said += part
    sys.stderr.write(said.decode(errors="replace"))
    sys.exit(1)


def serve(path, model, what):
    import importlib

    registry = importlib.import_module("vllm.model_executor.models.registry")
    if hasattr(registry, "_run_in_subprocess"):
        registry._run_in_subprocess = lambda look: look()
    run = prepare_engine(model) if what == "engine" else prepare_client(model)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(64)
        print("ready", flush=True)
        while True:
            conn, _ = server.accept()
            if os.fork() == 0:
                server.close()
                copy(conn, run)
            conn.close()


def copy(conn, run):
    """Serves one connection, and tells why it ended."""
    asked = json.loads(conn.makefile().readline())

    def follow():
        while conn.recv(1):
            pass
        os._exit(0)

    threading.Thread(target=follow, daemon=True).start()
    try:
        run(**asked)
    except BaseException:
        conn.sendall(traceback.format_exc()[-4000:].encode())
    os._exit(1)


def prepare_engine(model):
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.core import EngineCore, EngineCoreProc
    from vllm.v1.executor.abstract import Executor

    config = AsyncEngineArgs(
        model=model, served_model_name="model", max_model_len=64, dtype="float32", load_format="dummy", enforce_eager=True,
        num_gpu_blocks_override=64, max_num_seqs=4, distributed_executor_backend="uni",
    ).create_engine_config()
    executor = Executor.get_class(config)
    loaded = EngineCore(config, executor, True)

    def adopt(self, *_, **__):
        self.__dict__.update(loaded.__dict__)
        self.step_fn = getattr(self, loaded.step_fn.__name__)

    EngineCore.__init__ = adopt  # that of EngineCoreProc does the rest
    return lambda handshake: EngineCoreProc.run_engine_core(
        vllm_config=config, local_client=False, handshake_address=handshake, executor_class=executor, log_stats=True)


def prepare_client(model):
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine import async_llm  # noqa: F401, so that a copy need not

    config = AsyncEngineArgs(
        model=model, served_model_name="model", max_model_len=4096, dtype="float32", load_format="dummy", enforce_eager=True,
        data_parallel_size=1, data_parallel_size_local=0, data_parallel_address=HOST, data_parallel_rpc_port=1,
    ).create_engine_config()
    return lambda **asked: asyncio.run(serve_client(config, **asked))


async def serve_client(config, rpc, http, patience):
    import uvicorn
    from vllm.v1.engine import core_client
    from vllm.v1.engine.async_llm import AsyncLLM

    config.parallel_config.data_parallel_rpc_port = rpc
    os.environ["VLLM_ENGINE_READY_TIMEOUT_S"] = str(patience)
    core_client.VLLM_ENGINE_READY_TIMEOUT_S = patience
    late = threading.Timer(patience, lambda: os._exit(1))
    late.start()
    llm = AsyncLLM(config, executor_class=None, log_stats=True, log_requests=False)
    late.cancel()
    routes = Routes(llm)
    await uvicorn.Server(uvicorn.Config(routes, host=HOST, port=http, log_level="error", lifespan="off")).serve()


class Routes:
    def __init__(self, llm):
        self.llm, self.ids = llm, itertools.count()
        self.calls = {
            "/is_sleeping": lambda body: llm.is_sleeping(),
            "/reset_prefix_cache": lambda body: llm.reset_prefix_cache(),
            "/reset_mm_cache": lambda body: llm.reset_mm_cache(),
            "/reset_encoder_cache": lambda body: llm.reset_encoder_cache(),
            "/wake_up": lambda body: llm.wake_up(),
            "/is_paused": lambda body: llm.is_paused(),
            "/resume": lambda body: llm.resume_generation(),
            "/weight_info": lambda body: llm.engine_core.get_weight_version_async(),
            "/collective_rpc": lambda body: llm.collective_rpc(body["method"]),
            "/start_profile": lambda body: llm.engine_core.profile_async(True),
        }

    async def __call__(self, scope, receive, send):
        text = b""
        while True:
            part = await receive()
            text += part.get("body", b"")
            if not part.get("more_body"):
                break
        try:
            status, answer = await self.answer(scope["path"], json.loads(text) if text else {})
            # As the API server does.
            body = answer.encode() if isinstance(answer, str) else json.dumps(answer, allow_nan=False).encode()
        except Exception as failure:
            status, body = 500, json.dumps({"error": {"message": repr(failure.__cause__ or failure)}}).encode()
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})

    async def answer(self, path, body):
        if path == "/health":
            await self.llm.check_health()
            return 503 if self.llm.output_handler.done() else 200, {}
        if path == "/metrics":
            import prometheus_client

            return 200, prometheus_client.generate_latest().decode()
        if path == "/v1/completions":
            return await self.unless_over(self.complete(body))
        if path not in self.calls:
            return 404, {}
        try:
            call = self.calls[path](body)
        except AttributeError:  # the release has no such call
            return 404, {}
        return await self.unless_over(self.called(call))

    async def called(self, call):
        return 200, {"result": repr(await call)}

    async def unless_over(self, work):
        """An answer, unless nobody hears the engine any more: then none would come."""
        task = asyncio.ensure_future(work)
        await asyncio.wait({task, self.llm.output_handler}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            await asyncio.wait({task}, timeout=0.5)  # open requests are told
        if not task.done():
            task.cancel()
            return 500, {"error": {"message": "the client hears no engine"}}
        return task.result()

    async def complete(self, body):
        from vllm import SamplingParams

        params = SamplingParams(
            temperature=0, max_tokens=body["max_tokens"], logprobs=body.get("logprobs"), prompt_logprobs=body.get("prompt_logprobs"),
            ignore_eos=body.get("ignore_eos", False))
        if "structured_outputs" in body:
            from vllm.sampling_params import StructuredOutputsParams

            params.structured_outputs = StructuredOutputsParams(**body["structured_outputs"])
        last = None
        prompt = {"prompt_token_ids": body["prompt"]}
        async for output in self.llm.generate(prompt, params, f"cmpl-{next(self.ids)}-{time.time_ns()}"):
            last = output
        choice = last.outputs[0]
        if choice.finish_reason == "error":
            return 500, {"error": {"message": "the engine failed"}}
        answer = {
            "text": choice.text, "token_ids": list(choice.token_ids), "finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason,
            "kv_transfer_params": last.kv_transfer_params,
        }
        for name, table in (("logprobs", choice.logprobs), ("prompt_logprobs", last.prompt_logprobs)):
            if table is not None and body.get(name) is not None:
                answer[name] = [
                    None if at is None else [[int(id), max(float(one.logprob), -9999.0), one.rank, one.decoded_token] for id, one in at.items()]
                    for at in table
                ]
        # The same as the API server has it.
        answer["choices"] = [{name: answer[name] for name in ("text", "token_ids", "finish_reason")}]
        if choice.logprobs is not None:
            answer["choices"][0]["logprobs"] = {"token_logprobs": [float(at[id].logprob) for id, at in zip(choice.token_ids, choice.logprobs)]}
        return 200, answer


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(*sys.argv[2:5])
    else:
        launch(sys.argv[1], sys.argv[2:])
