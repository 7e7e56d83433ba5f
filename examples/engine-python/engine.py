"""A vLLM engine core that replays a trace: engine.py HANDSHAKE TRACE LINE MATCH. It needs Python 3.10, pyzmq and msgspec."""

import gzip
import json
import re
import sys
import time

import msgspec
import zmq

ADD, ABORT, UTILITY = b"\x00", b"\x01", b"\x03"  # request types
FINISH_REASONS = {"stop": 0, "length": 1, "abort": 2, "error": 3, "repetition": 4}
STOP_REASONS = {"repetition": "repetition_detected"}
UTILITIES = {"is_sleeping": False, "is_scheduler_paused": False, "reset_prefix_cache": True, "reset_mm_cache": None}
# For each line: fields of EngineCoreOutput, fields of EngineCoreOutputs, index of num_nans_in_logits.
LAYOUTS = {"0.25": (13, 8, 12), "0.26": (14, 8, 13), "0.27": (14, 8, 13), "0.28": (16, 8, 13), "0.29": (17, 8, 13),
           "0.30": (17, 8, 13), "0.31": (18, 8, 13), "0.32": (18, 9, 13), "0.33": (19, 9, 13)}  # fmt: skip

handshake_address, trace, line, match = sys.argv[1:]
OUTPUT, OUTPUTS, NANS = LAYOUTS[line]
with gzip.open(trace, "rt") as file:
    first, *records = map(json.loads, file)
records = sorted((r for r in records if "arrival_ms" in r), key=lambda r: r["arrival_ms"])
unused = list(records)


def connect(kind, address):
    socket = zmq.Context.instance().socket(kind)
    socket.setsockopt(zmq.IDENTITY, b"\x00\x00")  # the engine index: 2 bytes, little-endian
    socket.connect(address)
    return socket


def find_record(request_id, prompt):
    if match == "index":  # "replay-7" is record 7, counted from 0 in the order of arrival
        return records[int(re.search(r"replay-(\d+)", request_id)[1])]
    record = next(r for r in unused if r["prompt_token_ids"] == prompt)
    unused.remove(record)  # the next request with this prompt gets the next record
    return record


def steps(request_id, record, sampling):
    """Yield the EngineCoreOutput of each step of a request."""
    if sampling.get("logprobs") is not None or sampling.get("prompt_logprobs") is not None:
        record = {"output_token_ids": [], "finish_reason": "error"}  # this engine has no log-probabilities: it refuses
    tokens = record["output_token_ids"]
    sizes = record.get("itl_tokens", [1] * len(record.get("itl_ms", [])))
    sizes = [len(tokens) - sum(sizes), *sizes]  # the number of tokens in each step
    for step, size in enumerate(sizes, 1):
        out = [request_id, tokens[:size]] + [None] * (OUTPUT - 2)
        out[NANS] = 0  # the only other field that may not be nil
        tokens = tokens[size:]
        if step == len(sizes):
            reason = "length" if record.get("ended_by_frontend") else record.get("finish_reason", "length")
            stopped = reason == "stop" and out[1][-1] in sampling.get("stop_token_ids", [])
            out[5], out[6] = FINISH_REASONS[reason], out[1][-1] if stopped else STOP_REASONS.get(reason)
        yield out


def send(outputs=(), utility_output=None):
    message = [0, outputs, None, time.monotonic(), utility_output] + [None] * (OUTPUTS - 5)
    output_socket.send(msgspec.msgpack.encode(message))


status = {"local": False, "headless": True}
handshake = connect(zmq.DEALER, handshake_address)
handshake.send(msgspec.msgpack.encode({"status": "HELLO", **status}))
addresses = msgspec.msgpack.decode(handshake.recv())["addresses"]  # INIT
input_socket = connect(zmq.DEALER, addresses["inputs"][0])
output_socket = connect(zmq.PUSH, addresses["outputs"][0])
input_socket.send(bytes.fromhex(first["meta"]["ready_response_hex"]))  # the registration
handshake.send(msgspec.msgpack.encode({"status": "READY", **status}))

running = {}  # request id: its steps
while True:
    while input_socket.poll(0 if running else None):
        kind, payload, *_ = input_socket.recv_multipart()
        payload = msgspec.msgpack.decode(payload)
        if kind == ADD:
            running[payload[0]] = steps(payload[0], find_record(payload[0], payload[1]), payload[3])
        elif kind == ABORT:
            running = {i: s for i, s in running.items() if i not in payload}
        elif kind == UTILITY:
            client_index, call_id, method, args = payload
            result = [None, UTILITIES[method]] if method in UTILITIES else None
            send(utility_output=[call_id, None if result else f"{method} is not supported", result])
    if outputs := [next(request) for request in running.values()]:
        send(outputs)
    running = {out[0]: running[out[0]] for out in outputs if out[5] is None}
