from typing import ClassVar, Literal

from pydantic import Field

from vllm.config.utils import config


@config
class KVEventsConfig:
    known: ClassVar[int] = 1
    publisher: Literal["null", "zmq"] = Field(default=None)
    hwm: int = 100_000
