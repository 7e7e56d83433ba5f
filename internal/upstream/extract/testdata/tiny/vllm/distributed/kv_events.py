import msgspec

from vllm.config.kv_events import KVEventsConfig

MEDIUM_GPU = "GPU"


class EventBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list
    rank: int | None = None


class KVCacheEvent(msgspec.Struct, tag=True):
    """Base of all events."""


class BlockStored(KVCacheEvent):
    hashes: list[int]
    """What it is about."""


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(EventBatch):
    events: list[BlockStored | AllBlocksCleared]


class ZmqEventPublisher:
    END_SEQ = (-1).to_bytes(8, "big", signed=True)

    def publish(self, seq, payload):
        self._pub.send_multipart((self._topic_bytes, seq.to_bytes(8, "big"), payload))

    def replay(self, client_id, seq, payload):
        self._replay.send_multipart((client_id, b"", seq.to_bytes(8, "big"), payload))
        self._replay.send_multipart((client_id, b"", self.END_SEQ, b""))
