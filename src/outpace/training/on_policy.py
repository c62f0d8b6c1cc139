"""Texts of the student's own, to be taught where it really stands: a share of a batch's answers, drawn from its law.

Knows nothing of losses, and no gradient goes through a draw. What the student said is then read by the target, as if
it were the target's own text: at every place of it the target tells what it would have said there.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outpace.decoding.loop import Request
from outpace.errors import NumericsError, UsageError
from outpace.models.target import Target
from outpace.training.answers import BATCH_SIZE
from outpace.training.batch import Batch
from outpace.training.continuations import continuations, seed_of
from outpace.training.masks import Sample
from outpace.training.reader import Reader
from outpace.training.shards import batch_of
from outpace.verification.probabilities import Sampling


@dataclass(frozen=True)
class OnPolicy:
    """How much of a batch is the student's own, and how it is drawn.

    Args:
        share: the chance that an answer is replaced, 0 to 1.
        temperature: of the draws; 0 is greedy.
        seed: names the choices and the draws, with the number of the step: a training that is gone on with draws what
            it would have drawn.
        batch_size: texts that are drawn at once, 1 or more.

    Raises:
        UsageError: an argument is out of range.

    Source: DistillSpec (Zhou et al., arXiv 2310.08461), data of the draft's own.
    """

    share: float = 1.0
    temperature: float = 1.0
    seed: int = 0
    batch_size: int = BATCH_SIZE

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise UsageError(f"share is {self.share}; allowed: 0 to 1")
        if self.batch_size < 1:
            raise UsageError(f"batch_size is {self.batch_size}; allowed: 1 or more")
        Sampling(self.temperature)

    def chosen(self, key: str, step: int) -> bool:
        """Whether a text's answer is replaced in a step."""
        return seed_of(self.seed, step, key, "on-policy") < self.share * 2.0**63


@dataclass(frozen=True)
class Begun:
    """A prompt that the student is to go on with.

    Args:
        key: its name; with seed and step it names the draws.
        ids: the prompt, one token or more.
        max_new_tokens: 1 or more.
    """

    key: str
    ids: Sequence[int]
    max_new_tokens: int


def own_texts(student: Target, prompts: Sequence[Begun], policy: OnPolicy, step: int) -> list[Sample]:
    """What the student says behind some prompts, as samples whose answers these are, in the same order.

    The same seed, step and weights give the same texts in any company, as far as rounding allows.

    Args:
        student: its present weights, see ``student_target``.
        prompts: with room for their new tokens in its context.
        policy: its share is not looked at.
        step: of the training.

    Raises:
        NumericsError: the student's logits are no distribution; the prompt is named.
    """
    requests = [
        Request(
            ids=list(prompt.ids),
            sampling=Sampling(policy.temperature),
            max_new_tokens=prompt.max_new_tokens,
            eos_ids=student.eos_ids,
            seed=seed_of(policy.seed, step, prompt.key, "text"),
        )
        for prompt in prompts
    ]
    found: dict[int, list[int]] = {}
    for one in continuations(student, requests, policy.batch_size):
        if one.reason is not None:
            raise NumericsError(f"{prompts[one.index].key} cannot be continued by the student: {one.reason}")
        found[one.index] = one.ids
    return [_sample(f"{prompt.key} at step {step}", prompt.ids, found[place]) for place, prompt in enumerate(prompts)]


def _sample(key: str, prompt: Sequence[int], answer: Sequence[int]) -> Sample:
    ids = torch.tensor([*prompt, *answer], dtype=torch.int32)
    return Sample(key, ids, torch.arange(len(ids)) >= len(prompt))


def mixed(student: Target, samples: Sequence[Sample], policy: OnPolicy, step: int, vocab_size: int) -> list[Sample]:
    """Samples of which some have the student's own answer: to the same prompt, and no longer than what stood there.

    A text is never longer than the one that it replaces, so that a batch keeps its room. Of a dialogue all is replaced
    behind the first prompt. What the student says is cut where it says an id that the target lacks. A text without a
    prompt, or without an answer, stays.

    Args:
        student, policy, step: as for ``own_texts``.
        samples: any texts.
        vocab_size: the target's.

    Returns:
        As many, in the same order; the very objects that were given where they stay.
    """
    begun: dict[int, Begun] = {}
    for place, sample in enumerate(samples):
        start = int(sample.loss_mask.int().argmax())  # 0 too where no answer is
        if start and policy.chosen(sample.key, step):
            begun[place] = Begun(sample.key, sample.ids[:start].tolist(), len(sample) - start)
    result = list(samples)
    for place, text in zip(begun, own_texts(student, list(begun.values()), policy, step), strict=True):
        foreign = (text.ids >= vocab_size).nonzero()
        end = int(foreign[0]) if len(foreign) else len(text)
        if bool(text.loss_mask[:end].any()):
            result[place] = Sample(text.key, text.ids[:end], text.loss_mask[:end])
    return result


def mixed_batch(student: Target, batch: Batch, policy: OnPolicy, step: int, reader: Reader) -> Batch:
    """The same of a batch: the target reads the texts that are new in it, and the others keep their recording.

    A text is named by its tokens, so that it is chosen and drawn alike in any batch and any process.

    Args:
        student, policy, step: as for ``own_texts``.
        batch: recorded with the reader's target and taps.
        reader: of the target.

    Raises:
        UsageError, NumericsError: as for ``own_texts`` and ``Reader.read``.
    """
    samples = texts_of(batch)
    found = mixed(student, samples, policy, step, reader.target.vocab_size)
    new = [place for place, sample in enumerate(samples) if found[place] is not sample]
    if not new:
        return batch
    whole = (batch.ids, batch.loss_mask, batch.features, batch.last_normed, batch.argmax, batch.logsumexp)
    rows = [tuple(each[place, :length] for each in whole) for place, length in enumerate(batch.lengths)]
    read = reader.read([found[place] for place in new])
    for index, place in enumerate(new):
        rows[place] = tuple(each.to(like) for each, like in zip(read.row(index), whole, strict=True))
    return batch_of(rows)


def texts_of(batch: Batch) -> list[Sample]:
    """The texts of a batch, each named by its tokens."""
    found = []
    for row, length in enumerate(batch.lengths):
        ids, mask = batch.ids[row, :length].int().cpu(), batch.loss_mask[row, :length].cpu()
        found.append(Sample(f"text {hashlib.sha256(ids.numpy().tobytes()).hexdigest()[:16]}", ids, mask))
    return found
