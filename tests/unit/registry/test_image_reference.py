"""Tests parsing names of images in registries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imgbuild.errors import InputError
from imgbuild.registry.image_reference import (
    ImageReference,
    Repository,
    parse_reference,
    parse_repository,
)
from tests.support.rows import each_row

D = f"sha256:{'a' * 64}"


@each_row(
    ("text", "expected"),
    [
        ("debian", ImageReference("docker.io", "library/debian")),
        ("debian:12", ImageReference("docker.io", "library/debian", "12")),
        ("nvidia/cuda", ImageReference("docker.io", "nvidia/cuda")),
        ("docker.io/debian", ImageReference("docker.io", "library/debian")),
        ("ghcr.io/me/x:1", ImageReference("ghcr.io", "me/x", "1")),
        (f"ghcr.io/me/x@{D}", ImageReference("ghcr.io", "me/x", None, D)),
        (f"ghcr.io/me/x:1@{D}", ImageReference("ghcr.io", "me/x", "1", D)),
        ("localhost/x", ImageReference("localhost", "x")),
        ("localhost:5000/a/b/c:v_1.2-3", ImageReference("localhost:5000", "a/b/c", "v_1.2-3")),
        ("[::1]:5000/x", ImageReference("[::1]:5000", "x")),
        ("h:1/a__b-c.d---e", ImageReference("h:1", "a__b-c.d---e")),
    ],
)
def test_image_references_are_parsed(text, expected):
    assert parse_reference(text) == expected
    assert expected.target == (expected.digest or expected.tag or "")
    assert expected.repository == Repository(expected.host, expected.name)


@each_row(
    "text",
    [
        "", ":", "@", "h:1/", "h:1/X", "h:1/x:", "h:1/x:.", f"h:1/x:{'a' * 129}", "h:1/x@sha256:12",
        f"h:1/x@{D}0", "h:1/x@", "h:1/a//b", "h:1/-a", "h:1/a_", "h:1/a___b", "h:1/../x", "h:x/a",
        "https://h/x", "h:1/x y", "h.é/x", f"@{D}", "me@h:1/x", "h:1/x?y", "h:1/x\n",
    ],
)  # fmt: skip
def test_invalid_image_references_are_refused(text):
    with pytest.raises(InputError, match="invalid image reference"):
        parse_reference(text)


def test_error_for_a_missing_path_names_the_path():
    with pytest.raises(InputError, match=r"^\./absent/image: no such file or folder$"):
        parse_reference("./absent/image")


def test_default_tag_applies_only_to_names_without_tag_and_digest():
    assert parse_reference("h:1/x", default_tag="one").tag == "one"
    assert parse_reference("h:1/x:two", default_tag="one").tag == "two"
    assert parse_reference(f"h:1/x@{D}", default_tag="one").tag is None


PART = st.from_regex(r"[a-z0-9]+((\.|_|__|-{1,3})[a-z0-9]+){0,2}", fullmatch=True)
TAGS = st.none() | st.from_regex(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,20}", fullmatch=True)


@given(
    host=st.sampled_from(["h.example", "h:5000", "localhost", "10.0.0.1:80"]),
    name=st.lists(PART, min_size=1, max_size=4).map("/".join),
    tag=TAGS,
    digest=st.sampled_from([None, D]),
)
def test_image_reference_is_formatted_as_it_was_parsed(host, name, tag, digest):
    reference = ImageReference(host, name, tag, digest)
    assert parse_reference(str(reference)) == reference
    assert parse_repository(str(reference.repository)) == reference.repository


@pytest.mark.parametrize("text", ["h:1/x:1", f"h:1/x@{D}"])
def test_image_reference_in_place_of_a_repository_is_refused(text):
    with pytest.raises(InputError, match="but a repository is expected") as caught:
        parse_repository(text)
    assert caught.value.hint == "use h:1/x"
