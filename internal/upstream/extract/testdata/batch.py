"""Read several releases in one process: their files are in a list of objects on stdin, the results in one on stdout."""

import json
import sys

script, releases = json.load(sys.stdin)
namespace = {"__name__": "extract"}
exec(compile(script, "extract.py", "exec"), namespace)
results = []
for files in releases:
    read = lambda paths: {path: files[path].encode("utf-8", "surrogateescape") for path in paths if path in files}
    try:
        results.append(namespace["Extractor"](read).run())
    except namespace["Failure"] as failure:
        results.append({"error": str(failure)})
json.dump(results, sys.stdout)
