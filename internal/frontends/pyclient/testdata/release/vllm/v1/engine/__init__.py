from dataclasses import dataclass, field


@dataclass
class EngineCoreRequest:
    request_id: str
    prompt_token_ids: list
    mm_features: list
    sampling_params: object
    pooling_params: object
    arrival_time: float
    lora_request: object
    cache_salt: str
    data_parallel_rank: int


@dataclass
class SchedulerStats:
    num_running_reqs: int


class Table(list):
    def tolist(self):
        return list(self)


@dataclass
class Logprobs:
    logprob_token_ids: Table
    logprobs: Table


@dataclass
class EngineCoreOutput:
    request_id: str
    new_token_ids: list
    new_logprobs: Logprobs = None
    new_prompt_logprobs_tensors: Logprobs = None
    finish_reason: str = None
    stop_reason: int = None


@dataclass
class EngineCoreOutputs:
    outputs: list = field(default_factory=list)
    scheduler_stats: SchedulerStats = None
