"""Tests that structured output of vLLM has the required format with each backend.

One engine has one backend. The engine also generates plain texts and a chat, as in the first
example of vLLM's documentation. A failed backend may leave the answers empty: the engine logs its
error and continues.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import gpu_vllm
import smoke_gpu
import smoke_openai
import smoke_stack
from smoke_openai import CODE, COLOURS, SCHEMA, TOKENS, TRIES
from smoke_support import skip

GRAMMAR = 'root ::= "pick " colour\ncolour ::= "red" | "green"\n'
WITH_GRAMMAR = ("xgrammar", "guidance")  # the others document no grammars


def engine_options(backend: str) -> dict[str, Any]:
    """The engine option that selects the backend."""
    if "structured_outputs_config" in smoke_stack.source("vllm", "engine/arg_utils.py"):
        return {"structured_outputs_config": {"backend": backend}}
    return {"guided_decoding_backend": backend}  # until 0.10


def sampling(count: int, **form: Any) -> Any:
    """The sampling parameters for `count` structured answers."""
    import vllm.sampling_params

    parameters = {"temperature": 1.0, "max_tokens": TOKENS, "n": count, "seed": 3}
    if hasattr(vllm.sampling_params, "StructuredOutputsParams"):
        prescribed = vllm.sampling_params.StructuredOutputsParams(**form)
        return vllm.SamplingParams(structured_outputs=prescribed, **parameters)
    prescribed = vllm.sampling_params.GuidedDecodingParams(**form)
    return vllm.SamplingParams(guided_decoding=prescribed, **parameters)


def answers(llm: Any, parameters: Any) -> list[str]:
    """The texts for one prompt."""
    [output] = llm.generate([gpu_vllm.PROMPTS[3]], parameters, use_tqdm=False)
    return [answer.text for answer in output.outputs]


def form(
    llm: Any, right: Callable[[str], bool], words: str, count: int = 3, **parameters: Any
) -> list[str]:
    """The problems of structured answers, each of which `right` checks."""
    texts = answers(llm, sampling(count, **parameters))
    print(words, texts)
    if not any(texts):
        return ["the text is empty"]
    return [f"the text {text!r} is not {words}" for text in texts if not right(text)]


def document(llm: Any) -> list[str]:
    """Generate JSON documents with a schema; returns their problems."""
    texts = answers(llm, sampling(TRIES, json=SCHEMA))
    return smoke_openai.complete(texts, smoke_openai.fits_schema)


def plain(llm: Any) -> list[str]:
    """Generate unstructured texts and a chat; returns their problems."""
    from vllm import SamplingParams

    parameters = SamplingParams(temperature=smoke_openai.FREE, max_tokens=16)
    outputs = llm.generate(gpu_vllm.PROMPTS, parameters, use_tqdm=False)
    outputs += llm.chat(smoke_openai.QUESTION, parameters, use_tqdm=False)
    texts = [output.outputs[0].text for output in outputs]
    print("texts:", texts)
    return [] if all(texts) else ["some of the texts are empty"]


def main(backend: str) -> None:
    """Test `backend`: xgrammar, guidance, outlines or lm-format-enforcer."""
    smoke_gpu.require()
    places = ("config/structured_outputs.py", "config.py")
    if not any(backend in smoke_stack.source("vllm", place) for place in places):
        skip(f"this vLLM has no backend {backend}")
    gpu_vllm.surround("structured")
    _, folder = gpu_vllm.make("tiny")
    from vllm import LLM  # noqa: F401  # slow imports, before the turn on the GPU

    smoke_gpu.turn(alone=smoke_stack.measures_memory())
    llm = smoke_stack.engine(folder, enforce_eager=True, **engine_options(backend))
    problems = plain(llm)
    problems += form(llm, COLOURS.__contains__, f"one of {COLOURS}", choice=list(COLOURS))
    problems += form(llm, lambda text: bool(re.fullmatch(CODE, text)), f"like {CODE}", regex=CODE)
    problems += document(llm)
    if backend in WITH_GRAMMAR:
        sentences = [f"pick {colour}" for colour in COLOURS]
        problems += form(llm, sentences.__contains__, f"one of {sentences}", grammar=GRAMMAR)
    smoke_gpu.end(problems, f"{backend}: choice, regular expression, JSON schema and plain texts")


if __name__ == "__main__":
    main(sys.argv[1])
