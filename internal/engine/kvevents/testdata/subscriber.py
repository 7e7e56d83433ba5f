"""Subscribes to KV events with the decoder of an installed vLLM, for the tests of this package.

    python subscriber.py

Run it with the Python of an engine that .ci/peers installed. It writes "ready", and then a line of JSON for each message:

    ["live", topic, number, batch]      a batch is what KVEventBatch decodes to; bytes are in hex
    ["replay", topic or null, number, batch]

It reads commands, one a line: "subscribe ENDPOINT REPLAY_ENDPOINT TOPIC", "live N" for the next N batches, "replay N" for those from number N on, asked for by a
DEALER, "first N" for the first of them, asked for by a REQ as simple clients do.
"""

import json
import sys

import msgspec
import zmq
from vllm.distributed.kv_events import KVEventBatch

PATIENCE = 60_000
DECODER = msgspec.msgpack.Decoder(type=KVEventBatch)


def main():
    context = zmq.Context()
    print("ready", flush=True)
    for command in sys.stdin:
        what, n, *more = command.split()
        if what == "subscribe":
            replay_endpoint, topic = more
            sub = context.socket(zmq.SUB)
            sub.connect(n)
            sub.setsockopt_string(zmq.SUBSCRIBE, topic)
            continue
        if what == "live":
            for _ in range(int(n)):
                topic, number, payload = receive(sub)
                write("live", topic, number, payload)
            continue
        asker = context.socket(zmq.DEALER if what == "replay" else zmq.REQ)
        asker.connect(replay_endpoint)
        number = int(n).to_bytes(8, "big")
        asker.send_multipart([b"", number] if what == "replay" else [number])
        while True:
            # A REQ takes the empty frame away itself.
            *empty, number, payload = receive(asker)
            if what == "replay":
                assert empty.pop(0) == b"", empty
            write("replay", empty[0] if empty else None, number, payload)
            if not payload or what == "first":
                break
        asker.close(linger=0)
    context.destroy(linger=0)


def receive(socket):
    if not socket.poll(PATIENCE):
        sys.exit("no message")
    return socket.recv_multipart()


def write(kind, topic, number, payload):
    batch = DECODER.decode(payload) if payload else None
    signed = int.from_bytes(number, "big", signed=True)
    line = [kind, None if topic is None else topic.decode(), signed, plain(batch)]
    print(json.dumps(line, sort_keys=True), flush=True)


def plain(value):
    """A value without types, but for those of the structs."""
    if isinstance(value, msgspec.Struct):
        fields = {f: plain(getattr(value, f)) for f in value.__struct_fields__}
        return {"is": type(value).__name__, **{k: v for k, v in fields.items() if v is not None}}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


main()
