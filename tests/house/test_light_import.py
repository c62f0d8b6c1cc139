"""Importing the package is cheap: no optional package, and no weights."""

import json
import subprocess
import sys

HEAVY = ("transformers", "tokenizers", "huggingface_hub", "gguf", "typer", "rich", "scipy")
"""Loaded by the files that need them, at the moment they do."""

WATCH = """
import json, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
{statements}
weights = [name for name in opened if name.endswith((".safetensors", ".gguf", ".bin", ".pt", ".pth"))]
print(json.dumps([sorted(set(sys.modules) & set({heavy})), weights]))
"""


def loaded_by(statements: str) -> tuple[list[str], list[str]]:
    """The heavy packages and the weight files that some statements load in a fresh interpreter."""
    program = WATCH.format(statements=statements, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    packages, weights = json.loads(done.stdout.splitlines()[-1])
    return packages, weights


def test_importing_outpace_is_light() -> None:
    assert loaded_by("import outpace") == ([], [])


def test_the_check_sees_packages_and_weights(tmp_path: object) -> None:
    path = f"{tmp_path}/model.safetensors"
    statements = f"import gguf, rich\nopen({path!r}, 'w').close()"
    assert loaded_by(statements) == (["gguf", "rich"], [path])
