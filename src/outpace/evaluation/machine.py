"""What computed, with which versions, and the most memory that this process has used.

Knows nothing of what was measured. Asks the operating system and no package; what a system does not tell is None.
"""

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

MEGABYTE = 2**20


def machine() -> dict[str, Any]:
    """What computed, and how busy it was when the figures were written down."""
    lines = _lines("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory, load = total_mb(), os.getloadavg() if hasattr(os, "getloadavg") else ()
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gb": None if memory is None else round(memory / 1024, 1),
        "bf16": torch.cpu._is_avx512_bf16_supported(),
        "system": platform.platform(),
        "load_average": [round(one, 2) for one in load],
    }


def versions() -> dict[str, str]:
    """Python and the packages that matter."""
    names = ("outpace", "torch", "transformers", "numpy")
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in names}


def total_mb() -> float | None:
    """The machine's memory."""
    if not hasattr(os, "sysconf"):
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / MEGABYTE


def available_mb() -> float | None:
    """Memory that could be had without pushing others out; half of all of it where the system does not say."""
    if (available := _kilobytes("/proc/meminfo", "MemAvailable")) is not None:
        return available
    total = total_mb()
    return None if total is None else total / 2


def peak_rss_mb() -> float | None:
    """The most memory that this process has had in use since it began, or since the mark was reset."""
    if (highest := _kilobytes("/proc/self/status", "VmHWM")) is not None or sys.platform == "win32":
        return highest
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (MEGABYTE if sys.platform == "darwin" else 1024)


def reset_peak() -> bool:
    """Forget the mark, where the system can; whether it did."""
    try:
        Path("/proc/self/clear_refs").write_text("5", "utf-8")
    except OSError:
        return False
    return True


def _lines(path: str) -> list[str]:
    return Path(path).read_text("utf-8").splitlines() if Path(path).is_file() else []


def _kilobytes(path: str, field: str) -> float | None:
    """A field that is written in kB, in MB."""
    return next((int(line.split()[1]) / 1024 for line in _lines(path) if line.startswith(f"{field}:")), None)
