import msgspec

from vllm.v1.engine import EngineCoreRequest, PauseMode
from vllm.v1.engine.core_client import FAULT_METHOD
from vllm.v1.serial_utils import MsgpackDecoder


class EngineCore:
    def sleep(self, level: int = 1, mode: "PauseMode" = "abort") -> None:
        pass


class EngineCoreProc(EngineCore):
    def is_sleeping(self) -> bool:
        return False

    def handshake(self, socket, dp):
        socket.send(msgspec.msgpack.encode({"status": "HELLO", "local": True}))
        ready = {"status": "READY", "local": True}
        if dp:
            ready["hash"] = "x"
        socket.send(msgspec.msgpack.encode(ready))

    def inputs(self, request):
        MsgpackDecoder(EngineCoreRequest)
        if request.method == FAULT_METHOD:
            return


class DPEngineCoreProc(EngineCoreProc):
    def sleep(self, level: int = 2) -> bool:
        return True

    def scale(self, n: int) -> str:
        return ""
