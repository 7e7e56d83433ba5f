import msgspec

from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.serial_utils import MsgpackDecoder

FAULT_METHOD = "handle_fault"


class Fault(msgspec.Struct):
    instruction: str


class Client:
    def __init__(self):
        self.decoder = MsgpackDecoder(EngineCoreOutputs)

    def call_utility(self, method: str, *args):
        self._call_utility(method, *args)

    def _call_utility(self, method, *args):
        self.encoder.encode((self.client_index, call_id, method, args))

    def sleep(self, level: int, mode: str):
        self.call_utility("sleep", level, mode)
        self.call_utility("sleep", level)

    def is_sleeping(self):
        return self.call_utility("is_sleeping")

    def scale(self, n):
        self.call_utility("scale", n)

    def fault(self, fault: Fault) -> bool:
        return self.call_utility(FAULT_METHOD, fault)

    def load(self, buf):
        counts, wave, running = msgspec.msgpack.decode(buf)
