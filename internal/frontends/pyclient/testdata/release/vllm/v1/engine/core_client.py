import asyncio
import socket

from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, Logprobs, SchedulerStats, Table
from vllm.v1.engine.exceptions import EngineDeadError


def says(request_id, position):
    return (sum(request_id.encode()) + 7 * position) % 2000


class EngineCoreClient:
    def pause_generation(self, mode, clear_cache):
        raise NotImplementedError

    async def pause_generation_async(self, mode, clear_cache):
        raise NotImplementedError


class Request:
    """A request at work."""

    def __init__(self, request):
        self.id, self.prompt, self.params, self.said = request.request_id, request.prompt_token_ids, request.sampling_params, 0
        self.ended = False

    def step(self):
        token = says(self.id, self.said)
        out = EngineCoreOutput(self.id, [token])
        if self.params.logprobs is not None:
            ids = [token + i for i in range(self.params.logprobs + 1)]
            out.new_logprobs = Logprobs(Table([ids]), Table([[-0.5] * len(ids)]))
        if self.said == 0 and self.params.prompt_logprobs is not None:
            rows = [[t + i for i in range(self.params.prompt_logprobs + 1)] for t in self.prompt[1:]]
            out.new_prompt_logprobs_tensors = Logprobs(Table(rows), Table())
        self.said += 1
        if token in (self.params.stop_token_ids or ()):
            out.finish_reason, out.stop_reason = "stop", token
        elif self.said == self.params.max_tokens:
            out.finish_reason = "length"
        self.ended = out.finish_reason is not None
        return out


class SyncMPClient(EngineCoreClient):
    def __init__(self, config, executor_class, log_stats):
        with socket.create_server(("127.0.0.1", config.port)) as listener:
            self.engine, _ = listener.accept()
        config.model_config.max_model_len = min(config.model_config.max_model_len, 2048)
        config.cache_config.num_gpu_blocks = 101
        config.cache_config.block_size = 32
        self.requests, self.loras = [], set()
        self.paused = self.asleep = self.dead = False
        self.version = "default"

    def shutdown(self):
        self.engine.close()

    def add_request(self, request):
        if self.dead:
            raise EngineDeadError
        self.requests.append(Request(request))
        if request.lora_request is not None:
            self.loras.add(request.lora_request.lora_int_id)

    def abort_requests(self, ids):
        self.requests = [r for r in self.requests if r.id not in ids]

    def get_output(self):
        if not self.requests or self.paused:
            self.engine.recv(1)
            self.dead = True
            raise EngineDeadError
        stats = SchedulerStats(len(self.requests))
        outputs = [r.step() for r in self.requests[:]]
        self.requests = [r for r in self.requests if not r.ended]
        return EngineCoreOutputs(outputs, stats)

    def get_supported_tasks(self):
        return ("generate",)

    def reset_mm_cache(self):
        pass

    def reset_encoder_cache(self):
        pass

    def reset_prefix_cache(self, running, connector):
        return not self.requests

    def profile(self, is_start):
        pass

    def collective_rpc(self, method):
        return [None]

    def is_sleeping(self):
        return self.asleep

    def sleep(self, level, mode):
        self.asleep = True

    def wake_up(self, tags):
        self.asleep = False

    def add_lora(self, lora):
        self.loras.add(lora.lora_int_id)
        return True

    def pin_lora(self, lora):
        return lora in self.loras

    def remove_lora(self, lora):
        known = lora in self.loras
        self.loras.discard(lora)
        return known

    def list_loras(self):
        return set(self.loras)

    def set_weight_version(self, version):
        self.version = version

    def get_weight_version(self):
        return self.version


class AsyncMPClient(SyncMPClient):
    async def pause_scheduler_async(self, mode, clear_cache):
        self.paused = True

    async def resume_scheduler_async(self):
        self.paused = False

    async def is_scheduler_paused_async(self):
        return self.paused

    async def get_output_async(self):
        return await asyncio.to_thread(self.get_output)


def also_async(name):
    async def method(self, *arguments):
        return getattr(self, name)(*arguments)

    return method


for name in [n for n in vars(SyncMPClient) if not n.startswith("_") and n not in ("get_output", "shutdown")]:
    setattr(AsyncMPClient, name + "_async", also_async(name))
