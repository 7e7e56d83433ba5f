"""What an installed vLLM release makes of tensors on the wire.

    python tensors.py write > release.jsonl   requests with pooling or scoring parameters and outputs, as its encoder writes
                                              them: {"name", "frames": [hex, …]}
    python tensors.py read < frames.jsonl     what its decoder reads of the outputs in {"name", "frames"}
"""

import json
import os
import sys

OUT = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)  # a release logs to stdout

import numpy as np
import torch
from vllm.pooling_params import LateInteractionParams, PoolingParams
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder


def request(sampling=None, pooling=None):
    return EngineCoreRequest(
        request_id="a", prompt_token_ids=[1, 2, 3], mm_features=None, sampling_params=sampling, pooling_params=pooling,
        arrival_time=1.0, lora_request=None, cache_salt=None, data_parallel_rank=None,
    )


def output(**fields):
    return EngineCoreOutputs(
        outputs=[EngineCoreOutput(request_id="a", new_token_ids=[], finish_reason=FinishReason.STOP, **fields)], timestamp=1.5
    )


def pooling(**fields):
    p = PoolingParams(**fields)
    p.task = fields.get("task", p.task)
    return p


def write():
    cases = {
        "pooling embed": request(pooling=pooling(task="embed", dimensions=8)),
        "pooling raw": request(pooling=pooling(task="token_classify", use_activation=False)),
        "pooling cache": request(pooling=pooling(task="token_embed", late_interaction_params=LateInteractionParams("cache_query", "k", 3))),
        "pooling doc": request(pooling=pooling(task="token_embed", late_interaction_params=LateInteractionParams("score_doc", "k"))),
        "output embed": output(pooling_output=torch.tensor([0.5, -0.25, 1.0])),
        "output scalar": output(pooling_output=torch.tensor(0.75)),
        "output rows": output(pooling_output=torch.arange(80, dtype=torch.float32).reshape(2, 40)),
        "reads": request(SamplingParams()),
        "prompt logprobs": request(SamplingParams(prompt_logprobs=1)),
        "prompt logprobs read anyway": request(SamplingParams(prompt_logprobs=1, skip_reading_prefix_cache=False)),
        "skips": request(SamplingParams(skip_reading_prefix_cache=True)),
        "pooling skips": request(pooling=pooling(task="token_embed", skip_reading_prefix_cache=True)),
        "logprob ids": request(SamplingParams(logprob_token_ids=[7, 5])),
    }
    try:
        from vllm.pooling_params import LateChunkingParams

        cases["pooling chunks"] = request(pooling=pooling(task="token_embed", late_chunking_params=LateChunkingParams(4)))
    except ImportError:
        pass
    if hasattr(SamplingParams(), "prompt_logprob_token_ids"):
        cases["scores read anyway"] = request(
            SamplingParams(prompt_logprob_token_ids=np.array([[5]]), skip_reading_prefix_cache=False)
        )
        cases["scores inline"] = request(SamplingParams(prompt_logprob_token_ids=np.array([[5, 6], [7, -1]]), prompt_logprob_start=1))
        cases["scores aside"] = request(SamplingParams(prompt_logprob_token_ids=np.arange(64).reshape(2, 32)))
        cases["output scores"] = output(prompt_token_id_logprobs=torch.tensor([[-0.5, float("-inf")], [-1.0, -2.0]]))
    encoder = MsgpackEncoder()
    for name, case in cases.items():
        frames = [bytes(f).hex() for f in encoder.encode(case)]
        print(json.dumps({"name": name, "frames": frames}), file=OUT)


write()
OUT.flush()
