"""The program of the wheel."""

import os
import sys
from pathlib import Path


def program() -> str:
    """Return the path of the program vllm-vcr: of $VLLM_VCR_PROGRAM, else that of the wheel."""
    if chosen := os.environ.get("VLLM_VCR_PROGRAM"):
        return chosen
    name = "vllm-vcr.exe" if sys.platform == "win32" else "vllm-vcr"
    own = Path(__file__).parent / "bin" / name
    if own.exists():
        return str(own)
    raise FileNotFoundError(
        f"there is no program {own}: install the wheel of this system (pip install vllm-vcr), "
        "or name a program in VLLM_VCR_PROGRAM"
    )
