"""Pages of counters as engines send them, cut to what is read and its neighbours.

Names and labels are those of vLLM 0.33 (``v1/spec_decode/metrics.py``), SGLang 0.5.23 (``metrics/collector.py``),
llama.cpp 0c1e570 (its server) and TensorRT-LLM (``metrics/collector.py``); the numbers are made up.
"""

VLLM = """\
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="m"}} {generated}.0
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {drafts}.0
# TYPE vllm:spec_decode_num_drafts_created gauge
vllm:spec_decode_num_drafts_created{{engine="0",model_name="m"}} 1.796e+09
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {drafted}.0
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {accepted}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="0"}} {first}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="1"}} {second}.0
"""
LLAMA = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 40
llamacpp:tokens_predicted_total 300
llamacpp:spec_decode_num_draft_tokens_total 200
llamacpp:spec_decode_num_accepted_tokens_total 120
llamacpp:spec_decode_num_drafts_total 100
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 80
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 40
"""
SGLANG = """\
# HELP sglang:generation_tokens_total Number of generation tokens processed.
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{is_streaming="true",model_name="m"} 290.0
sglang:generation_tokens_total{is_streaming="false",model_name="m"} 20.0
# HELP sglang:spec_accept_length The average acceptance length of speculative decoding.
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{engine_type="unified",model_name="m",tp_rank="0"} 2.9
sglang:spec_accept_length{engine_type="unified",model_name="m",tp_rank="1"} 3.1
sglang:spec_accept_rate{engine_type="unified",model_name="m",tp_rank="0"} 0.5
sglang:spec_verify_calls_total{model_name="m"} 100.0
"""
TRT = """\
trtllm_spec_decode_num_draft_tokens_total{model_name="m"} 200.0
trtllm_spec_decode_num_accepted_tokens_total{model_name="m"} 120.0
trtllm_spec_decode_acceptance_length{model_name="m"} 2.2
"""
PLAIN = 'vllm:generation_tokens_total{engine="0",model_name="m"} 50.0\n'


def vllm(**counts: int) -> str:
    every = {"generated": 300, "drafts": 100, "drafted": 200, "accepted": 120, "first": 80, "second": 40}
    return VLLM.format(**(every | counts))
