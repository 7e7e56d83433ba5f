import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Dict, List, Literal, NamedTuple, NewType, Optional, Union

import msgspec
import numpy
from torch import Tensor

from vllm import sampling as sp
from vllm.config import KVEventsConfig
from vllm.v1.serial_utils import UtilityResult

PauseMode = Literal["abort", "wait"]
NOTICE_CALL_ID = -1
RequestId = NewType("RequestId", str)


class EngineCoreRequestType(enum.Enum):
    ADD = b"\x00"
    UTILITY = b"\x03"


class FinishReason(enum.IntEnum):
    STOP = 0
    LENGTH = 1


class Logprobs(NamedTuple):
    ids: numpy.ndarray
    rank: "Optional[Tensor]" = None


@dataclass
class EngineCoreReadyResponse:
    max_model_len: int
    kv_events_config: Optional["KVEventsConfig"] = None
    extras: Dict[str, int] = field(default_factory=dict)


class EngineCoreRequest(
    msgspec.Struct,
    array_like=True,
    gc=False,
):
    request_id: RequestId
    prompt: Union[None, List[int]]
    sampling: sp.Sampling | None = None
    headers: Mapping[str, str] | None = None


class EngineCoreOutput(msgspec.Struct, array_like=True):
    request_id: str
    logprobs: Logprobs | None = None
    reason: FinishReason | None = None


class UtilityOutput(msgspec.Struct, array_like=True):
    call_id: int
    result: UtilityResult | None = None


class EngineCoreOutputs(msgspec.Struct, array_like=True):
    outputs: list[EngineCoreOutput] = []
    utility: UtilityOutput | None = None
