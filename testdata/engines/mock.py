"""An engine core that is none of ours, for the tests of whoever judges engines.

It speaks lines 0.27 and 0.33 by definitions of its own, over libzmq and msgspec, and
plays a recording by the index in the request ids, or makes up tokens. --fault makes it
wrong in one way.
"""

import argparse
import gzip
import itertools
import json
import os
import signal
import struct
import sys
import time
import zlib

import msgspec
import zmq

STOP, LENGTH, ABORT, ERROR, REPETITION = range(5)
COMMANDS = (
    "\r\n::error::as a line\n##[error]anywhere ##vso[task.complete]too \x1b[31mred \x1b]0;title\x07\b\u202e</script>"
    "<img src=x onerror=alert(1)>]]>\u2028::set-output name=a::b\x00\n```\n"
)
ABSENT = {  # keys of scheduler_stats that are nil here
    "0.27": ("iteration_details", "connector_prefix_cache_stats", "spec_decoding_stats", "kv_connector_stats", "cudagraph_stats", "perf_stats"),
}
ABSENT["0.33"] = (*ABSENT["0.27"], "ec_connector_stats")
REASONS = {"stop": STOP, "length": LENGTH, "abort": ABORT, "error": ERROR, "repetition": REPETITION}


class Faults(str):
    """One fault, or several between commas: it equals each of them."""

    def __eq__(self, other):
        return f",{other}," in f",{self},"

    def __ne__(self, other):
        return not self == other

    __hash__ = str.__hash__


class PrefillStats(msgspec.Struct):
    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_local_cached_tokens: int = 0
    num_external_cached_tokens: int = 0
    num_cache_creation_tokens: int = 0


class Output27(msgspec.Struct, array_like=True):
    request_id: str
    new_token_ids: list[int]
    new_logprobs: object = None
    new_prompt_logprobs_tensors: object = None
    pooling_output: object = None
    finish_reason: int | None = None
    stop_reason: int | str | None = None
    events: list | None = None
    kv_transfer_params: dict | None = None
    ec_transfer_params: dict | None = None
    trace_headers: dict | None = None
    prefill_stats: PrefillStats | None = None
    routed_experts: object = None
    num_nans_in_logits: int = 0


class Output33(Output27, array_like=True):
    mm_cache_miss_hashes: list | None = None
    new_sampling_mask: object = None
    spec_decode_metrics: dict | None = None
    prompt_token_id_logprobs: object = None
    error: dict | None = None


class Output34(Output33, array_like=True):
    one_more: int = 0


class Outputs27(msgspec.Struct, array_like=True):
    engine_index: int = 0
    outputs: list = []
    scheduler_stats: dict | None = None
    timestamp: float = 0.0
    utility_output: list | None = None
    finished_requests: list | None = None
    wave_complete: int | None = None
    start_wave: int | None = None


class Outputs33(Outputs27, array_like=True):
    weight_version: str | None = None


LAYOUTS = {"0.27": (Output27, Outputs27), "0.33": (Output33, Outputs33)}

READY27 = {
    "max_model_len": 4096, "num_gpu_blocks": 1024, "block_size": 16, "dp_stats_address": None, "dtype": "float32",
    "vllm_version": "0.27.1", "world_size": 1, "data_parallel_size": 1, "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1, "decode_context_parallel_size": 1, "data_parallel_rank": 0, "max_num_seqs": 64,
    "max_num_batched_tokens": 2048, "instance_id": "mock", "kv_cache_size_tokens": 16384,
    "kv_cache_max_concurrency": 4.0, "kv_events_config": None,
}  # fmt: skip
READY33 = READY27 | {
    "vllm_version": "0.33.0", "supports_lora": False, "max_loras": 0, "mamba_block_size": None,
    "weight_transfer_backend": None, "enable_sleep_mode": False, "supports_draft_weight_updates": False,
    "effective_attention_block_size": 16, "coord_store_port": 0, "coordinator_input_address": None,
    "coordinator_output_address": None,
}  # fmt: skip
READY = {"0.27": READY27, "0.33": READY33}

UTILITIES = {
    "get_supported_tasks": ["generate"], "is_sleeping": False, "is_scheduler_paused": False, "reset_prefix_cache": True,
    "reset_mm_cache": None, "reset_encoder_cache": None, "get_weight_version": "default", "list_loras": [],
}  # fmt: skip


class Recording:
    """The recorded streams, by index: in order of arrival, what has no arrival left out."""

    def __init__(self, path):
        opened = gzip.open(path, "rt") if path.endswith(".gz") else open(path)
        with opened as file:
            lines = [json.loads(line) for line in file if line.strip()]
        self.meta = lines.pop(0)["meta"] if "meta" in lines[0] else {}
        arrived = [r for r in lines if r.get("arrival_ms") is not None]
        self.records = sorted(arrived, key=lambda r: r["arrival_ms"])

    def script(self, request_id):
        record = self.records[int(request_id.rsplit("-", 1)[-1])]
        tokens, gaps = record["output_token_ids"], record.get("itl_ms", [0] * (len(record["output_token_ids"]) - 1))
        sizes = record.get("itl_tokens", [1] * len(gaps))
        sizes = ([len(tokens) - sum(sizes)] if tokens else []) + sizes
        ends = list(itertools.accumulate(sizes))
        chunks = [tokens[end - size : end] for size, end in zip(sizes, ends)] or [[]]
        return chunks, REASONS[record.get("finish_reason") or "length"]


class Request:
    def __init__(self, engine, fields):
        self.id, self.prompt, self.sampling = fields[0], fields[1] or [], fields[3] or {}
        self.engine, self.said, self.seed = engine, 0, zlib.crc32(self.id.encode())
        self.limit = self.sampling.get("max_tokens", 16)
        if engine.fault == "never-the-same":
            self.seed = time.monotonic_ns()
        if engine.fault == "rounds-by-cache":
            self.seed += tuple(self.prompt) in engine.cached
            engine.cached.add(tuple(self.prompt))
        self.script = engine.recording.script(self.id) if engine.recording else None

    def token(self, position):
        return zlib.crc32(struct.pack("<QI", self.seed, position)) % 1900

    def step(self):
        """The next tokens, and how the request ends with them."""
        if self.script:
            chunks, reason = self.script
            chunk = chunks.pop(0)
            if chunks:
                return chunk, None, None
            if reason == REPETITION:
                return chunk, reason, "repetition_detected"
            return chunk, reason, self.stop(chunk[-1])[1] if reason == STOP else None
        token = self.token(self.said)
        self.said += 1
        reason, stop = self.stop(token)
        if reason is None and self.said >= self.limit + (2 if self.engine.fault == "too-many" else 0):
            reason = LENGTH
        if self.engine.fault == "too-few" and self.said == 3:
            reason = LENGTH
        return [token], reason, stop

    def stop(self, token):
        early = self.said < self.sampling.get("min_tokens", 0) and self.engine.fault != "no-min-tokens"
        if early or self.engine.fault == "no-stop":
            return None, None
        if token == self.sampling.get("_eos_token_id"):
            return STOP, None
        if token in self.sampling.get("stop_token_ids", []):
            return STOP, None if self.engine.fault == "no-stop-reason" else token
        return None, None

    def table(self, tokens, count, kinds):
        """A table of log-probabilities: the token itself, then the most likely ones: it again, and what might have been."""
        rows = [[t, *[t, *range(2000, 1999 + count)][:count]] for t in tokens]
        ids = b"".join(struct.pack("<%di" % len(row), *row) for row in rows)
        more = 9 if self.engine.fault == "logits" else 0  # as with --logprobs-mode raw_logits
        values = b"".join(struct.pack("<f", more - (1.0 if id == row[0] else 4.0)) for row in rows for id in row)
        ranks = struct.pack("<q" if kinds[2] == "<i8" else "<i", 1) * len(rows)
        shape = [len(rows), count + 1]
        return [self.engine.tensor(kinds[0], shape, ids), self.engine.tensor(kinds[1], shape, values),
                self.engine.tensor(kinds[2], [len(rows)], ranks), None]  # fmt: skip


class Engine:
    def __init__(self, opt):
        self.opt, self.fault, self.line = opt, Faults(opt.fault), opt.line
        if self.fault == "other-identity":
            opt.index = 5
        self.recording = Recording(opt.trace) if opt.trace else None
        self.output_type, self.outputs_type = LAYOUTS[self.line]
        if self.fault == "other-layout":
            self.output_type = Output33 if self.line == "0.27" else Output34
        self.requests, self.finished, self.aux, self.requested, self.cached = {}, [], [], 0, set()
        self.identity = struct.pack("<H", opt.index)
        self.encoder = msgspec.msgpack.Encoder()

    def socket(self, kind, address):
        s = zmq.Context.instance().socket(kind)
        s.setsockopt(zmq.LINGER, 4000)
        s.setsockopt(zmq.RCVHWM, 0)
        s.setsockopt(zmq.SNDHWM, 0 if not self.fault.startswith("flood") else 1000)
        if kind == zmq.DEALER:
            s.setsockopt(zmq.IDENTITY, self.identity)
        s.connect(address)
        return s

    def handshake(self):
        shake = self.socket(zmq.DEALER, self.opt.handshake)
        # Rust engines send the hash that they do not have as nil.
        status = {"local": self.fault == "local", "headless": True, "parallel_config_hash": None}
        if self.fault == "hello-without-headless":
            del status["headless"]
        if self.fault != "ready-first":
            shake.send(self.encoder.encode({"status": "HELLO"} | status))
            addresses = msgspec.msgpack.decode(shake.recv())["addresses"]
            if self.fault == "hangs-before-ready":
                hang()
            self.input = self.socket(zmq.DEALER, addresses["inputs"][0])
            self.output = self.socket(zmq.PUSH, addresses["outputs"][0])
            self.input.send(self.registration())
        shake.send(self.encoder.encode({"status": "READY"} | status))
        if self.fault == "ready-first":
            hang()  # an engine that ended here might take its message with it

    def registration(self):
        if self.recording and self.recording.meta.get("ready_response_hex"):
            return bytes.fromhex(self.recording.meta["ready_response_hex"])
        ready = dict(READY[self.line])
        if self.fault == "commands-in-words":
            ready["vllm_version"] = COMMANDS
        if self.fault == "ready-kind":
            ready["mamba_block_size"] = "none"
        if self.fault == "ready-missing":
            del ready["block_size"]
        if self.fault == "short-registration":
            for key in ("tensor_parallel_size", "pipeline_parallel_size", "world_size", "supports_lora", "max_num_seqs", "kv_cache_size_tokens"):
                ready.pop(key, None)
        return self.encoder.encode(ready)

    def tensor(self, dtype, shape, data):
        if len(data) < 256:
            return [dtype, shape, msgspec.msgpack.Ext(3, data)]
        self.aux.append(data)
        return [dtype, shape, len(self.aux)]

    def send(self, **fields):
        at = time.monotonic()
        if self.fault == "clock-goes-back":
            at = 1e6 - at
        if self.fault == "time-of-day":
            at = time.time()
        envelope = self.outputs_type(engine_index=3 if self.fault == "other-index" else self.opt.index, timestamp=at, **fields)
        self.output.send_multipart([self.encoder.encode(envelope), *self.aux])
        self.aux = []

    def serve(self):
        while True:
            # Not for ever: a signal that comes just before the call would be seen after it only.
            while self.input.poll(0 if self.busy() else 50):
                self.take(self.input.recv_multipart())
            if self.busy():
                self.step()

    def busy(self):
        """A long request that runs alone waits for its abort, where that is what goes wrong."""
        alone = len(self.requests) == 1 and next(iter(self.requests.values()))
        return self.requests and not (self.fault == "stale-after-abort" and alone and alone.said and alone.limit > 100)

    def take(self, frames):
        kind, payload = frames[0], msgspec.msgpack.decode(frames[1])
        if kind == b"\x00" and self.fault == "strict" and len(payload) > 20:
            print(f"dropped: Expected at most 20 fields, got {len(payload)}", flush=True)
        elif kind == b"\x00":
            self.add(payload)
        elif kind == b"\x01" and self.fault != "deaf-to-aborts":
            for request_id in payload:
                self.requests.pop(request_id, None)
                if self.fault == "abort-spoils-the-id":
                    self.finished.append(request_id)
            if not self.requests and self.fault not in ("no-statistics", "stale-after-abort"):
                self.send(scheduler_stats=self.stats())  # the step in which a real engine frees what they held
        elif kind == b"\x03":
            self.answer(*payload)

    def add(self, fields):
        self.requested += 1
        if self.fault == "dies-later" and self.requested == 5:
            sys.exit("CUDA error: an illegal memory access was encountered")
        if fields[0] in self.finished:
            return self.send(outputs=[self.output_type(fields[0], [], finish_reason=ERROR)])
        if self.fault != "silent":
            self.requests[fields[0]] = Request(self, fields)
        while self.requests and self.fault == "done-before-aborts":
            self.step()

    def answer(self, client, call_id, method, args):
        if self.fault == "deaf-to-calls" or (self.fault == "deaf-to-a-call" and method == "reset_mm_cache"):
            return None
        if method == "reset_prefix_cache":
            self.cached.clear()
        if method in UTILITIES and not (self.fault == "failing-utility" and method == "reset_mm_cache"):
            value = UTILITIES[method] if self.fault != "none-for-bool" or method == "is_sleeping" else None
            return self.send(utility_output=[call_id, None, [None, value]])
        if self.fault == "unknown-is-done":
            return self.send(utility_output=[call_id, None, [None, None]])
        self.send(utility_output=[call_id, f"Call to {method} method failed: no such method", None])

    def step(self):
        outputs = [self.say(r) for r in list(self.requests.values())]
        stats = None if self.fault == "no-statistics" else self.stats()
        self.send(outputs=outputs, scheduler_stats=stats)
        ended = [o for o in outputs if o.finish_reason is not None]
        if ended and self.fault == "late-output":
            self.send(outputs=[self.output_type(ended[0].request_id, [1])])
        if ended and self.fault == "wave":
            self.send(wave_complete=1)
        if ended and self.fault == "empty-envelope":
            self.send()
        while self.fault == "flood-answers":
            self.send(utility_output=[7, None, [None, None]])
        if self.fault in OUTPUT_FLOODS:
            self.flood(outputs[0].request_id if self.fault == "flood-outputs" else "stray-1")

    def say(self, r):
        first = r.said == 0
        tokens, reason, stop = r.step()
        if r.said == 3 and self.fault == "hangs-midway":
            hang()
        out = self.output_type(r.id, tokens, finish_reason=reason, stop_reason=stop)
        if self.fault == "commands-in-words":
            out.request_id = COMMANDS
        if self.recording:
            first, r.said = r.said == 0, r.said + 1
        if first and self.fault != "no-prefill-stats":
            out.prefill_stats = PrefillStats(num_prompt_tokens=len(r.prompt), num_computed_tokens=len(r.prompt))
        count, prompt = r.sampling.get("logprobs"), r.sampling.get("prompt_logprobs")
        if count is not None and tokens and self.fault != "no-logprobs":
            named = [t + 1 for t in tokens] if self.fault == "logprobs-of-others" else tokens
            out.new_logprobs = r.table(named, count, ("<i4", "<f4", "<i8"))
        if first and prompt is not None and self.fault != "no-logprobs":
            out.new_prompt_logprobs_tensors = r.table(r.prompt[1:], prompt, ("int32", "float32", "int32"))
            out.new_prompt_logprobs_tensors += [None] * (self.line == "0.33")  # a field that came with 0.29
        if reason is not None:
            del self.requests[r.id]
        return out

    def stats(self):
        cache = dict.fromkeys(("requests", "queries", "hits", "preempted_requests", "preempted_queries", "preempted_hits"), 0)
        blocks = sum((len(r.prompt) + r.said - 1) // READY27["block_size"] + 1 for r in self.requests.values())
        stats = {
            "num_running_reqs": len(self.requests) or (1 if self.fault == "stuck-gauges" else 0), "num_waiting_reqs": 0,
            **dict.fromkeys(ABSENT[self.line]), "waiting_lora_adapters": {}, "running_lora_adapters": {},
            **({"num_kv_fetch_reqs_by_stage": {}} if self.line == "0.33" else {}), "num_skipped_waiting_reqs": 0, "step_counter": 0, "current_wave": 0,
            "kv_cache_usage": blocks / (READY27["num_gpu_blocks"] - 1),
            "prefix_cache_stats": {"reset": False} | cache | ({"hits_by_source": {}} if self.line == "0.33" else {}), "kv_cache_eviction_events": [],
        }  # fmt: skip
        if self.fault == "statistics-without-wave":
            del stats["current_wave"]
        return stats

    def flood(self, request_id):
        if self.fault == "flood-bytes":
            self.output.send(bytes(100 << 20))
        while self.fault != "flood-bytes":
            self.send(outputs=[self.output_type(request_id, [1] * 10) for _ in range(100)])


OUTPUT_FLOODS = ("flood-outputs", "flood-strays", "flood-bytes")


def hang():
    """Waits for ever, and lets whoever wants to know hear of it."""
    if "MOCK_HANGS" in os.environ:
        with open(os.environ["MOCK_HANGS"], "w") as told:
            told.write("hangs")
    while True:
        time.sleep(0.05)  # no pause, which a signal just before it does not end


def misbehave(fault):
    """The faults of a process, before it says anything."""
    if fault == "dies-at-once":
        print("loading weights", flush=True)
        sys.exit("ValueError: no such model")
    if fault == "workflow-commands":
        print("::error::from stdout\n  ::set-output name=a::b\nsay ##[error]boo" + COMMANDS, flush=True)
        sys.exit("::error file=a,line=1::from stderr\r::warning::after a carriage return")
    if fault == "hangs-before-hello":
        print("waiting for a GPU that never comes", flush=True)
        hang()
    if fault == "ignores-sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if fault == "forks" and os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # holds the pipes, and stays
        while True:
            signal.pause()
    if fault == "daemon":
        if os.fork() != 0:
            os._exit(0)  # the child goes on, as daemons do
        signal.pause()
    if fault == "flood-logs":
        line = b"x" * (1 << 20)
        for _ in range(int(os.environ.get("MOCK_LOG_MIB", "64"))):
            os.write(1, line)
            os.write(2, line)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--handshake", required=True)
    parser.add_argument("--line", choices=LAYOUTS, default="0.33")
    parser.add_argument("--trace", help="recording to play; tokens are made up without")
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--fault", default="")
    opt = parser.parse_args()
    # No sys.exit: an exception that is raised while zmq frees a message is printed, and then it is lost.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    misbehave(opt.fault)
    engine = Engine(opt)
    engine.handshake()
    engine.serve()


main()
