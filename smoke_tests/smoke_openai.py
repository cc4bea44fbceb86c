"""Tests a server of vLLM or SGLang with OpenAI's client, as documented by both projects.

The answers of a model with random weights are meaningless. Therefore, only their existence and the
format of structured answers are checked.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import Any

COLOURS = ("red", "green")
CODE = r"[a-c]{3}-[0-9]{2}"
# All fields are short, because a random model ends neither a text nor a number.
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": list(COLOURS)}, "warm": {"type": "boolean"}},
    "required": ["colour", "warm"],
    "additionalProperties": False,
}
TOKENS = 160
# Of unstructured texts: otherwise the sharpened tiny model repeats bytes of invalid characters.
FREE = 2.0
TRIES = 8  # white space in a document of JSON may use up the tokens
QUESTION = [{"role": "user", "content": "Name a colour of the sky."}]


def fits_schema(text: str) -> bool:
    """Return whether `text` is a JSON document that matches SCHEMA."""
    try:
        document = json.loads(text)
    except ValueError:
        return False
    right = isinstance(document, dict) and document.keys() == {"colour", "warm"}
    return right and document["colour"] in COLOURS and isinstance(document["warm"], bool)


class Client:
    """OpenAI's client for the server at `url`, which has one model."""

    def __init__(self, url: str) -> None:
        import openai

        os.environ |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        self.api = openai.OpenAI(base_url=f"{url}/v1", api_key="EMPTY", max_retries=0, timeout=300)
        self.model = self.api.models.list().data[0].id

    def chat(self) -> list[str]:
        """Test a chat response that is not streamed."""
        text, tokens = self._answer(max_tokens=32, temperature=FREE)
        print("chat:", repr(text))
        return [] if text and tokens > 0 else [f"the answer is {text!r}, with {tokens} tokens"]

    def stream(self) -> list[str]:
        """Test a chat response that is streamed."""
        pieces = self.api.chat.completions.create(
            model=self.model, messages=QUESTION, max_tokens=32, temperature=FREE, stream=True
        )
        texts = [piece.choices[0].delta.content for piece in pieces if piece.choices]
        print("stream:", texts)
        return [] if "".join(text or "" for text in texts) else [f"the pieces are {texts}"]

    def completion(self) -> list[str]:
        """Test the completion of a text."""
        answer = self.api.completions.create(
            model=self.model, prompt="Paris is", max_tokens=32, temperature=FREE
        )
        print("completion:", repr(answer.choices[0].text))
        return [] if answer.choices[0].text else ["the continuation is empty"]

    def schema(self) -> list[str]:
        """Test JSON documents with a schema."""
        form = {"type": "json_schema", "json_schema": {"name": "sky", "schema": SCHEMA}}
        texts = [self._answer(response_format=form)[0] for _ in range(TRIES)]
        return complete(texts, fits_schema)

    def words(self, **body: Any) -> list[str]:
        """Test a choice of two words. `body` contains vLLM's option."""
        texts = [self._answer(extra_body=body)[0] for _ in range(3)]
        return [f"the answer is {text!r}, not one of {COLOURS}" for text in texts
                if text not in COLOURS]  # fmt: skip

    def pattern(self, **body: Any) -> list[str]:
        """Test a regular expression. `body` contains the option."""
        texts = [self._answer(extra_body=body)[0] for _ in range(3)]
        return [f"the answer {text!r} does not match {CODE}" for text in texts
                if not re.fullmatch(CODE, text)]  # fmt: skip

    def _answer(self, **more: Any) -> tuple[str, int]:
        options = {"max_tokens": TOKENS, "temperature": 1.0} | more
        answer = self.api.chat.completions.create(model=self.model, messages=QUESTION, **options)
        return answer.choices[0].message.content or "", answer.usage.completion_tokens


def complete(texts: list[str], right: Callable[[str], bool]) -> list[str]:
    """Return the problems with `texts`. Most must be right; the others may only end too early."""
    wrong = [text for text in texts if not right(text)]
    print("documents:", texts)
    if not any(texts):
        return ["the text is empty"]
    if 2 * len(wrong) > len(texts):
        return [
            f"{len(wrong)} of {len(texts)} documents do not match the schema, such as {wrong[0]!r}"
        ]
    return [f"{text!r} is not the start of a valid document" for text in wrong
            if not text.lstrip().startswith("{") and text.strip()]  # fmt: skip
