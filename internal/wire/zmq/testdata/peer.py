"""A libzmq peer driven by JSON lines: one command a line in, one answer a line out.

Messages of the sequence commands (blast, drain, crowd) begin with an 8 byte
little-endian number that counts from 0.
"""
import hashlib
import json
import struct
import sys
import threading
import time

import zmq

ctx = zmq.Context()
sockets = {}


def open_(c):
    s = ctx.socket(getattr(zmq, c["type"]))
    s.linger = 0
    s.sndhwm = s.rcvhwm = 0
    if "identity" in c:
        s.identity = bytes.fromhex(c["identity"])
    for name, value in c.get("options", {}).items():
        s.setsockopt(getattr(zmq, name), value)
    if "subscribe" in c:
        s.subscribe(c["subscribe"])
    sockets[c["name"]] = s
    if "connect" in c:
        s.connect(c["connect"])
        return {}
    s.bind(c["bind"])
    return {"endpoint": s.last_endpoint.decode()}


def close(c):
    sockets.pop(c["name"]).close(c.get("linger", 0))
    return {}


def subscribe(c):
    sockets[c["name"]].subscribe(c["prefix"])
    return {}


def unsubscribe(c):
    sockets[c["name"]].unsubscribe(c["prefix"])
    return {}


def send(c):
    sockets[c["name"]].send_multipart([bytes.fromhex(f) for f in c["frames"]])
    return {}


def recv(c):
    s = sockets[c["name"]]
    if not s.poll(c["timeout"]):
        return {"error": f"{c['name']} received nothing"}
    return {"frames": [f.hex() for f in s.recv_multipart()]}


def send_big(c):
    """Frames of the given sizes, made of repeated sha256(index), and what they add up to."""
    frames = [(hashlib.sha256(bytes([i])).digest() * (n // 32 + 1))[:n] for i, n in enumerate(c["sizes"])]
    for _ in range(c.get("count", 1)):
        sockets[c["name"]].send_multipart(frames, copy=False)
    return {"digests": [hashlib.sha256(f).hexdigest() for f in frames]}


def recv_big(c):
    frames = sockets[c["name"]].recv_multipart()
    return {"digests": [hashlib.sha256(f).hexdigest() for f in frames]}


def blast(c):
    s, filler = sockets[c["name"]], b"x" * (c["size"] - 8)
    for i in range(c["count"]):
        s.send(struct.pack("<q", i) + filler)
    return {}


def drain(c):
    """Receives count messages from number first on, resting after every pause_every-th."""
    s, wrong, first = sockets[c["name"]], 0, c.get("first", 0)
    for i in range(c["count"]):
        (n,) = struct.unpack("<q", s.recv()[:8])
        wrong += n != first + i
        if c.get("pause_every") and i % c["pause_every"] == 0:
            time.sleep(c["pause"])
    return {"wrong": wrong}


def crowd(c):
    """Many DEALERs that send their messages and want each of them back, in order."""
    peers = []
    for i in range(c["peers"]):
        s = ctx.socket(zmq.DEALER)
        s.linger = 0
        s.identity = struct.pack("<H", i)
        s.connect(c["connect"])
        peers.append(s)
    for n in range(c["messages"]):
        for i, s in enumerate(peers):
            s.send_multipart([struct.pack("<q", n), struct.pack("<H", i), b""])
    wrong = 0
    for i, s in enumerate(peers):
        for n in range(c["messages"]):
            if not s.poll(20000):
                return {"error": f"peer {i} waits for message {n}"}
            wrong += s.recv_multipart() != [struct.pack("<q", n), struct.pack("<H", i), b""]
        wrong += s.poll(0) != 0
    for s in peers:
        s.close()
    return {"wrong": wrong}


def bench_recv(c):
    """Seconds from the first message to the last."""
    s, start = sockets[c["name"]], None
    for _ in range(c["count"]):
        s.recv(copy=c["copy"])
        start = start or time.perf_counter()
    return {"seconds": time.perf_counter() - start}


def bench_send(c):
    s, body = sockets[c["name"]], b"x" * c["size"]
    for _ in range(c["count"]):
        s.send(body, copy=c["copy"])
    return {}


def bench_rtt(c):
    """The median round trip near, far, near: one thread plays both ends, so nothing but the way is measured."""
    near, far, body, took = sockets[c["near"]], sockets[c["far"]], b"x" * c["size"], []
    for _ in range(c["count"]):
        start = time.perf_counter()
        near.send(body)
        far.send_multipart(far.recv_multipart())
        near.recv()
        took.append(time.perf_counter() - start)
    return {"seconds": sorted(took)[len(took) // 2]}


def proxy(c):
    """libzmq's own proxy between front, which binds, and back, which connects; it ends with the process."""
    front, back = (ctx.socket(getattr(zmq, c[side])) for side in ("front", "back"))
    for s in (front, back):
        s.linger = 0
        s.sndhwm = s.rcvhwm = c["hwm"]
    front.bind(c["bind"])
    back.connect(c["connect"])
    threading.Thread(target=zmq.proxy, args=(front, back), daemon=True).start()
    return {"endpoint": front.last_endpoint.decode()}


COMMANDS = {
    "open": open_, "close": close, "subscribe": subscribe, "unsubscribe": unsubscribe, "send": send, "recv": recv, "send_big": send_big, "recv_big": recv_big,
    "blast": blast, "drain": drain, "crowd": crowd,
    "bench_recv": bench_recv, "bench_send": bench_send, "bench_rtt": bench_rtt, "proxy": proxy,
}

for line in sys.stdin:
    command = json.loads(line)
    try:
        answer = COMMANDS[command["op"]](command)
    except Exception as e:  # the test shows it
        answer = {"error": f"{command['op']}: {e!r}"}
    print(json.dumps(answer), flush=True)
