"""Asks an installed vLLM what its KV cache does, for the tests of this package.

    python vectors.py OUT.jsonl.gz

Run it with the Python of an engine that .ci/peers installed. The package xxhash, which vLLM does not bring, has to be
importable: `pip install --target DIR xxhash==4.1.0` and PYTHONPATH=DIR.

Each line is an array. ["case", {...}] begins a case: the pool's options. What follows are operations of a seeded random
client of vLLM's KVCacheManager, with what came of them:

    ["new", id, prompt, {...}]         a sequence; a prompt is [family, shared, own, length], see `token`
    ["look", id, cached]               get_computed_blocks
    ["admit", id, computed, n, lookahead, whole, reserve, watermark, delay, block ids or null]
    ["grow", id, computed, n, lookahead, new block ids or null]
    ["say", id, n]                     n tokens are appended: token(own, position)
    ["store", id, computed]            what was delayed is there now
    ["free", id]
    ["reset", ok]

and after each of the operations, what can be seen: ["is", free blocks, events]. Hashes are in the integer form there, in
hex. Whole hashes: ["hash", algorithm, seed, block size, prompt, {...}, tokens said one by one, [hex, ...]].
"""

import gzip
import io
import json
import os
import random
import sys

os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
os.environ["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"] = "1"

import torch
import vllm
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request, RequestStatus

LENGTH = 500  # operations a case


def token(source, position):
    """Tokens of all sizes that matter: below 24, 256, 65536, 2^31 and above."""
    n = (source * 2654435761 + position * 40503 + 12345) % 2**32
    return n >> (n % 29)


def tokens(prompt):
    family, shared, own, length = prompt
    return [token(family if i < shared else own, i) for i in range(length)]


def text(s):
    """A string of its own: strings off the wire are never the same object."""
    return "".join(list(s)) if s else s


class Case:
    def __init__(self, out, options):
        self.out, self.options = out, options
        self.rng = random.Random(options["name"])
        self.hasher = block_hasher(options["algorithm"], options["seed"], options["block_size"])
        spec = FullAttentionSpec(block_size=options["block_size"], num_kv_heads=1, head_size=1, dtype=torch.float32)
        self.manager = KVCacheManager(
            KVCacheConfig(options["blocks"], [], [KVCacheGroupSpec(["layer"], spec)]),
            max_model_len=options["max_model_len"],
            scheduler_block_size=options["block_size"],
            hash_block_size=options["block_size"],
            enable_caching=options["caching"],
            enable_kv_cache_events=True,
            watermark=options["watermark"],
        )
        self.waiting, self.running, self.pulling, self.count = [], [], [], 0

    def run(self):
        self.write("case", self.options)
        for _ in range(LENGTH):
            self.operation()
        for list_ in (self.pulling, self.running):
            while list_:
                self.free(list_, 0)
        self.reset()

    def write(self, *line):
        self.out.write(json.dumps(line, separators=(",", ":")) + "\n")

    def seen(self):
        self.write("is", self.manager.block_pool.get_num_free_blocks(), [event(e) for e in self.manager.take_events()])

    def operation(self):
        choice = self.rng.random()
        if choice < 0.02:
            self.reset()
        elif choice < 0.14 and self.running:
            self.free(self.running, self.rng.randrange(len(self.running)))
        elif choice < 0.16 and self.running:
            self.preempt()
        elif choice < 0.22 and self.pulling:
            self.pulled()
        elif choice < 0.45 and (self.waiting or self.count < 200):
            if not self.waiting:
                self.waiting.append(self.new())
            self.admit()
        elif self.running:
            self.grow()

    def new(self):
        rng, size = self.rng, self.options["block_size"]
        self.count += 1
        length = rng.choice([1, size - 1, size, size + 1, rng.randrange(1, 12 * size), 3 * size, 3 * size, rng.choice([3 * size, 10**6])])
        capacity = (self.options["blocks"] - 1) * size
        length = min(max(length, 1), capacity, self.options["max_model_len"] - rng.choice([1, 3, 8]))
        prompt = [rng.randrange(2), rng.choice([0, size, 4 * size, 10**6, 10**6, rng.randrange(4 * size)]), 100 + self.count, length]
        extra = self.extra(length)
        r = request(str(self.count), prompt, extra, self.hasher)
        r.prompt = prompt
        r.skip_reading_prefix_cache = extra.get("uncached", False)
        self.write("new", self.count, prompt, extra)
        self.seen()
        return r

    def extra(self, length):
        rng, extra = self.rng, {}
        if rng.random() < 0.1:
            n = rng.randrange(1, 3)
            extra["lora"] = [n, f"adapter-{n}", f"/adapters/{n}"]
        if rng.random() < 0.1:
            extra["salt"] = rng.choice(["s", "pepper", "ü" * 200])
        if rng.random() < 0.2:
            extra["uncached"] = True
        if rng.random() < 0.25:
            extra["features"], at = [], rng.choice([0, rng.randrange(length), length // 2])
            for _ in range(rng.randrange(1, 5)):
                at += rng.randrange(4)
                n = rng.choice([1, 2, rng.randrange(1, 2 * self.options["block_size"])])
                if at + n > length:
                    break
                extra["features"].append([f"image-{rng.randrange(3)}", at, n])
                at += n
        return extra

    def admit(self):
        rng, m = self.rng, self.manager
        r = self.waiting.pop(rng.randrange(len(self.waiting)))
        blocks, cached, *_ = m.get_computed_blocks(r)
        self.write("look", int(r.request_id), cached)
        self.seen()
        external, delay, n = 0, False, 0
        if rng.random() < 0.15 and r.num_tokens - 1 > cached:
            external = rng.randrange(1, r.num_tokens - cached)
            delay = rng.random() < 0.7
        if not delay:
            n = rng.choice([r.num_tokens - cached - external, rng.randrange(1, r.num_tokens - cached - external + 1)])
        lookahead, whole = rng.choice([0, 0, 0, 3]), rng.random() < 0.5
        reserve, others = rng.choice([0, 0, 2]), rng.random() < 0.7
        got = m.allocate_slots(
            r, n, cached, blocks, num_lookahead_tokens=lookahead, num_external_computed_tokens=external,
            delay_cache_blocks=delay, full_sequence_must_fit=whole, reserved_blocks=reserve, has_scheduled_reqs=others,
        )
        ids = None if got is None else m.get_block_ids(r.request_id)[0]
        watermark = m.watermark_blocks if others else 0
        self.write("admit", int(r.request_id), cached + external, n, lookahead, whole, reserve, watermark, delay, ids)
        self.seen()
        if got is None:
            self.waiting.append(r)
            return
        r.num_computed_tokens = cached + external + n
        r.status = RequestStatus.RUNNING
        (self.pulling if delay else self.running).append(r)

    def pulled(self):
        r = self.pulling.pop(self.rng.randrange(len(self.pulling)))
        self.manager.cache_blocks(r, r.num_computed_tokens)
        self.write("store", int(r.request_id), r.num_computed_tokens)
        self.seen()
        self.running.append(r)

    def grow(self):
        rng, m = self.rng, self.manager
        i = rng.randrange(len(self.running))
        r = self.running[i]
        drafts = 0
        if r.num_computed_tokens >= r.num_tokens:
            said = rng.choice([1, 1, 1, 2, 4])
            if r.num_tokens + said >= self.options["max_model_len"]:
                self.free(self.running, i)
                return
            r.append_output_token_ids([token(r.prompt[2], r.num_tokens + j) for j in range(said)])
            self.write("say", int(r.request_id), said)
            drafts = rng.choice([0, 0, 2])
        missing = r.num_tokens - r.num_computed_tokens
        n = rng.choice([missing + drafts, rng.randrange(1, missing + 1)])
        n = min(n, self.options["max_model_len"] - r.num_computed_tokens)
        lookahead = rng.choice([0, 0, 0, 5])
        before = len(m.get_block_ids(r.request_id)[0])
        got = m.allocate_slots(r, n, num_lookahead_tokens=lookahead)
        ids = None if got is None else m.get_block_ids(r.request_id)[0][before:]
        self.write("grow", int(r.request_id), r.num_computed_tokens, n, lookahead, ids)
        self.seen()
        if got is None:
            self.preempt()
        else:
            r.num_computed_tokens = min(r.num_computed_tokens + n, r.num_tokens)

    def preempt(self):
        r = self.free(self.running, self.rng.randrange(len(self.running)))
        r.num_computed_tokens, r.status = 0, RequestStatus.PREEMPTED
        self.waiting.append(r)

    def free(self, list_, i):
        r = list_.pop(i)
        self.manager.free(r)
        self.write("free", int(r.request_id))
        self.seen()
        return r

    def reset(self):
        self.write("reset", self.manager.reset_prefix_cache())
        self.seen()


def block_hasher(algorithm, seed, size):
    os.environ.pop("PYTHONHASHSEED", None)
    if seed:
        os.environ["PYTHONHASHSEED"] = seed
    hash_function = get_hash_fn_by_name(algorithm)
    init_none_hash(hash_function)
    return get_request_block_hasher(size, hash_function)


def request(name, prompt, extra, hasher):
    lora = extra.get("lora")
    return Request(
        request_id=name,
        prompt_token_ids=tokens(prompt),
        sampling_params=SamplingParams(max_tokens=10**6),
        pooling_params=None,
        lora_request=LoRARequest(text(lora[1]), lora[0], text(lora[2])) if lora else None,
        cache_salt=text(extra.get("salt")),
        mm_features=[
            MultiModalFeatureSpec(
                data=None, modality="image", identifier=text(f[0]), mm_position=PlaceholderRange(offset=f[1], length=f[2])
            )
            for f in extra.get("features", [])
        ],
        block_hasher=hasher,
    )


def form(hash):
    return f"{hash:016x}"


def event(e):
    kind = type(e).__name__
    if kind == "BlockStored":
        assert e.group_idx == 0 and len(e.extra_keys) == len(e.block_hashes)
        parent = None if e.parent_block_hash is None else form(e.parent_block_hash)
        adapter = [e.lora_id, e.lora_name]
        return [kind, [form(h) for h in e.block_hashes], parent, sum(e.token_ids), len(e.token_ids), adapter, e.extra_keys]
    if kind == "BlockRemoved":
        (hash,) = e.block_hashes
        return [kind, form(hash)]
    return [kind]


def cases():
    rng = random.Random(1)
    for i, algorithm in enumerate(["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"] * 3):
        yield {
            "name": f"{i}-{algorithm}",
            "algorithm": algorithm,
            "seed": rng.choice(["0", "42", "random"]),
            "blocks": rng.choice([16, 32, 64, 128]),
            "block_size": (size := rng.choice([4, 16])),
            "caching": i % 6 != 5,
            "max_model_len": rng.choice([6, 20]) * size if i % 2 else 1000,
            "watermark": rng.choice([0.0, 0.1]),
        }


def hashes(out):
    fixed = hasattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED")
    extras = [
        {},
        {"lora": [7, "adapter-7", "/adapters/7"]},
        {"salt": "pepper"},
        {"lora": [7, "é" * 127 + "x", "/" * 255], "salt": "y" * 256},
        {"features": [["image", 0, 3], ["image", 3, 40], ["sound", 43, 2]]},
        {"features": [["i%d" % i, i, 1] for i in range(100)]},
        {"lora": [7, "ä" * 200, "/" + "x" * 300], "salt": "€" * 100, "features": [["image", 5, 1]]},
    ]
    # Two features end in the block that is not full yet.
    tail = {"features": [["image", 0, 33], ["sound", 33, 2], ["film", 36, 2]]}
    for algorithm in ["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"]:
        for seed in ["0", "x" * 300] + ([""] if fixed and algorithm.startswith("sha") else []):
            for size in [1, 2, 3, 4, 16, 256]:
                for extra in extras:
                    prompt = [5, 0, 6, 3 * size + 1 if size < 256 else 256]
                    hash_line(out, algorithm, seed, size, prompt, extra, 0)
        hash_line(out, algorithm, "0", 16, [5, 0, 6, 40], tail, 30)


def hash_line(out, algorithm, seed, size, prompt, extra, said):
    r = request("r", prompt, extra, block_hasher(algorithm, seed, size))
    for _ in range(said):
        r.append_output_token_ids(token(prompt[2], r.num_tokens))
    line = ["hash", algorithm, seed, size, prompt, extra, said, [h.hex() for h in r.block_hashes]]
    out.write(json.dumps(line, separators=(",", ":")) + "\n")


def main():
    with open(sys.argv[1], "wb") as raw, gzip.GzipFile("", "wb", 9, raw, 0) as packed:
        out = io.TextIOWrapper(packed)
        out.write(json.dumps(["vllm", vllm.__version__]) + "\n")
        hashes(out)
        for options in cases():
            Case(out, options).run()
        out.flush()
        out.detach()


main()
