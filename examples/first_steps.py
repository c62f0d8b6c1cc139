"""The first ten lines: load the default model, generate plainly and with lookup drafts, look at the statistics.

Run ``python examples/first_steps.py``: seconds, and a download the first time.
"""

import sys

import outpace

target = outpace.load_target(sys.argv[1] if len(sys.argv) > 1 else "smollm2")
lookup = outpace.load_drafter("lookup", target)
prompt = "Repeat this sentence three times: the quick brown fox jumps over the lazy dog."
for drafter in (None, lookup):
    result = outpace.generate(target, drafter, prompt, max_new_tokens=64)
    drafting, timing = result.stats.speculation, result.stats.timing
    print(f"{drafting.method}: {timing.tokens_per_second:.1f} tokens a second, tau {drafting.tau}")
    print(f"  {drafting.accepted} of {drafting.drafted} drafted tokens were right; lossless: {drafting.lossless}")
    print(result.text)
