"""Peak memory of a fresh process that loads the model and decodes 128 tokens, after a short and after a long prompt.

    python benchmarks/memory.py                  # about 2 minutes on two cores
    python benchmarks/memory.py --quick          # does it run? one minute

Every figure is of a process of its own: the resident set at its highest (``VmHWM``; ``ru_maxrss`` where there is no
/proc). The base is a process that only imports outpace, torch and the tokenizer, and encodes a prompt. *After load*
the high-water mark is reset, so that it tells what decoding needs; *with load* it is not, so that it tells what the
machine must have. Plain decoding, greedy, end-of-text ignored.

Gate: after load, at most the weights as packed, plus the key-value cache, plus 150 MB above the base.
"""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import Estimate, Gate, arguments, data_folder, document, judge, save, show

from outpace.decoding.generate import generate
from outpace.decoding.text import text_of
from outpace.models.load import load_target
from outpace.models.matmul import Matmul
from outpace.models.transformer import Transformer
from outpace.models.weights import find_weights

ALLOWANCE_MB = 150
PROTOCOL = (
    "one fresh process a figure; greedy, batch 1, EOS ignored; VmHWM reset after load through /proc/self/clear_refs, "
    "less the VmHWM of a process that imports outpace, torch and the tokenizer and encodes a prompt"
)


def status_mb(field: str) -> float | None:
    """A field of /proc/self/status; None where there is none."""
    status = Path("/proc/self/status")
    lines = status.read_text("utf-8").splitlines() if status.is_file() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:")), None)


def peak_mb() -> float:
    """The most memory that this process has had in use since it began, or since the mark was reset."""
    if (highest := status_mb("VmHWM")) is not None:
        return highest
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 1024)


def reset_peak() -> bool:
    """Forget the high-water mark, where the system can."""
    try:
        Path("/proc/self/clear_refs").write_text("5", "utf-8")
    except OSError:
        return False
    return True


def weights_mb(target: Transformer) -> float:
    """Every weight that the model keeps, packed copies as they are; a tied head is kept twice when packed."""
    held = {id(target.embeddings): target.embeddings, id(target.last_norm): target.last_norm}
    for block in target.blocks:
        for part in vars(block).values():
            if part is not None:
                found = [part.weight, part.bias] if isinstance(part, Matmul) else [part]
                held |= {id(tensor): tensor for tensor in found if tensor is not None}
    held[id(target.head.weight)] = target.head.weight
    return sum(tensor.numel() * tensor.element_size() for tensor in held.values()) / 2**20


def prompt_of(folder: Path, tokens: int) -> list[int]:
    """As many ids of real text as asked for: prompts of specbench-dev, one after the other."""
    text = text_of(folder)
    ids: list[int] = []
    for line in (data_folder() / "specbench-dev.jsonl").read_text("utf-8").splitlines():
        if len(ids) >= tokens:
            break
        ids += text.encode(json.loads(line)["turns"][0], raw=True)
    return ids[:tokens]


def child(args: Any) -> dict[str, Any]:
    """What one process does and needs."""
    ids = prompt_of(find_weights(args.target), args.prompt_tokens[0])
    if args.child == "import":
        return {"peak_mb": peak_mb(), "mapped_mb": status_mb("RssFile")}
    target = load_target(args.target, dtype=args.dtype[0])
    with_load = peak_mb()
    could_reset = reset_peak()
    resting = peak_mb()
    result = generate(target, None, ids, max_new_tokens=args.max_new_tokens, eos_ids=None)
    shape = target.shape
    positions = len(ids) + args.max_new_tokens
    cache = 2 * shape.layers * shape.kv_heads * shape.head_width * positions * target.dtype.itemsize
    return {
        "prompt_tokens": len(ids),
        "new_tokens": len(result.token_ids),
        "packed": target.packed,
        "weights_mb": weights_mb(target),
        "cache_mb": cache / 2**20,
        "load_peak_mb": with_load,
        "after_load_mb": resting,
        "mark_was_reset": could_reset,
        "peak_mb": peak_mb(),
        "mapped_mb": status_mb("RssFile"),  # pages of files, libraries and weights alike, that are in memory
    }


def fresh(args: Any, kind: str, dtype: str, tokens: int) -> dict[str, Any]:
    """Run one child and read what it says on its last line."""
    command = [sys.executable, __file__, "--child", kind, "--dtype", dtype, "--prompt-tokens", str(tokens)]
    command += ["--target", args.target, "--max-new-tokens", str(args.max_new_tokens)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--dtype", nargs="+", choices=("bf16", "fp32"), default=["bf16", "fp32"])
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[300, 4000])
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--child", choices=("import", "decode"), help="what the script's own processes are told")
    args = parser.parse_args(argv)
    if args.child:
        print(json.dumps(child(args)))
        return 0
    if args.quick:
        args.dtype, args.prompt_tokens, args.max_new_tokens = args.dtype[:1], args.prompt_tokens[:1], 8
    imported = fresh(args, "import", args.dtype[0], args.prompt_tokens[0])
    base = imported["peak_mb"]
    cells, gates = [], []
    for dtype in args.dtype:
        for tokens in args.prompt_tokens:
            cell = fresh(args, "decode", dtype, tokens)
            above, allowed = cell["peak_mb"] - base, cell["weights_mb"] + cell["cache_mb"] + ALLOWANCE_MB
            cells.append({"dtype": dtype, **cell, "base_mb": base, "above_base_mb": above, "allowed_mb": allowed})
            gates.append(
                Gate(f"{dtype}, {tokens} tokens, MB above base", Estimate(above, above, above), allowed, ceiling=True)
            )
    columns = ("dtype", "prompt", "base", "with load", "after load", "decoding", "weights", "cache", "above base")
    keys = ("base_mb", "load_peak_mb", "after_load_mb", "peak_mb", "weights_mb", "cache_mb", "above_base_mb")
    show(
        "peak memory, MB", columns, [[c["dtype"], c["prompt_tokens"], *(round(c[key]) for key in keys)] for c in cells]
    )
    status = judge(gates, args.quick)
    records = [gate.record() for gate in gates]
    save("memory", args, document("memory", args, PROTOCOL, base=imported, results=cells, gates=records))
    return status


if __name__ == "__main__":
    sys.exit(main())
