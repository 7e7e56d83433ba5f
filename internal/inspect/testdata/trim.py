"""Keep of recordings what times are learned from: everything but the tokens.

    python3 trim.py .cache/goldens/0.33/sweep128-s1/trace.jsonl.gz sweep128-s1.jsonl.gz
"""

import gzip
import io
import json
import sys


def main(source, target):
    out = io.BytesIO()
    # No name and no time in the header: the same recording makes the same file.
    with gzip.open(source, "rt") as lines, gzip.GzipFile("", "wb", 9, out, 0) as trimmed:
        for line in lines:
            record = json.loads(line)
            for key in ("prompt_token_ids", "output_token_ids"):
                record.pop(key, None)
            trimmed.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
    with open(target, "wb") as file:
        file.write(out.getvalue())


if __name__ == "__main__":
    main(*sys.argv[1:])
