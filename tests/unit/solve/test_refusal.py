"""Tests the reasons given for unavailable pins, with the nearest versions."""

import datetime

import pytest
from packaging.version import Version

from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import NoSolution
from imgbuild.http.client import HttpClient
from imgbuild.index.candidates import FileRules
from imgbuild.index.catalogue import FileCatalogue
from imgbuild.index.pages import IndexAddress, IndexLookup
from imgbuild.solve import refusal, solve
from imgbuild.solve.problem import SolveProblem
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags
from tests.support import samples
from tests.support.local_index import LocalIndex, sdist_bytes
from tests.support.servers import FileSite, serve_site

LINUX = "cp311-cp311-manylinux_2_17"


@pytest.fixture
def index():
    local_index = LocalIndex()
    local_index.wheel("late", "1.0", uploaded="2025-01-01")
    local_index.wheel("late", "2.0", uploaded="2025-07-01")
    local_index.wheel("x86only", "1.0", tag=f"{LINUX}_aarch64")
    local_index.wheel("x86only", "2.0", tag=f"{LINUX}_x86_64")
    local_index.wheel("x86only", "2.0", tag="cp311-cp311-win_amd64")
    local_index.wheel("oldpython", "1.0", tag="cp310-cp310-manylinux_2_17_aarch64")
    local_index.wheel("yanked", "1.0", yanked=True)
    local_index.wheel("yanked", "1.1")
    local_index.add("source", "source-1.0.tar.gz", sdist_bytes("source", "1.0", {}))
    local_index.add("packed", "packed-1.0.tar.xz", b"x")
    return local_index


@pytest.fixture
def reason(index, tmp_path):
    with serve_site(FileSite(files=index.site_files())) as site:

        def ask(package, version, arch=Arch.ARM64):
            rules = FileRules(
                as_of=datetime.date(2025, 6, 20),
                tags=WheelTags(python="3.11", glibc="2.36", arch=arch),
                pins={package: version},
            )
            place = IndexAddress(name="pypi", address=site.url("simple"))
            http = HttpClient(attempts=1)
            indexes = IndexLookup({"pypi": place}, {}, "pypi", http)
            catalogue = FileCatalogue(indexes, rules, http, Store.open(tmp_path / "cache"))
            reasons = refusal.pin_refusals(catalogue)
            assert len(reasons) <= 1
            return reasons[0] if reasons else None

        yield ask


@pytest.mark.parametrize(
    ("package", "version", "words"),
    [
        ("late", "1.0", None),
        ("yanked", "1.0", None),
        (
            "late", "2.0",
            ("late 2.0: its wheel was uploaded 2025-07-01, not before the cut-off 2025-06-20;"
            " nearest compatible: 1.0"),
        ),
        (
            "x86only", "2.0",
            ("x86only 2.0: no Linux aarch64 wheel (it has Linux x86_64, Windows amd64);"
            " nearest compatible: 1.0"),
        ),
        (
            "oldpython", "1.0",
            ("oldpython 1.0: no wheel for Python 3.11 and glibc 2.36 among its Linux aarch64 wheels"
            " (it has Linux aarch64, Python cp310); no version is compatible"),
        ),
        (
            "source", "1.0",
            ("source 1.0: only an sdist exists, and the matrix does not list source under `sdists`;"
            " no version is compatible"),
        ),
        (
            "packed", "1.0",
            ("packed 1.0: no wheel exists, and sdists are supported as .tar.gz and .zip, not as"
            " packed-1.0.tar.xz; no version is compatible"),
        ),
        ("late", "1.5", "late 1.5: the index pypi has no such version; nearest compatible: 1.0"),
        ("absent", "1.0", "absent: the index pypi has no such package"),
    ],
)  # fmt: skip
def test_unavailable_pin_is_explained(reason, package, version, words):
    assert reason(package, version) == words


def test_nearest_versions_above_and_below_a_missing_pin_are_final():
    versions = [Version(text) for text in ("1.0", "1.2", "2.0", "2.0rc1", "1.9a1")]
    assert refusal.nearest_versions(Version("1.5"), versions) == ("1.2", "2.0")
    assert refusal.nearest_versions(Version("3"), [Version("3.1a1")]) == ("3.1a1",)
    assert refusal.nearest_versions(Version("3"), []) == ()


def test_excluded_architecture_is_refused_with_reason_and_alternatives(tmp_path):
    context = Context(Store.open(tmp_path), HttpClient(offline=True))
    matrix = samples.matrix(exclude={Arch.ARM64: "torch has no CUDA there"})
    matrix.targets["other"] = samples.matrix(arch=(Arch.ARM64,)).targets["small"]
    with pytest.raises(NoSolution, match="small cannot be built for arm64") as caught:
        solve.refuse_excluded(SolveProblem(matrix, "small", Arch.ARM64, context))
    assert caught.value.reasons == ("torch has no CUDA there",)
    assert caught.value.hint == "targets for arm64: other"
    solve.refuse_excluded(SolveProblem(matrix, "small", Arch.X86_64, context))


def test_explanation_of_the_resolver_is_printed_as_lines():
    text = (
        "  \u00d7 No solution found when resolving dependencies:\n"
        "  \u2570\u2500\u25b6 Because a==1 depends on b>=2 and c==1 depends on b<2, we can\n"
        "      conclude that a==1 and c==1 are incompatible.\n"
        "      And because you require a==1 and c==1, your requirements are unsatisfiable.\n"
    )
    assert refusal.resolver_lines(text) == (
        (
            "a==1 depends on b>=2 and c==1 depends on b<2, we can conclude that a==1 and"
            " c==1 are incompatible."
        ),
        "you require a==1 and c==1, your requirements are unsatisfiable.",
    )


def test_long_resolver_explanation_is_shortened_and_has_no_hints():
    steps = [f"a{number}==1 depends on a{number + 1}>=2" for number in range(9)]
    text = "Because " + ". And because ".join(steps) + ".\n\n      hint: Pre-releases are not"
    lines = refusal.resolver_lines(f"  \u00d7 No solution found:\n  {text}\n")
    assert lines[:2] == ("a0==1 depends on a1>=2.", "a1==1 depends on a2>=2.")
    assert lines[2] == "… 4 steps of the resolver's explanation …"
    assert lines[-1] == "a8==1 depends on a9>=2."
    assert len(lines) == refusal.STEPS
    (line,) = refusal.resolver_lines("Because " + "any of: a, " * 99)
    assert (len(line), line[-1]) == (refusal.LINE, "…")
