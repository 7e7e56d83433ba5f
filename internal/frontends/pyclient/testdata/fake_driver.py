"""Stands for an interpreter with a driver that is not in order. The model of the plan says how."""

import json
import sys
import time

plan = json.loads(sys.stdin.readline())
case = plan["sessions"][0]["cases"][0]["name"]


def tell(**message):
    print(json.dumps(message), flush=True)


tell(event="ready", version="9.9.9")
what = plan["model"]
if what == "garbage":
    print("::error::I am garbage \x1b[31m", flush=True)
elif what == "dies":
    tell(event="case", case=case)
    print("Segmentation fault", file=sys.stderr)
    sys.exit(3)
elif what == "hangs":
    tell(event="case", case=case)
    print("I wait", file=sys.stderr, flush=True)
    time.sleep(1000)
elif what == "result of nothing":
    tell(event="result", case="async/party", ok=True)
elif what == "no values":
    tell(event="case", case=case)
    tell(event="result", case=case, ok=True)
    tell(event="unusable", message="I am\n::error::tired")
elif what == "endless line":
    sys.stdout.write("x" * (9 << 20))
sys.stdin.read()
time.sleep(1000)
