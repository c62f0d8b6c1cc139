"""Decode prompts by vLLM with a drafter, one after the other, and tell what became of every draft.

    PYTHON benchmarks/vllm_serve.py JOB.json TOLD.json      # PYTHON is that of an environment that has vLLM

Knows nothing of outpace, and is run by ``vllm_agreement.py``. Nothing that vLLM may do to serve many is left on: no
cached prefixes, no prompt in pieces, no second request beside the first, no compilation.

JOB: ``target`` and ``draft`` (folders), ``num_draft_tokens``, ``dtype``, ``prompts`` (ids), ``max_new_tokens``,
``eos_ids``, ``max_positions``. TOLD: ``versions``; ``texts``, for each prompt its ``token_ids`` and ``rounds``, pairs
(drafted, accepted) in order; ``counters``, as vLLM's own metrics have them over all prompts.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; one text at a time needs little
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # leave the number of threads to OMP_NUM_THREADS
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
"""What vLLM reads from the environment; what is set there already wins."""
DRAFTS, ACCEPTED = "vllm:spec_decode_num_drafts", "vllm:spec_decode_num_accepted_tokens_per_pos"
SLACK = 64  # positions of a step beyond its prompt, which vLLM sets aside for drafts


def engine(job: dict[str, Any]) -> Any:
    """vLLM with target and drafter loaded."""
    from vllm import LLM

    return LLM(
        model=job["target"],
        skip_tokenizer_init=True,
        dtype={"fp32": "float32", "bf16": "bfloat16"}[job["dtype"]],
        seed=0,
        generation_config="vllm",
        speculative_config={
            "method": "eagle3",
            "model": job["draft"],
            "num_speculative_tokens": job["num_draft_tokens"],
        },
        max_model_len=job["max_positions"],
        max_num_batched_tokens=job["max_positions"] + SLACK,
        max_num_seqs=1,
        enable_prefix_caching=False,
        enable_chunked_prefill=False,
        async_scheduling=False,
        enforce_eager=True,
        disable_log_stats=False,
        per_request_spec_decode_metrics="detailed",
    )


def texts(served: Any, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Greedy texts with their rounds."""
    from vllm import SamplingParams

    asked = SamplingParams(
        temperature=0.0,
        max_tokens=job["max_new_tokens"],
        ignore_eos=True,  # without a tokenizer vLLM knows of none: what ends a text is said here
        stop_token_ids=job["eos_ids"],
        detokenize=False,
    )
    found = []
    for ids in job["prompts"]:
        [done] = served.generate([{"prompt_token_ids": ids}], asked, use_tqdm=False)
        [text] = done.outputs
        told = text.spec_decode_metrics
        rounds = list(zip(told.per_step_drafted, told.per_step_accepted, strict=True))
        found.append({"token_ids": list(text.token_ids), "rounds": rounds})
    return found


def counters(served: Any) -> dict[str, Any]:
    """What vLLM has counted of drafts since it was started."""
    metrics = {metric.name: metric for metric in served.get_metrics()}
    return {"drafts": metrics[DRAFTS].value, "accepted_by_position": list(metrics[ACCEPTED].values)}


def main(argv: list[str]) -> int:
    job, out = json.loads(Path(argv[0]).read_text("utf-8")), Path(argv[1])
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)  # before vLLM is imported, which reads them then
    import torch
    import transformers
    import vllm

    served = engine(job)
    versions = {"vllm": vllm.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
    told = {"versions": versions, "texts": texts(served, job), "counters": counters(served)}
    out.write_text(json.dumps(told), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
