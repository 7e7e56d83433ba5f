"""Drive the scheduler of an installed vLLM with seeded requests and print what each step does, a line of JSON each.

    PYTHON scheduler.py MODEL > testdata/schedules.jsonl
"""
import json, os, random, sys
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig, LoRAConfig, DeviceConfig
from vllm.sampling_params import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

MODEL = sys.argv[1]
init_none_hash(sha256)

def scheduler(c):
    sched = SchedulerConfig(
        max_num_seqs=c["max_num_seqs"], max_num_batched_tokens=c["max_num_batched_tokens"],
        max_model_len=c["max_model_len"], enable_chunked_prefill=not c["no_chunks"], async_scheduling=False,
        policy="priority" if c["priority"] else "fcfs", long_prefill_token_threshold=c["threshold"],
        scheduler_reserve_full_isl=not c["partly"], is_encoder_decoder=False, watermark=c["watermark"],
    )
    model = ModelConfig(model=MODEL, tokenizer=MODEL, skip_tokenizer_init=True, dtype="float32", max_model_len=c["max_model_len"])
    cache = CacheConfig(block_size=c["block_size"], gpu_memory_utilization=0.9, enable_prefix_caching=c["caching"])
    cache.num_gpu_blocks = c["blocks"]
    lora = LoRAConfig(max_lora_rank=8, max_loras=c["max_loras"]) if c["max_loras"] else None
    config = VllmConfig(scheduler_config=sched, model_config=model, cache_config=cache, lora_config=lora, device_config=DeviceConfig("cpu"))
    kv = KVCacheConfig(num_blocks=c["blocks"], kv_cache_tensors=[], kv_cache_groups=[
        KVCacheGroupSpec(["layer"], FullAttentionSpec(block_size=c["block_size"], num_kv_heads=1, head_size=1, dtype=torch.float32))])
    return Scheduler(vllm_config=config, kv_cache_config=kv, log_stats=True, block_size=c["block_size"],
                     structured_output_manager=StructuredOutputManager(config))

def run(seed):
    rng = random.Random(seed)
    block = rng.choice([4, 16])
    c = {"block_size": block, "blocks": rng.choice([12, 24, 60, 400]) , "max_num_seqs": rng.choice([2, 4, 16]),
         "max_num_batched_tokens": 0, "max_model_len": block * 8, "no_chunks": False, "priority": rng.random() < .4,
         "threshold": rng.choice([0, 0, 5, 20]), "partly": rng.random() < .4, "caching": rng.random() < .8,
         "watermark": rng.choice([0, 0, 0.1]), "max_loras": rng.choice([0, 0, 1, 2])}
    c["max_num_batched_tokens"] = max(rng.choice([7, 32, 100, 400]), c["max_num_seqs"])
    if rng.random() < .15:
        c["no_chunks"], c["max_num_batched_tokens"], c["threshold"] = True, max(400, c["max_model_len"]), 0
    s = scheduler(c)
    hasher = get_request_block_hasher(block, sha256) if c["caching"] else None
    steps, alive, made = [], {}, 0
    for number in range(60):
        step = {}
        adds = []
        for _ in range(rng.choice([0, 0, 1, 1, 2, 5]) if number < 45 else 0):
            n = rng.randrange(1, block * 7)
            prefix, shared = rng.randrange(2), min(rng.randrange(0, n + 1), block * 6)
            # Who reads this makes the same tokens.
            prompt = [1000 * prefix + i for i in range(shared)] + [1000 * (100 + made) + i for i in range(shared, n)]
            name, out = str(made), rng.randrange(1, max(2, min(block * 8 - n, block * 3)))
            priority = rng.randrange(3) if c["priority"] else 0
            lora = rng.randrange(4) if c["max_loras"] else 0
            params = SamplingParams(max_tokens=out, ignore_eos=True)
            if rng.random() < .05:
                params = SamplingParams(max_tokens=out, ignore_eos=True, prompt_logprobs=1)
            r = Request(request_id=name, prompt_token_ids=prompt, sampling_params=params, pooling_params=None,
                        arrival_time=float(made), priority=priority, block_hasher=hasher,
                        lora_request=LoRARequest("l%d" % lora, lora, "/p") if lora else None)
            adds.append([made, prefix, shared, n, out, priority, lora, int(params.prompt_logprobs is not None)])
            alive[name] = r
            s.add_request(r)
            made += 1
        if adds: step["add"] = adds
        if alive and rng.random() < .15:
            gone = rng.sample(sorted(alive), min(len(alive), rng.randrange(1, 3)))
            s.finish_requests(gone, RequestStatus.FINISHED_ABORTED)
            for g in gone: del alive[g]
            step["abort"] = [int(k) for k in gone]
        if rng.random() < .03:
            step["reset"] = s.reset_prefix_cache(reset_running_requests=True)
        out = s.schedule()
        share = out.num_scheduled_tokens
        step["share"] = [[int(k), n] for k, n in share.items()]
        preempted = sorted(out.preempted_req_ids or [])
        if preempted and "reset" not in step: step["preempted"] = [int(k) for k in preempted]
        # tokens of requests whose prompt is complete
        ids = list(share)
        tokens = []
        said = []
        for k in ids:
            r = s.requests[k]
            if r.num_computed_tokens >= r.num_tokens:
                t = 1000 * (100 + int(k)) + r.num_tokens
                tokens.append([t]); said.append(k)
            else:
                tokens.append([])
        runner = ModelRunnerOutput(req_ids=ids, req_id_to_index={k: i for i, k in enumerate(ids)}, sampled_token_ids=tokens,
                                   logprobs=None, prompt_logprobs_dict={}, pooler_output=[])
        outputs = s.update_from_output(out, runner)
        if said: step["said"] = [int(k) for k in said]
        ended = [o.request_id for e in outputs.values() for o in e.outputs if o.finish_reason is not None]
        for k in ended: del alive[k]
        if ended: step["ended"] = [int(k) for k in ended]
        st = None
        for e in outputs.values():
            if e.scheduler_stats is not None: st = e.scheduler_stats
        if st is None: st = s.make_stats()
        pc = st.prefix_cache_stats
        step["stats"] = [st.num_running_reqs, st.num_waiting_reqs, st.num_skipped_waiting_reqs, round(st.kv_cache_usage, 9),
                         pc.requests, pc.queries, pc.hits, pc.preempted_requests, pc.preempted_queries, pc.preempted_hits]
        steps.append(step)
    return {"seed": seed, "options": c, "steps": steps}

if __name__ == "__main__":
    for seed in range(int(sys.argv[2]), int(sys.argv[3])):
        print(json.dumps(run(seed), separators=(",", ":")))
