from vllm.config.kv_events import KVEventsConfig

LIMIT = 16

__all__ = ["KVEventsConfig", "LIMIT"]
