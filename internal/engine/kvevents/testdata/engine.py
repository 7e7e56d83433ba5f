"""Asks an installed vLLM what KV events it publishes, for the tests of this package.

    python engine.py MODEL OUT.jsonl.gz [ENGINE ARGUMENT=JSON ...]

Run it with the Python of an engine that .ci/peers installed. The engine runs on the CPU with weights of no meaning and
answers requests one after the other. The first line holds what it was configured with, the next ones what happened:

    ["request", prompt, answer, salt]    tokens, tokens, a text or null
    ["reset", ok]                        the prefix cache was
    ["encoded", payload]                 a batch of other events, see `encoded`
    ["live", [frame, ...]]               a message to subscribers, in hex
    ["replay", start, [[frame, ...], ...]]
"""

import gzip
import json
import os
import random
import sys

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["PYTHONHASHSEED"] = "0"

import msgspec
import vllm
import zmq
from vllm import LLM, SamplingParams
from vllm.config.kv_events import KVEventsConfig
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch

PUB, REPLAY, TOPIC = "tcp://127.0.0.1:25557", "tcp://127.0.0.1:25558", "kv@pod@tiny"


def main(model, path, *arguments):
    arguments = {k: json.loads(v) for k, v in (a.split("=", 1) for a in arguments)}
    arguments = {
        "block_size": 32, "num_gpu_blocks_override": 14, "max_num_batched_tokens": 64, "max_num_seqs": 4,
        "max_model_len": 256, "prefix_caching_hash_algo": "sha256_cbor", "async_scheduling": False,
        "gpu_memory_utilization": 0.3, **arguments,
    }
    context = zmq.Context.instance()
    sub = context.socket(zmq.SUB)
    sub.subscribe("kv@")
    sub.bind(PUB)
    llm = LLM(
        model=model, load_format="dummy", enforce_eager=True, seed=0, enable_prefix_caching=True,
        kv_events_config=KVEventsConfig(
            enable_kv_cache_events=True, publisher="zmq", endpoint=PUB, replay_endpoint=REPLAY, buffer_steps=20,
            topic=TOPIC,
        ),
        **arguments,
    )
    out = gzip.GzipFile(path, "wb", 9, mtime=0)

    def write(*line):
        out.write(json.dumps(line).encode() + b"\n")

    core = llm.llm_engine.engine_core.engine_core
    config = core.scheduler.get_kv_event_publisher_config()
    write({
        "version": vllm.__version__, "arguments": arguments, "config": msgspec.to_builtins(config),
        "digests": os.environ.get("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES") == "0",
    })
    write("encoded", encoded().hex())
    # One that listens says what it wants when it is asked for a message.
    while not sub.poll(1000):
        core.scheduler.kv_event_publisher._pub.send(b"kv@hello")
    while sub.poll(500):
        sub.recv_multipart()
    drive(llm, write)
    while sub.poll(1000):
        write("live", [f.hex() for f in sub.recv_multipart()])
    for start in (0, 10, 25, 10_000):
        write("replay", start, replay(context, start))
    out.close()


def encoded():
    """A batch of what no request here leads to: adapters, features, another rank."""
    stored = BlockStored(
        block_hashes=[2**64 - 2, 2**63], parent_block_hash=2**33, token_ids=[1, 2, 3, 2**32 - 1], block_size=2, lora_id=3,
        medium="GPU", lora_name="adapter", group_idx=0, kv_cache_spec_kind="full_attention",
        extra_keys=[("adapter", ("image", -3), "salt"), None],
    )
    removed = BlockRemoved(block_hashes=[2**63], medium="GPU", group_idx=0)
    batch = KVEventBatch(ts=1.5, events=[stored, removed, AllBlocksCleared()], data_parallel_rank=3)
    return msgspec.msgpack.Encoder().encode(batch)


def drive(llm, write):
    """Prompts that share beginnings, more than the cache holds."""
    rng = random.Random(7)
    word = lambda: rng.choice([rng.randrange(1, 24), rng.randrange(24, 256), rng.randrange(256, 320)])
    stem = [word() for _ in range(100)]
    for i in range(20):
        prompt = stem[: rng.randrange(0, 101)] + [word() for _ in range(rng.randrange(1, 70))]
        salt = "pepper" if i % 6 == 5 else None
        ask = {"prompt_token_ids": prompt, **({"cache_salt": salt} if salt else {})}
        sampling = SamplingParams(max_tokens=rng.randrange(1, 40), ignore_eos=True, temperature=0)
        [answer] = llm.generate([ask], sampling, use_tqdm=False)
        write("request", prompt, list(answer.outputs[0].token_ids), salt)
        if i == 13:
            write("reset", llm.reset_prefix_cache())


def replay(context, start):
    """Until the end marker, whose payload is empty."""
    asker = context.socket(zmq.DEALER)
    asker.linger = 0
    asker.connect(REPLAY)
    asker.send_multipart([b"", start.to_bytes(8, "big")])
    answers = []
    while not answers or answers[-1][-1]:
        if not asker.poll(10_000):
            sys.exit(f"no answer to {start}")
        answers.append([f.hex() for f in asker.recv_multipart()])
    asker.close()
    return answers


main(*sys.argv[1:])
