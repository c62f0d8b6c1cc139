"""Parse a server's words by SGLang's own code: its files are run with everything around them played.

Run in a process of its own: ``python sglang_arguments.py FOLDER LIBRARIES < [words, ...]``. ``FOLDER`` holds files of a
release, ``LIBRARIES`` the one library that they are made with. What SGLang resolves after parsing is resolved too: on a
GPU, for a Llama, with nothing else asked for. Prints what became of each.
"""

import argparse
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from release import play, real


class Arguments(argparse.Namespace):
    """What the server was told; fields of other parts of SGLang are None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Algorithm:
    """A built-in algorithm, resolved by the function that its own file has for its family."""

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def from_string(cls, name: str) -> "Algorithm":
        return cls(name)

    def supports_mixed_chunk(self) -> bool:
        return True

    def get_platform_worker_cls(self) -> None:
        """No platform brings a worker of its own."""

    def handle_server_args(self, arguments: Arguments) -> None:
        hook = sys.modules["sglang.srt.arg_groups.speculative_hook"]
        (hook._handle_ngram if self.name == "NGRAM" else hook._handle_eagle_family)(arguments)


class CustomSpecAlgo:
    """None is registered."""


class Switches:
    """The environment: every switch is off."""

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(get=lambda: -1 if name.endswith("ACC_LEN") else False)


def declare(arguments: Arguments, who: str, **said: Any) -> None:
    for name, value in said.items():
        setattr(arguments, name, value)


LLAMA = SimpleNamespace(architectures=["LlamaForCausalLM"])
PLATFORM = SimpleNamespace(is_hip=False, is_xpu=False, is_sm100=False)
PLAYED: dict[str, dict[str, Any]] = {
    "sglang": {},
    "sglang.srt": {},
    "sglang.srt.arg_groups": {},
    "sglang.srt.arg_groups.fields": {},
    "sglang.srt.arg_groups.overrides": {
        "_speculative_moe_runner_default": None,
        "attention_backends_of": lambda view: ("flashinfer", "flashinfer"),
        "declare_resolution": declare,
        "model_config_of": lambda arguments: SimpleNamespace(hf_config=LLAMA),
        "record_foreign_defaults": None,
        "resolved_view": lambda arguments: arguments,
        "resolving_view": lambda arguments: arguments,
        "run_post_process_pass": lambda *words: None,
    },
    "sglang.srt.configs": {},
    "sglang.srt.configs.iquest_q1": {"IQuestQ1MTPConfig": CustomSpecAlgo},
    "sglang.srt.environ": {"envs": Switches()},
    "sglang.srt.platforms": {"current_platform": SimpleNamespace(is_out_of_tree=lambda: False)},
    "sglang.srt.runtime_context": {"attn_dp_enabled_of": lambda view: False, "get_platform": lambda: PLATFORM},
    "sglang.srt.speculative": {},
    "sglang.srt.speculative.spec_info": {"SpeculativeAlgorithm": Algorithm},
    "sglang.srt.speculative.spec_registry": {"CustomSpecAlgo": CustomSpecAlgo},
    "sglang.srt.utils": {"log_info_on_rank0": lambda *words: None},
    "sglang.srt.utils.hf_transformers_utils": {"get_config": lambda *words, **more: LLAMA},
}


def main(folder: Path) -> None:
    play(PLAYED)
    groups = "sglang.srt.arg_groups"
    parsing = real(f"{groups}.arg_utils", folder)
    real(f"{groups}.choices", folder)
    fields = real(f"{groups}.fields.spec", folder).Spec
    real("sglang.srt.speculative.adaptive_spec_params", folder)
    hook = real(f"{groups}.speculative_hook", folder)
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--model-path")
    parsing.add_cli_args_from_dataclass(parser, fields)
    found = []
    for words in json.load(sys.stdin):
        try:
            parsed, unknown = parser.parse_known_args(words)
            if unknown:
                raise ValueError(f"unrecognized arguments: {unknown}")
            made = Arguments(**vars(parsed), device="cuda", page_size=1, pp_size=1, json_model_override_args="{}")
            hook.handle_speculative_decoding(made)
        except (Exception, SystemExit) as error:  # whatever a release raises is a refusal
            found.append({"refused": f"{type(error).__name__}: {error}"})
            continue
        names = ("algorithm", "draft_model_path", "num_steps", "eagle_topk", "num_draft_tokens", "adaptive")
        names += ("use_rejection_sampling", "use_block_verification", "ngram_max_bfs_breadth")
        found.append({name: getattr(made, f"speculative_{name}") for name in names} | {"model": made.model_path})
    print(json.dumps(found))


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[2])
    main(Path(sys.argv[1]))
