from enum import Enum, auto

import msgspec

from .config import *


class Kind(Enum):
    FIRST = auto()
    SECOND = auto()
    TENTH = 10
    NEXT = auto()


class Base(msgspec.Struct, omit_defaults=True, kw_only=True):
    seed: int | None = None
    stop: list[str] = []


class Sampling(Base):
    temperature: float = 1.0
    kind: Kind = Kind.SECOND
    limit: int = LIMIT
