from typing import dataclass_transform

from pydantic import Field
from pydantic.dataclasses import dataclass


@dataclass_transform(field_specifiers=(Field,))
def config(cls=None, **kwargs):
    return dataclass(cls, **kwargs)
