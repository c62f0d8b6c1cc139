"""Parse speculative configurations by vLLM's own code: its files are run with everything around them played.

Run in a process of its own: ``python vllm_speculation.py FOLDER < [config, ...]``. ``FOLDER`` holds three files of a
release. Models are played: no weights, no configuration of a model is read. Prints what became of each.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from release import play, real

BATCHES = 80


class SpeculatorsConfig(SimpleNamespace):
    """A drafter's configuration that vLLM takes as it is."""


class Played:
    """Something that vLLM validates by type alone; attributes that were not set are None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.is_instance_schema(cls)


class ModelConfig(Played):
    """A model that agrees with every other."""

    def __init__(self, **said: Any) -> None:
        self.__dict__.update(said)
        self.architectures = ["LlamaForCausalLM"]
        self.max_model_len = 4096
        overrides = said.get("hf_overrides")
        self.hf_config = SpeculatorsConfig(
            model_type=overrides["model_type"] if isinstance(overrides, dict) else "llama",
            architectures=self.architectures,
            max_position_embeddings=4096,
            vocab_size=32000,
        )

    def get_vocab_size(self) -> int:
        return 32000

    def using_transformers_backend(self) -> bool:
        return False

    def verify_with_parallel_config(self, other: Any) -> None:
        """Nothing runs in parallel here."""


class ParallelConfig(Played):
    """One device."""

    def __init__(self, **said: Any) -> None:
        self.__dict__.update({"tensor_parallel_size": 1, "enable_expert_parallel": False} | said)


class Logger:
    """It hears nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *words, **more: None


class LazyLoader:
    """A module that is not loaded."""

    def __init__(self, *words: Any) -> None:
        self.QuantizationMethods = str


PLAYED: dict[str, dict[str, Any]] = {
    "torch": {},
    "vllm": {},
    "vllm.envs": {},
    "vllm.logger": {"init_logger": lambda name: Logger()},
    "vllm.config": {"LoadConfig": Any},
    "vllm.config.cache": {"CacheDType": str},
    "vllm.config.kernel": {"MoEBackend": str},
    "vllm.config.model": {"HfOverrides": Any, "ModelConfig": ModelConfig},
    "vllm.config.parallel": {"ParallelConfig": ParallelConfig},
    "vllm.transformers_utils": {},
    "vllm.transformers_utils.config": {
        "get_hf_text_config": lambda config: config,
        "iter_rope_parameters": lambda config: [],
    },
    "vllm.transformers_utils.configs": {},
    "vllm.transformers_utils.configs.eagle": {"EAGLEConfig": SpeculatorsConfig},
    "vllm.transformers_utils.configs.speculators": {"SpeculatorsConfig": SpeculatorsConfig},
    "vllm.utils": {},
    "vllm.utils.hashing": {"safe_hash": hash},
    "vllm.utils.import_utils": {"LazyLoader": LazyLoader, "has_arctic_inference": lambda: False},
    "vllm.v1": {},
    "vllm.v1.attention": {},
    "vllm.v1.attention.backends": {},
    "vllm.v1.attention.backends.registry": {"AttentionBackendEnum": Any},
}


def main(folder: Path) -> None:
    play(PLAYED)
    real("vllm.config.utils", folder)
    config = real("vllm.config.speculative", folder).SpeculativeConfig
    schedules = real("vllm.v1.spec_decode.dynamic.utils", folder)
    found = []
    for said in json.load(sys.stdin):
        try:
            made = config(**said, target_model_config=ModelConfig(), target_parallel_config=ParallelConfig())
            if (ranges := made.num_speculative_tokens_per_batch_size) is None:
                by_batch = [made.num_speculative_tokens] * BATCHES
            else:
                words = ([list(one) for one in ranges], BATCHES, made.num_speculative_tokens)
                by_batch = schedules.build_dynamic_sd_schedule_lookup(*words)[1:]
        except Exception as error:  # whatever a release raises is a refusal
            found.append({"refused": f"{type(error).__name__}: {error}"})
            continue
        names = ("method", "model", "num_speculative_tokens", "rejection_sample_method", "draft_sample_method")
        names += ("prompt_lookup_min", "prompt_lookup_max")
        found.append({name: getattr(made, name) for name in names} | {"by_batch": by_batch})
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
