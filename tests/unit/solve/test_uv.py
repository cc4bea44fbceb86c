"""Tests parsing uv's output, and the default index from configuration files."""

from imgbuild.solve.uv import DEFAULT_INDEX, PIP_INDEX, parse_output


def test_requirements_are_listed_with_requesting_packages():
    text = (
        "torch==2.6.0+cu124   # via -r -, vllm\nZope.Interface==7.0\n# a comment\n--index-url x\n"
    )
    parsed = parse_output(text)
    assert [(item.package, item.version, item.via) for item in parsed] == [
        ("torch", "2.6.0+cu124", ("vllm",)),
        ("zope-interface", "7.0", ()),
    ]


def test_index_url_option_of_uv_is_recognized():
    match = DEFAULT_INDEX.search("--index-url https://user:word@index.example/simple\n")
    assert match
    assert match[1] == "https://user:word@index.example/simple"


def test_index_in_the_pip_configuration_is_read():
    text = (
        ":env:.index-url='https://a.example/simple'\nglobal.index-url='https://b.example/simple'\n"
    )
    assert dict(PIP_INDEX.findall(text)) == {
        ":env:": "https://a.example/simple",
        "global": "https://b.example/simple",
    }
