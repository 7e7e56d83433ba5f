"""Print what imported structs and enums of vLLM say of themselves, as JSON.

Input: an object of names and modules, as paths. vLLM must be importable.
"""

import dataclasses
import enum
import importlib
import json
import sys


def struct(cls):
    if issubclass(cls, enum.Enum):
        return {"Fields": [f"{name}={value(m.value)}" for name, m in cls.__members__.items()]}
    if hasattr(cls, "__struct_config__"):
        config = cls.__struct_config__
        fields = cls.__struct_fields__
        optional = len(cls.__struct_defaults__)
        first = len(fields) - optional
        defaults = [True] * first + [is_nodefault(d) for d in cls.__struct_defaults__]
        return {
            "Array": config.array_like,
            "OmitDefaults": config.omit_defaults,
            "Tag": config.tag or "",
            "Fields": [f if required else f + "?" for f, required in zip(cls.__struct_encode_fields__, defaults)],
        }
    if dataclasses.is_dataclass(cls):
        missing = dataclasses.MISSING
        return {
            "Fields": [
                f.name if f.default is missing and f.default_factory is missing else f.name + "?"
                for f in dataclasses.fields(cls)
            ]
        }
    return {
        "Array": issubclass(cls, tuple),
        "Fields": [f + "?" if f in cls._field_defaults else f for f in cls._fields],
    }


def is_nodefault(default):
    return repr(default) == "NODEFAULT"


def value(v):
    return json.dumps("0x" + v.hex() if isinstance(v, bytes) else v)


structs = {}
for name, path in json.load(sys.stdin).items():
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    found = struct(getattr(importlib.import_module(module), name))
    if not found["Fields"]:
        found["Fields"] = None
    structs[name] = found
print(json.dumps(structs))
