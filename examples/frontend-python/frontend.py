"""A vLLM frontend without a tokenizer: frontend.py HANDSHAKE_PORT HTTP_PORT LINE. It needs Python 3.10, pyzmq and msgspec."""

import itertools
import json
import queue
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import zmq

ADD, ABORT, UTILITY = b"\x00", b"\x01", b"\x03"  # request types
FINISH_REASONS = ["stop", "length", "abort", "error", "repetition"]
# Parameters of the OpenAI API that SamplingParams has under the same name.
SAMPLING = ("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop_token_ids", "ignore_eos",
            "frequency_penalty", "presence_penalty", "repetition_penalty")  # fmt: skip
# The fields of EngineCoreRequest in each line.
LAYOUTS = {"0.25": 20, "0.26": 20, "0.27": 20, "0.28": 21, "0.29": 21, "0.30": 21, "0.31": 22, "0.32": 22, "0.33": 22}

handshake_port, http_port, line = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
alive = False
waiting = {}  # request id: the queue of its outputs
numbers = itertools.count(1)
sending = threading.Lock()  # a ZeroMQ socket is for one thread at a time


def bind(kind, address):
    socket = zmq.Context.instance().socket(kind)
    socket.bind(address)
    return socket, socket.getsockopt(zmq.LAST_ENDPOINT).decode()


def serve_engine():
    """The handshake, then the outputs of the engine."""
    global engine, alive
    engine, hello = handshake.recv_multipart()
    addresses = {"inputs": [input_address], "outputs": [output_address], "coordinator_input": None,
                 "coordinator_output": None, "frontend_stats_publish_address": None}  # fmt: skip
    init = {"addresses": addresses, "parallel_config": {}}
    handshake.send_multipart([engine, msgspec.msgpack.encode(init)])
    identity, registration = input_socket.recv_multipart()
    ready = handshake.recv_multipart()
    alive = True
    while True:
        payload = output_socket.recv_multipart()[0]
        if payload == b"ENGINE_CORE_DEAD":
            alive = False
            for outputs in list(waiting.values()):
                outputs.put(None)
            return
        for out in msgspec.msgpack.decode(payload)[1]:
            if out[0] in waiting:
                waiting[out[0]].put(out)


def outputs_of(body):
    """Send a request to the engine and yield its outputs. Send ABORT if the client leaves before the last one."""
    request_id, prompt = f"cmpl-{next(numbers)}", body["prompt"]
    request = [None] * LAYOUTS[line]
    request[0], request[1], request[5], request[16] = request_id, prompt, time.time(), request_id
    request[3] = {"max_tokens": 16} | {key: body[key] for key in SAMPLING if key in body}
    request[11] = request[12] = request[13] = 0  # client_index, current_wave, priority
    request[15] = request[19] = False  # resumable, abort_immediately
    waiting[request_id] = outputs = queue.Queue()
    send(ADD, request)
    finished = False
    try:
        while not finished:
            out = outputs.get()
            finished = out is None or out[5] is not None
            if out is None or out[5] == 3:
                raise RuntimeError("the engine failed")
            yield out
    finally:
        del waiting[request_id]
        if not finished:
            send(ABORT, [request_id])


def send(kind, payload):
    with sending:
        input_socket.send_multipart([engine, kind, msgspec.msgpack.encode(payload)])


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        models = {"object": "list", "data": [{"id": "tiny", "object": "model"}]}
        known = {"/health": (200 if alive else 503, {}), "/v1/models": (200, models)}
        self.answer(*known.get(self.path, (404, {})))

    def do_POST(self):
        text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/v1/completions":
            return self.answer(404, {})
        try:
            body = json.loads(text)
            valid = body["model"] == "tiny" and isinstance(body["prompt"], list) and isinstance(body.get("max_tokens", 16), int)
        except (ValueError, KeyError):
            valid = False
        if not valid:
            return self.answer(400, {"error": {"message": "want JSON with model tiny, token ids as prompt, a number as max_tokens"}})
        try:
            self.stream(body) if body.get("stream") else self.complete(body)
        except RuntimeError as error:
            self.answer(500, {"error": {"message": str(error)}})

    def complete(self, body):
        outputs = list(outputs_of(body))
        tokens = [token for out in outputs for token in out[1]]
        self.answer(200, {"model": "tiny", "choices": [choice(tokens, outputs[-1])], "usage": usage(body, len(tokens))})

    def stream(self, body):
        count, outputs = 0, outputs_of(body)
        out = next(outputs)  # an engine that refuses the request does so here, before the status is sent
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for out in itertools.chain([out], outputs):
            count += len(out[1])
            self.event({"model": "tiny", "choices": [choice(out[1], out)]})
        if (body.get("stream_options") or {}).get("include_usage"):
            self.event({"model": "tiny", "choices": [], "usage": usage(body, count)})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, value):
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()

    def answer(self, status, value):
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def choice(tokens, out):
    reason = None if out[5] is None else FINISH_REASONS[out[5]]
    return {"index": 0, "text": "", "token_ids": tokens, "finish_reason": reason, "stop_reason": out[6]}


def usage(body, count):
    return {"prompt_tokens": len(body["prompt"]), "completion_tokens": count, "total_tokens": len(body["prompt"]) + count}


handshake, _ = bind(zmq.ROUTER, f"tcp://127.0.0.1:{handshake_port}")
input_socket, input_address = bind(zmq.ROUTER, "tcp://127.0.0.1:0")
output_socket, output_address = bind(zmq.PULL, "tcp://127.0.0.1:0")
threading.Thread(target=serve_engine, daemon=True).start()
ThreadingHTTPServer(("127.0.0.1", http_port), Handler).serve_forever()
