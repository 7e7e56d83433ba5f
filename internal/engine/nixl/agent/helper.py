"""One NIXL agent for vllm-vcr, which starts this program.

    helper.py NAME BYTES
        descriptor 3: the file that is the region of memory, of so many bytes
        descriptor 4: messages to this program; descriptor 5: messages from it

A message is its length in 4 bytes, big-endian, and JSON. The first from here is {"ready": {metadata, base}} or {"failed": why}. Then
{"id", "do", …} is answered by {"id", …} or {"id", "error"}, and {"notification": {peer, text}} comes by itself.

NIXL's own progress thread would use a whole processor while nothing happens. Here one thread does everything: it looks all the time
while a read is open, each millisecond for a second after that, then every ten.
"""

import base64
import ctypes
import importlib
import json
import mmap
import os
import select
import struct
import sys
import time

MEMORY, INBOX, OUTBOX = 3, 4, 5


class Failed(Exception):
    pass


def send(message):
    text = json.dumps(message).encode()
    text = struct.pack(">I", len(text)) + text
    while text:
        text = text[os.write(OUTBOX, text) :]


def receive():
    def exactly(n):
        got = b""
        while len(got) < n:
            part = os.read(INBOX, n - len(got))
            if not part:
                raise EOFError
            got += part
        return got

    return json.loads(exactly(*struct.unpack(">I", exactly(4))))


def load():
    """The wheel's module. vLLM takes the flavour of its PyTorch; for memory of the CPU any does."""
    wrong = []
    for flavour in ("cu13", "cu12", "rocm"):
        try:
            return importlib.import_module(f"nixl_{flavour}._api")
        except ModuleNotFoundError as e:
            if e.name != f"nixl_{flavour}":
                wrong.append(f"nixl-{flavour} lacks the package {e.name}")
        except ImportError as e:
            wrong.append(f"nixl-{flavour} is of another CUDA flavour than this machine: {e}")
    raise Failed("; ".join(wrong) or f"{sys.executable} has no nixl")


class Agent:
    def __init__(self, name, length):
        api = load()
        config = api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        try:
            self.nixl = api.nixl_agent(name, config)
        except Exception as e:
            settings = {k: v for k, v in sorted(os.environ.items()) if k in ("UCX_TLS", "UCX_NET_DEVICES")}
            raise Failed(f"UCX has no transport that works here, with {settings or 'no setting of UCX_TLS'}: {e}") from e
        if "UCX" not in self.nixl.backends:
            raise Failed(f"NIXL has no backend UCX, only {self.nixl.plugin_list}")
        self.map = mmap.mmap(MEMORY, length)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.nixl.register_memory([(self.base, length, 0, "")], mem_type="DRAM")
        self.reads = {}  # by the id of the message: the handle
        self.pause = 0  # between two looks, in seconds
        self.dies = False  # when a peer sends something, which is then the request of a read
        self.busy = time.monotonic()

    def connect(self, m):
        name = self.nixl.add_remote_agent(base64.b64decode(m["metadata"]))
        return {"peer": name.decode() if isinstance(name, bytes) else name}

    def read(self, m):
        remote = self.nixl.get_xfer_descs([(address, size, device) for address, device, _, size in m["blocks"]], mem_type="DRAM")
        local = self.nixl.get_xfer_descs([(self.base + offset, size, 0) for _, _, offset, size in m["blocks"]], mem_type="DRAM")
        handle = self.nixl.initialize_xfer("READ", local, remote, m["peer"], m["notify"].encode())
        self.reads[m["id"]] = handle
        if self.nixl.transfer(handle) == "PROC" and m.get("die"):
            os._exit(0)

    def misbehave(self, m):
        self.pause, self.dies = m["pause"], m["die"]
        return {}

    def requested(self):
        """Whether a peer has sent something that NIXL has not seen."""
        connections = []
        for fd in map(int, os.listdir("/proc/self/fd")):
            try:
                if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                    connections.append(fd)
            except OSError:
                continue  # that of the list
        return select.select(connections, [], [], 0)[0]

    def notify(self, m):
        self.nixl.send_notif(m["peer"], m["notify"].encode())
        return {}

    def cancel(self, m):
        handle = self.reads.pop(m["read"], None)
        if handle:
            self.nixl.release_xfer_handle(handle)
        return {}

    def take(self, m):
        try:
            answer = getattr(self, m["do"])(m)
        except Exception as e:
            self.reads.pop(m["id"], None)
            answer = {"error": reason(e)}
        if answer is not None:
            send({"id": m["id"], **answer})

    def look(self):
        for number, handle in list(self.reads.items()):
            try:
                state = self.nixl.check_xfer_state(handle)
            except Exception as e:
                state = reason(e)
            if state == "PROC":
                continue
            del self.reads[number]
            send({"id": number} if state == "DONE" else {"id": number, "error": "the transfer failed" if state == "ERR" else state})
            try:
                self.nixl.release_xfer_handle(handle)
            except Exception as e:
                print("release:", reason(e), file=sys.stderr)
        for peer, texts in self.nixl.get_new_notifs().items():
            self.busy = time.monotonic()
            for text in texts:
                send({"notification": {"peer": peer, "text": text.decode(errors="replace")}})

    def serve(self):
        send({"ready": {"metadata": base64.b64encode(self.nixl.get_agent_metadata()).decode(), "base": self.base}})
        while True:
            wait = 0 if self.reads else 0.001 if time.monotonic() - self.busy < 1 else 0.01
            if select.select([INBOX], [], [], wait)[0]:
                self.busy = time.monotonic()
                self.take(receive())
            if not self.dies:
                time.sleep(self.pause)
                self.look()
            elif self.requested():
                os._exit(0)


def reason(e):
    name = str(e) or type(e).__name__
    known = {
        "NIXL_ERR_REMOTE_DISCONNECT": "the peer is gone",
        "NIXL_ERR_NOT_FOUND": "the peer has no such memory, or is not connected",
        "NIXL_ERR_INVALID_PARAM": "the blocks are not those of the region or the peer",
    }
    return f"{known[name]} ({name})" if name in known else name


try:
    Agent(sys.argv[1], int(sys.argv[2])).serve()
except Failed as e:
    send({"failed": str(e)})
except EOFError:  # vllm-vcr has ended
    os._exit(0)
