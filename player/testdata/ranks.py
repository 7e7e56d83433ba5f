"""Has a data-parallel client of the installed vLLM talk to the engines of a group, and writes what it saw as JSON lines.

usage: ranks.py MODEL SIZE CLIENT REQUESTS
"""

import asyncio
import json
import os
import socket
import sys
import time

# vLLM logs to stdout, from its first import on: what is ours goes to a copy of it, and all else to stderr.
out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
os.dup2(2, 1)

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine import core_client
from vllm.v1.engine.exceptions import EngineDeadError

HOST = "127.0.0.1"


def main():
    model, size, name, requests = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    with socket.socket() as s:
        s.bind((HOST, 0))
        port = s.getsockname()[1]
    config = AsyncEngineArgs(
        model=model, max_model_len=2048, dtype="float32", load_format="dummy", enforce_eager=True,
        data_parallel_size=size, data_parallel_size_local=0, data_parallel_address=HOST, data_parallel_rpc_port=port,
    ).create_engine_config()
    # A coordinator that is spawned, as is usual for CPUs, imports everything once more.
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    def tell(**message):
        out.write(json.dumps(message) + "\n")

    tell(event="engines", address=f"tcp://{HOST}:{port}", hash=config.parallel_config.compute_hash())
    asyncio.run(drive(config, getattr(core_client, name), requests, config.model_config.is_moe, tell))
    out.flush()
    os._exit(0)  # threads of the client must not keep this alive


async def drive(config, cls, requests, experts, tell):
    client = cls(config, None, True)
    try:
        for turn in range(2):
            sleepers = [request(f"sleeper-{turn}-{i}", i, 1) for i in range(requests)]
            for r in sleepers:
                await client.add_request_async(r)
            # What runs, the client knows from the engines alone, by way of its coordinator.
            await until(lambda: running(client) == requests)
            tell(event="running", counts=[c[1] for c in client.lb_engines], awake=client.engines_running)
            await client.abort_requests_async([r.request_id for r in sleepers])
            await until(lambda: running(client) == 0)
            tell(event="answers", turn=turn, answers=await answers(client, turn, requests))
            if os.environ.get("WAVES_END"):
                await until(lambda: client.current_wave > turn and not client.engines_running)
        tell(event="calls", values=[await client.is_sleeping_async(), await client.reset_prefix_cache_async()])
        tell(event="leave", wave=client.current_wave)
        try:
            while True:
                await client.get_output_async()
        except EngineDeadError:
            tell(event="dead")
    finally:
        client.shutdown()


async def answers(client, turn, requests):
    """What a number of requests are answered with: id, engine and tokens of each."""
    answered = {}
    for i in range(requests):
        r = request(f"r-{turn}-{i}", i, 20 + i)
        answered[r.request_id] = [r.request_id, None, []]
        await client.add_request_async(r)
    left = len(answered)
    while left:
        outputs = await client.get_output_async()
        for o in outputs.outputs:
            answer = answered[o.request_id]
            answer[1] = outputs.engine_index
            answer[2] += o.new_token_ids
            left -= o.finish_reason is not None
    return list(answered.values())


def request(name, i, tokens):
    return EngineCoreRequest(
        request_id=name, prompt_token_ids=[5, 6, 7 + i], mm_features=None, pooling_params=None, arrival_time=time.time(),
        sampling_params=SamplingParams(temperature=0.0, max_tokens=tokens), lora_request=None, cache_salt=None,
        data_parallel_rank=None,
    )


def running(client):
    return sum(c[1] for c in client.lb_engines)


async def until(true):
    while not true():
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    main()
