"""A plugin of vLLM: each step of the engine takes as long as PACE says, so that a recording shows the scheduler and not the
machine. It has to be in the site-packages of the engine, together with paced-1.0.dist-info/entry_points.txt:

    [vllm.general_plugins]
    paced = paced:register

A machine that computes a step faster waits. One that is slower makes a recording that is of no use.
"""

import time

# Seconds of a step, and more for each request, each token of a prompt, and each token before those that are computed.
PACE = {"step": 0.018, "request": 0.0006, "prompt": 0.00008, "context": 0.000001}


def register():
    from vllm.v1.worker.gpu_worker import Worker

    compute = Worker.execute_model

    def execute_model(self, scheduled, *args, **kwargs):
        started = time.monotonic()
        result = compute(self, scheduled, *args, **kwargs)
        tokens = scheduled.num_scheduled_tokens
        if not tokens:
            return result
        running, drafts = scheduled.scheduled_cached_reqs, scheduled.scheduled_spec_decode_tokens
        prompt = sum(n for name, n in tokens.items() if n > 1 + len(drafts.get(name, ())))
        context = sum(running.num_computed_tokens) + sum(r.num_computed_tokens for r in scheduled.scheduled_new_reqs)
        wanted = PACE["step"] + PACE["request"] * len(tokens) + PACE["prompt"] * prompt + PACE["context"] * context
        time.sleep(max(0, started + wanted - time.monotonic()))
        return result

    Worker.execute_model = execute_model
