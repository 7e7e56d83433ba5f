"""A vLLM server without a GPU or a model, for tests. See https://github.com/vllm-vcr/conformance/blob/main/docs/python.md."""

from vllm_vcr.program import program
from vllm_vcr.server import Request, Server, ServerError

__all__ = ["Request", "Server", "ServerError", "program"]
