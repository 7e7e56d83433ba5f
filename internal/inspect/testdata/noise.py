"""Tell how the speed of the machine changed within recordings: the median of steps in which so many requests
decode and no prompt is computed, in each five seconds that have fifty of them.

    python3 noise.py 4 */long-nocache-*.jsonl.gz
"""

import collections
import gzip
import json
import statistics
import sys

WINDOW = 5000  # ms
LEAST = 50  # steps of a window
SAME = 0.05  # ms: outputs of one step are at one time, but for how their times are rounded


def outputs(path):
    """Yield the time of every output and the gap before it, None for a first one, in ms."""
    with gzip.open(path, "rt") as lines:
        for record in map(json.loads, lines):
            if record.get("arrival_ms") is None:
                continue
            at = record["arrival_ms"] + record["ttft_ms"]
            yield at, None
            for gap in record["itl_ms"]:
                at += gap
                yield at, gap


def steps(path):
    """Yield the time of every step and the gaps before its outputs."""
    at, gaps = None, []
    for time, gap in sorted(outputs(path), key=lambda output: output[0]):
        if at is not None and time - at >= SAME:
            yield at, gaps
            gaps = []
        if not gaps:
            at = time
        gaps.append(gap)
    yield at, gaps


def main(requests, *paths):
    for path in paths:
        # Gaps of more than twice the median are those of steps with a piece of a prompt.
        slow = 2 * statistics.median(gap for _, gap in outputs(path) if gap is not None)
        windows = collections.defaultdict(list)
        for at, gaps in steps(path):
            if len(gaps) == int(requests) and None not in gaps and max(gaps) <= slow:
                windows[int(at / WINDOW)].append(max(gaps))
        medians = [statistics.median(window) for window in windows.values() if len(window) >= LEAST]
        if medians:
            print(f"{path}: {len(medians)} times five seconds, {min(medians):.2f} to {max(medians):.2f} ms, "
                  f"{statistics.median(medians):.2f} in the middle")


if __name__ == "__main__":
    main(*sys.argv[1:])
