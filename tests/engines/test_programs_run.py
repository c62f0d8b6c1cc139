"""The program that is emitted for transformers runs as it stands, and says what outpace says."""

import subprocess
import sys

import pytest

from outpace.decoding.plan import Choice
from outpace.engines.emit import emit
from plans import plan_of


@pytest.mark.real
def test_the_program_for_transformers_runs() -> None:
    """Greedy in bf16 on both sides: the first tokens are far from a tie, and only they are compared."""
    import outpace

    done = emit(plan_of(Choice(num_draft_tokens=3), target="smollm2"), "transformers")
    command = [sys.executable, "-c", done.script]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr
    target = outpace.load_target("smollm2")
    drafter = outpace.load_drafter("lookup", target)
    ours = outpace.generate(target, drafter, "The three primary colours are", raw=True, max_new_tokens=8)
    assert ran.stdout.strip().startswith(("The three primary colours are" + ours.text).strip())
