"""Reads pairs of structs A and B, makes them with msgspec, and says whether readers of A understand what B writes, and
readers of B what A writes: a message decodes, and what both have has the same value."""

import collections
import itertools
import json
import sys
import typing

import msgspec

VALUES = {"str": ["x"], "bool": [True], "None": [None], "list[int]": [[1]], "set[int]": [{1}]}
MISSING = object()


def values(field):
    """Values of each type that a field may have; numbers are other ones in each field."""
    numbers = {"int": [ord(field["name"])], "Optional[int]": [ord(field["name"]), None]}
    return list(itertools.chain.from_iterable((VALUES | numbers)[t] for t in field["type"].split("|")))


def make(spec):
    """spec is a struct as a wire profile has it."""
    if spec.get("exact"):
        fields = {f["name"]: eval(f["type"], vars(typing)) for f in spec["fields"]}
        defaults = {f["name"]: f.get("default") for f in spec["fields"] if not f.get("required")}
        return named(fields, defaults)
    fields = []
    for f in spec["fields"]:
        t = eval(f["type"], vars(typing))
        fields.append((f["name"], t) if f.get("required") else (f["name"], t, f.get("default")))
    return msgspec.defstruct(
        "X", fields, array_like=spec["encoding"] == "array", omit_defaults=spec["omit_defaults"], tag=spec.get("tag"), kw_only=True)


def named(fields, defaults):
    made = collections.namedtuple("X", fields, defaults=list(defaults.values()))
    made.__annotations__ = fields
    return made


def plain(v):
    return sorted(v) if isinstance(v, (set, list)) else v


def understands(reader, read, writer, written):
    """Whether all that the writer may write is understood."""
    choices = [values(f) + ([] if f.get("required") else [MISSING]) for f in written["fields"]]
    for choice in itertools.product(*choices):
        given = {f["name"]: v for f, v in zip(written["fields"], choice) if v is not MISSING}
        made = writer(**given)
        try:
            got = msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=reader)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return False
        for f in read["fields"]:
            if hasattr(made, f["name"]) and plain(getattr(got, f["name"])) != plain(getattr(made, f["name"])):
                return False
    return True


for case in json.load(sys.stdin):
    a, b = make(case["a"]), make(case["b"])
    print(json.dumps({
        "readers": not understands(a, case["a"], b, case["b"]), "writers": not understands(b, case["b"], a, case["a"]),
    }))
