"""Tests that structured output of vLLM has the required format with each backend.

An engine has one backend. It also generates plain texts and a chat, as in the first example in
vLLM's documentation. If a backend fails, answers can be empty, because the engine logs the error
and continues.

The vocabulary of the model is padded to a multiple of 64 and is larger than the vocabulary of the
tokenizer, as in Qwen's models. In the mode `unpadded`, both are equal and not a multiple of 64. In
this mode, a single request and several simultaneous requests must have their formats.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gpu_vllm
import smoke_gpu
import smoke_openai
import smoke_stack
import tiny_qwen
from smoke_openai import CODE, COLOURS, SCHEMA, TOKENS, TRIES
from smoke_support import skip

GRAMMAR = 'root ::= "pick " colour\ncolour ::= "red" | "green"\n'
WITH_GRAMMAR = ("xgrammar", "guidance")  # the others document no grammars
MULTIPLE = 64  # vLLM pads the weights and logits of a vocabulary to a multiple of it
TOGETHER = 3  # structured requests at once
ONE = "of several structured requests at once only one has its format"  # in allowed.json


def engine_options(backend: str) -> dict[str, Any]:
    """Return the engine option that selects the backend."""
    if "structured_outputs_config" in smoke_stack.source("vllm", "engine/arg_utils.py"):
        return {"structured_outputs_config": {"backend": backend}}
    return {"guided_decoding_backend": backend}  # until 0.10


def sampling(count: int, **form: Any) -> Any:
    """Return the sampling parameters for `count` structured answers."""
    import vllm.sampling_params

    parameters = {"temperature": 1.0, "max_tokens": TOKENS, "n": count, "seed": 3}
    if hasattr(vllm.sampling_params, "StructuredOutputsParams"):
        prescribed = vllm.sampling_params.StructuredOutputsParams(**form)
        return vllm.SamplingParams(structured_outputs=prescribed, **parameters)
    prescribed = vllm.sampling_params.GuidedDecodingParams(**form)
    return vllm.SamplingParams(guided_decoding=prescribed, **parameters)


def answers(llm: Any, parameters: Any) -> list[str]:
    """Return the generated texts for one prompt."""
    [output] = llm.generate([gpu_vllm.PROMPTS[3]], parameters, use_tqdm=False)
    return [answer.text for answer in output.outputs]


def form(
    llm: Any, right: Callable[[str], bool], words: str, count: int = 3, **parameters: Any
) -> list[str]:
    """Return the problems with structured answers, which `right` checks."""
    texts = answers(llm, sampling(count, **parameters))
    print(words, texts)
    if not any(texts):
        return ["the text is empty"]
    return [f"the text {text!r} is not {words}" for text in texts if not right(text)]


def document(llm: Any) -> list[str]:
    """Generate JSON documents with a schema, and return their problems."""
    texts = answers(llm, sampling(TRIES, json=SCHEMA))
    return smoke_openai.complete(texts, smoke_openai.fits_schema)


def plain(llm: Any) -> list[str]:
    """Generate unstructured texts and a chat, and return their problems."""
    from vllm import SamplingParams

    parameters = SamplingParams(temperature=smoke_openai.FREE, max_tokens=16)
    outputs = llm.generate(gpu_vllm.PROMPTS, parameters, use_tqdm=False)
    outputs += llm.chat(smoke_openai.QUESTION, parameters, use_tqdm=False)
    texts = [output.outputs[0].text for output in outputs]
    print("texts:", texts)
    return [] if all(texts) else ["some of the texts are empty"]


def save(*, padded: bool) -> Path:
    """Return the folder of the model. --model replaces the padded model."""
    given = smoke_stack.given()
    if given is not None and padded:
        return given
    model = gpu_vllm.sharp_tiny(multiple=MULTIPLE if padded else 1)
    size = model.config.vocab_size
    if (size % MULTIPLE == 0) is not padded:
        sys.exit(f"error: the vocabulary of the model has {size} tokens")
    print(f"vocabulary: {size} tokens")
    return tiny_qwen.save(Path("model").absolute(), model, half=True)


def every_format(llm: Any, backend: str) -> list[str]:
    """Return the problems with plain texts and with answers in each format."""
    problems = plain(llm)
    problems += form(llm, COLOURS.__contains__, f"one of {COLOURS}", choice=list(COLOURS))
    problems += form(llm, lambda text: bool(re.fullmatch(CODE, text)), f"like {CODE}", regex=CODE)
    problems += document(llm)
    if backend in WITH_GRAMMAR:
        sentences = [f"pick {colour}" for colour in COLOURS]
        problems += form(llm, sentences.__contains__, f"one of {sentences}", grammar=GRAMMAR)
    return problems


def alone_and_together(llm: Any) -> list[str]:
    """Return the problems with answers to a single request and to simultaneous requests.

    The formats have short answers, which never end too early.
    """
    problems, right_counts = [], []
    choice = {"choice": list(COLOURS)}
    formats: list[tuple[Callable[[str], bool], str, dict[str, Any]]] = [
        (COLOURS.__contains__, f"one of {COLOURS}", choice),
        (lambda text: bool(re.fullmatch(CODE, text)), f"like {CODE}", {"regex": CODE}),
    ]
    for right, words, parameters in formats:
        problems += form(llm, right, words, 1, **parameters)
        texts = answers(llm, sampling(TOGETHER, **parameters))
        print("at once:", words, texts)
        right_counts.append(sum(map(right, texts)))
    return problems or at_once(right_counts)


def at_once(right_counts: Sequence[int]) -> list[str]:
    """Return the problems with simultaneous requests, of which `right_counts` have their format."""
    if all(count == TOGETHER for count in right_counts):
        return []
    if all(count == 1 for count in right_counts):
        return [ONE]
    counts = " and ".join(map(str, right_counts))
    return [f"{counts} of {TOGETHER} structured requests at once have their format"]


def main(backend: str, vocabulary: str = "padded") -> None:
    """Test `backend`: xgrammar, guidance, outlines or lm-format-enforcer."""
    smoke_gpu.require()
    places = ("config/structured_outputs.py", "config.py")
    if not any(backend in smoke_stack.source("vllm", place) for place in places):
        skip(f"this vLLM has no backend {backend}")
    gpu_vllm.surround("structured")
    padded = vocabulary == "padded"
    folder = save(padded=padded)
    from vllm import LLM  # noqa: F401  # slow imports, before the turn on the GPU

    smoke_gpu.turn(alone=smoke_stack.measures_memory())
    llm = smoke_stack.engine(folder, enforce_eager=True, **engine_options(backend))
    if padded:
        good = "choice, regular expression, JSON schema and plain texts"
        smoke_gpu.end(every_format(llm, backend), f"{backend}: {good}")
    good = "choice and regular expression, alone and at once"
    smoke_gpu.end(alone_and_together(llm), f"{backend}, unpadded vocabulary: {good}")


if __name__ == "__main__":
    main(*sys.argv[1:])
