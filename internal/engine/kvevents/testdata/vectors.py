"""Reads the files of a folder of vectors with msgspec: vectors.py FOLDER. With the Python of an engine, also with vLLM's own types, whose
encoder has to write the same bytes. It prints how many messages it read.
"""

import glob
import json
import os
import sys

os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

import msgspec

try:
    from vllm.distributed.kv_events import KVEventBatch
except ModuleNotFoundError:
    KVEventBatch = None


def meaning(value, key=""):
    if isinstance(value, dict):
        return {k: meaning(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [meaning(v, key) for v in value]
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if "block_hash" in key and value is not None else value


read = 0
for path in sorted(glob.glob(sys.argv[1] + "/*.msgpack")):
    with open(path, "rb") as payload, open(path.removesuffix("msgpack") + "json") as text:
        payload, want = payload.read(), json.load(text)
    read += 1
    if not payload:
        assert want["sequence"] == -1 and "events" not in want, path
        continue
    ts, events, rank = msgspec.msgpack.decode(payload)
    got = {"ts": ts, "events": meaning(events), "data_parallel_rank": rank}
    assert got == {k: want[k] for k in got}, (path, got)
    if KVEventBatch:
        assert msgspec.msgpack.encode(msgspec.msgpack.decode(payload, type=KVEventBatch)) == payload, path
print(read)
