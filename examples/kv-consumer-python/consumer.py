"""An index of the blocks that ranks of an engine have cached, kept from their KV events. It is judged by

    vllm-vcr conform --consumer-command 'python consumer.py {endpoint} {replay_endpoint} {topic} {ranks}'

It needs Python 3.10, pyzmq and msgspec.
"""

import json
import sys

import msgspec
import zmq

END_OF_REPLAY = b"\xff" * 8
context = zmq.Context.instance()


def of_rank(endpoint, rank):
    """Rank N has the port plus N."""
    host, port = endpoint.rsplit(":", 1)
    return f"{host}:{int(port) + rank}"


class Rank:
    def __init__(self, number, endpoint, replay_endpoint, topic):
        self.number = number
        self.replay_endpoint = of_rank(replay_endpoint, number)
        self.blocks = set()  # hash (a number, or bytes), group and medium: each place stores and removes a block for itself
        self.next = 0  # the sequence number of the next batch
        self.last = 0.0  # the time of the last batch
        self.events = context.socket(zmq.SUB)  # it reconnects by itself
        self.events.subscribe(topic)
        self.events.connect(of_rank(endpoint, number))

    def arrived(self):
        _, number, payload = self.events.recv_multipart()
        number = int.from_bytes(number, "big")
        batch = msgspec.msgpack.decode(payload)
        if number < self.next:
            if batch[0] <= self.last:
                return  # a replay had it
            self.blocks.clear()  # the engine was started again
            self.next = 0
        if number > self.next:
            self.replay()
        self.apply(number, batch)

    def replay(self):
        """Get the batches that were missed. The engine has the last ones, 10,000 by default."""
        with context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(self.replay_endpoint)
            socket.send_multipart([b"", self.next.to_bytes(8, "big")])
            while socket.poll(5000):
                *_, number, payload = socket.recv_multipart()  # 0.26 and later: an empty frame and the topic come first
                if number == END_OF_REPLAY:
                    return
                self.apply(int.from_bytes(number, "big"), msgspec.msgpack.decode(payload))

    def apply(self, number, batch):
        if number < self.next:
            return  # it came twice
        if number > self.next:
            self.blocks.clear()  # what was missed may have removed any of them
        self.last, events, *_ = batch
        self.next = number + 1
        for event in events:
            place = event.get("group_idx"), event.get("medium")
            blocks = {(block, *place) for block in event.get("block_hashes", [])}
            if event["type"] == "BlockStored":
                self.blocks |= blocks
            elif event["type"] == "BlockRemoved":
                self.blocks -= blocks
            elif event["type"] == "AllBlocksCleared":
                self.blocks.clear()

    def cached(self):
        blocks = {block.hex() if isinstance(block, bytes) else block for block, *_ in self.blocks}
        return {"rank": self.number, "next": self.next, "blocks": list(blocks)}


def main(endpoint, replay_endpoint, topic, count):
    ranks = {rank.events: rank for rank in (Rank(n, endpoint, replay_endpoint, topic) for n in range(int(count)))}
    poller = zmq.Poller()
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    for socket in ranks:
        poller.register(socket, zmq.POLLIN)
    print(json.dumps({"verb": "ready"}), flush=True)
    while True:
        for socket, _ in poller.poll():
            if socket in ranks:
                ranks[socket].arrived()
                continue
            line = sys.stdin.readline()
            if not line:
                return
            if json.loads(line)["verb"] == "ask":
                print(json.dumps({"verb": "cached", "ranks": [rank.cached() for rank in ranks.values()]}), flush=True)


main(*sys.argv[1:])
