"""The command vllm-vcr, and python -m vllm_vcr."""

import os
import subprocess
import sys

from vllm_vcr.program import program


def main() -> int:
    """Run the program with the arguments of this process, and return its exit code."""
    try:
        command = [program(), *sys.argv[1:]]
    except FileNotFoundError as error:
        print(f"vllm-vcr: {error}", file=sys.stderr)
        return 3
    if sys.platform != "win32":
        os.execv(command[0], command)  # noqa: S606 - the program takes the place of this process, and gets its signals
    with subprocess.Popen(command) as child:
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:  # Windows sends it to both
                continue


if __name__ == "__main__":
    sys.exit(main())
