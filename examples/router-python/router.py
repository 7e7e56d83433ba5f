"""The index of a router, kept from the KV events of one engine: router.py ENDPOINT REPLAY_ENDPOINT BLOCKS.

It ends when it knows BLOCKS blocks. It needs Python 3.10, pyzmq and msgspec.
"""

import sys

import msgspec
import zmq

endpoint, replay_endpoint, wanted = sys.argv[1], sys.argv[2], int(sys.argv[3])
END_OF_REPLAY = b"\xff" * 8
context = zmq.Context.instance()
events = context.socket(zmq.SUB)
events.subscribe(b"")
events.connect(endpoint)
blocks = {}  # hash of a block: its token ids
expected = 0  # the sequence number of the next batch


def take(number, payload):
    """Apply one batch: the events of one step."""
    global expected
    timestamp, batch, rank, *_ = msgspec.msgpack.decode(payload)
    for event in batch:
        if event["type"] == "BlockStored":
            size = event["block_size"]
            for i, block in enumerate(event["block_hashes"]):
                blocks[block] = event["token_ids"][i * size : (i + 1) * size]
        elif event["type"] == "BlockRemoved":
            for block in event["block_hashes"]:
                blocks.pop(block, None)
        elif event["type"] == "AllBlocksCleared":
            blocks.clear()
    expected = number + 1
    print(f"batch {number} of rank {rank}: {len(blocks)} blocks", flush=True)


def replay():
    """Get the batches that were missed: the engine keeps the last ones, 10,000 by default."""
    with context.socket(zmq.DEALER) as socket:
        socket.connect(replay_endpoint)
        socket.send_multipart([b"", expected.to_bytes(8, "big")])
        while True:
            *_, number, payload = socket.recv_multipart()  # 0.26 and later: an empty frame and the topic come first
            if number == END_OF_REPLAY:
                return
            take(int.from_bytes(number, "big"), payload)


while len(blocks) < wanted:
    if not events.poll(1000):
        replay()  # a batch that was published before the subscription arrived, or the last one, may be missing
        continue
    topic, number, payload = events.recv_multipart()
    number = int.from_bytes(number, "big")
    if number > expected:
        replay()
    if number == expected:
        take(number, payload)
