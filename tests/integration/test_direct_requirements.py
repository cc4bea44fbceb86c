"""Tests packages required by URL, as wheels and git repositories."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from imgbuild import codec
from imgbuild.assemble import image_layout
from imgbuild.assemble.inputs import Inputs
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import InputError, IntegrityError, NoSolution
from imgbuild.http.client import HttpClient
from imgbuild.learn.loop import AuditedResolution, resolve_audited
from imgbuild.lock.lock_file import Lock, decode_lock, make_lock
from imgbuild.lock.published import ExtendedMatrix, PublishedTarget, TargetOverlay, load_matrix
from imgbuild.lock.resolution import Resolution
from imgbuild.matrix.extension import Extension
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.project_paths import Project
from imgbuild.pipeline.audit_lock import audit_lock
from imgbuild.pipeline.lock_target import lock_target
from imgbuild.solve.sdists import host_arch
from imgbuild.values import Digest, sha256
from tests.support import needs, sample_project
from tests.support.git_repository import GitRepository, project_files
from tests.support.local_index import LocalIndex, wheel_bytes
from tests.support.sample_project import TARGET
from tests.support.servers import FileSite, serve_site

pytestmark = [pytest.mark.network, pytest.mark.engine]
BASE = (
    '{"kind": "debian", "suite": "bookworm", "python": "3.11", "glibc": "2.36",'
    ' "packages": ["python3", "usr-is-merged"]}'
)
PYPROJECT = """\
[build-system]
requires = [{requires}]
build-backend = "own"
backend-path = ["."]
"""
# It builds a wheel without any other package.
BACKEND = """\
import os, zipfile
def build_wheel(folder, settings=None, metadata=None):
    version = os.environ.get("SETUPTOOLS_SCM_PRETEND_VERSION", "3.0")
    name = f"fromgit-{version}-py3-none-any.whl"
    info = f"fromgit-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", "Name: fromgit", f"Version: {version}",
             "Provides-Extra: more", 'Requires-Dist: another; extra == "more"', *REQUIRES]
    files = {
        "fromgit.py": open("fromgit.py").read(),
        f"{info}/METADATA": "\\n".join(lines) + "\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        rows = [f"{path},," for path in files]
        archive.writestr(f"{info}/RECORD", "\\n".join([*rows, f"{info}/RECORD,,", ""]))
    return name
"""


def git_files(*requires: str, scm: bool = False) -> dict[str, str | bytes]:
    """The files of a package `fromgit` with `requires` in its METADATA."""
    lines = [f"Requires-Dist: {line}" for line in requires]
    comment = "# use_scm_version\n" if scm else ""
    return {
        "pyproject.toml": comment + PYPROJECT.format(requires=""),
        "own.py": f"REQUIRES = {lines!r}\n{BACKEND}",
        "fromgit.py": "import byurl\n",
    }


@dataclass
class Workplace:
    """A project with a matrix of small packages, an index and other servers."""

    site: FileSite
    index: LocalIndex
    repository: GitRepository
    matrix: Matrix
    folder: Path
    cache: Path

    def context(self, *, offline: bool = False, cache: Path | None = None) -> Context:
        return Context(Store.open(cache or self.cache), HttpClient(attempts=2, offline=offline))

    def resolve_audited(self, *texts: str, file: str = "") -> AuditedResolution:
        """Resolve and audit a row whose requirements file has `texts`."""
        (self.folder / "requirements.txt").write_text(file)
        files = ("requirements.txt",) if file else ()
        row = Extension(summary="ours", like=TARGET, add=texts, requirements=files)
        lock = make_lock(self.matrix, TARGET, {host_arch(): Resolution(wheels=())})
        published = PublishedTarget(
            name=TARGET, folder=self.folder, lock=lock, hash="0" * 64, image="",
            digest=Digest(f"sha256:{'0' * 64}"), manifests={},
        )  # fmt: skip
        overlay = TargetOverlay(row=row, published=published, folder=self.folder)
        values = {**msgspec.structs.asdict(self.matrix), "overlays": {TARGET: overlay}}
        return resolve_audited(
            ExtendedMatrix(**values), TARGET, [host_arch()], self.context(), (), tuple
        )

    def lock(self, *texts: str) -> Lock:
        settled = self.resolve_audited(*texts)
        lock = make_lock(self.matrix, TARGET, dict(settled.resolutions))
        return msgspec.structs.replace(lock, project=settled.sources)


@pytest.fixture(name="shared_cache", scope="module")
def _shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that contains the Debian packages of the base."""
    needs.user_namespaces()
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(name="work")
def _work(tmp_path: Path, shared_cache: Path) -> Iterator[Workplace]:
    index = sample_project.sample_index()
    byurl = wheel_bytes("byurl", "1.5", ["helper"], {"byurl.py": b"import helper\n"})
    with serve_site(FileSite(files=index.site_files())) as site:
        site.files["files/byurl-1.5-py3-none-any.whl"] = byurl
        folder = tmp_path / "project"
        folder.mkdir()
        text = sample_project.MATRIX.format(
            base=BASE, thewheel="1.0", arches=host_arch(), user="trainer", uid=1234
        ).replace("pypi: {}", f"pypi: {{url: '{site.url('simple')}'}}")
        (folder / "matrix.yaml").write_text(text)
        repository = GitRepository(tmp_path / "repository")
        yield Workplace(
            site, index, repository, load_matrix(folder / "matrix.yaml"), folder, shared_cache
        )


def byurl(work: Workplace, **fragment: str) -> str:
    end = "".join(f"#{key}={value}" for key, value in fragment.items())
    return f"byurl @ {work.site.url('files/byurl-1.5-py3-none-any.whl')}{end}"


def test_wheel_by_url_and_git_repository_are_locked_and_rebuilt(work, tmp_path):
    commit = work.repository.commit(git_files("byurl>=1"), tag="v1.2")
    work.site.files.update(work.repository.dumb_files("fromgit.git"))
    url = work.site.url("fromgit.git")
    lock = work.lock(byurl(work), f"fromgit[more] @ git+{url}@v1.2")
    assert lock.project is not None
    assert lock.project.sources == {
        "byurl": work.site.url("files/byurl-1.5-py3-none-any.whl"),
        "fromgit": f"git+{url}@{commit}",
    }
    assert lock.project.trees == {"fromgit": work.repository.git("rev-parse", "HEAD^{tree}")}
    resolution = lock.arch[host_arch()]
    indexes = {item.package: item.index for item in (*resolution.wheels, *resolution.built)}
    assert (indexes["byurl"], indexes["fromgit"], indexes["helper"]) == ("url", "git", "pypi")
    assert resolution.versions["fromgit"] == "3.0"
    assert "another" in resolution.versions  # of the extra
    project = Project(matrix=work.folder / "matrix.yaml")
    lock, digests = lock_target(
        project, lock, Inputs(work.matrix, work.context()), processes=2, drop=False
    )
    base, *others = digests.arch[host_arch()].layers
    store = work.context().store
    assert store.blob(base.digest) is not None  # no later build is needed
    assert [layer.name for layer in others if store.blob(layer.digest)] == []
    assert decode_lock(codec.encode(lock), "lock.json", hint="", remedy="") == lock
    work.repository.git("tag", "--delete", "v1.2")
    # Another cache has the base and the root folder for builds, but no wheel.
    copy = tmp_path / "cache"
    shutil.copytree(work.cache, copy, symlinks=True, copy_function=os.link)
    shutil.rmtree(copy / "files")
    built = image_layout.build_layout(
        lock, digests, [host_arch()], tmp_path / "image",
        Inputs(work.matrix, work.context(cache=copy)), processes=2, verify=True,
    )  # fmt: skip
    assert built.digest == digests.digest
    # Fetched files are used without a server.
    offline = Inputs(work.matrix, work.context(cache=copy, offline=True))
    report = audit_lock(lock, host_arch(), offline, checks=("metadata", "imports"))
    assert [finding.message for finding in report.findings] == []


def test_wheel_with_hash_is_read_by_ranges(work):
    data = wheel_bytes("byurl", "1.5", files={"byurl.py": b"# read in parts\n"})
    work.site.files["files/byurl-1.5-py3-none-any.whl"] = data
    work.resolve_audited(byurl(work, sha256=sha256(data)))
    ranges = [
        headers.get("Range")
        for headers in work.site.received_requests("files/byurl-1.5-py3-none-any.whl")
    ]
    assert ranges
    assert all(ranges)


def test_wheel_with_wrong_hash_is_refused(work):
    wrong = "0" * 64
    settled = work.resolve_audited(byurl(work, sha256=wrong))
    lock = make_lock(work.matrix, TARGET, dict(settled.resolutions))
    lock = msgspec.structs.replace(lock, project=settled.sources)
    with pytest.raises(IntegrityError, match=r"byurl-1\.5"):
        Inputs(work.matrix, work.context()).fetch_missing(lock, {wrong})
    hashes = f"--hash=sha256:{wrong} --hash=sha256:{'1' * 64}"
    with pytest.raises(IntegrityError, match=r"requirements.txt:3 has 0000"):
        work.resolve_audited(file=f"\n\n{byurl(work)} {hashes}\n")
    with pytest.raises(InputError, match="has no sha256 hash"):
        work.resolve_audited(byurl(work, sha512="00"))


def test_project_wheel_is_locked_by_path(work):
    (work.folder / "wheels").mkdir()
    name = "byurl-1.5-py3-none-any.whl"
    (work.folder / "wheels" / name).write_bytes(work.site.files[f"files/{name}"])
    settled = work.resolve_audited(file=f"./wheels/{name}\n")
    assert settled.resolutions[host_arch()].versions["byurl"] == "1.5"
    assert settled.sources.sources == {"byurl": f"wheels/{name}"}
    absolute = f"byurl @ {(work.folder / 'wheels' / name).as_uri()}"
    assert work.resolve_audited(absolute).sources == settled.sources


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "byurl-1.5-cp312-cp312-manylinux_2_17_x86_64.whl",
            "the wheel requires Linux x86_64, Python cp312",
        ),
        ("byurl-1.5-cp311-cp311-manylinux_2_39_x86_64.whl", "the target has Python 3.11"),
        ("byurl-1.5-py3-none-win_amd64.whl", "the wheel requires Windows amd64, Python py3"),
    ],
)
def test_error_for_an_incompatible_wheel_shows_the_wheel_tags(work, name, reason):
    with pytest.raises(NoSolution, match="is incompatible with this target") as caught:
        work.resolve_audited(f"byurl @ {work.site.url(f'files/{name}')}")
    assert reason in " ".join(caught.value.reasons)


def test_marker_can_exclude_a_requirement_by_url(work):
    other = f"byurl @ {work.site.url('files/byurl-1.5-py3-none-win_amd64.whl')}"
    settled = work.resolve_audited(f'{other} ; sys_platform == "win32"')
    assert "byurl" not in settled.resolutions[host_arch()].versions
    assert settled.sources.sources == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("byurl @ https://me:secret@files.example/byurl-1.5-py3-none-any.whl", "username"),
        ("byurl @ https://secret@files.example/byurl-1.5-py3-none-any.whl", "username"),
        ("byurl @ https://files.example/byurl-1.5-py3-none-any.whl?token=secret", r"\(token\)"),
        ("byurl @ http://files.example/byurl-1.5-py3-none-any.whl", "use https"),
        ("byurl @ ftp://files.example/byurl-1.5-py3-none-any.whl", "not a URL scheme"),
        ("byurl @ https://files.example/byurl-1.5.tar.gz", "does not end in .whl"),
        ("byurl @ https://files.example/other-1.5-py3-none-any.whl", "contains the package other"),
        ("byurl @ git+https://me:secret@git.example/a", "username"),
        ("byurl @ git+ext::sh", "not the URL of a repository"),
        ("byurl @ git+ssh://-oProxyCommand=x/a", "hyphen"),
        ("byurl @ git+ssh://git@git.example:team/a", "HOST/PATH"),
        ("byurl @ git+https://git.example/a@--upload-pack=x", "not the name of a branch"),
        ("byurl @ git+https://git.example/a#subdirectory=../b", "outside the project"),
        ("byurl @ file:///etc/byurl-1.5-py3-none-any.whl", "outside the project"),
        ("byurl @ file:///etc/passwd", "is not a wheel"),
    ],
)
def test_invalid_url_requirement_is_reported_with_line(work, text, message):
    with pytest.raises(InputError, match=message) as caught:
        work.resolve_audited(text)
    assert caught.value.message.startswith("matrix.yaml: byurl @ ")
    assert "secret@" not in caught.value.message
    assert "token=" not in caught.value.message


def test_two_urls_for_one_package_are_refused(work):
    other = byurl(work).replace("byurl-1.5", "byurl-1.6")
    with pytest.raises(InputError, match="byurl has two URLs"):
        work.resolve_audited(byurl(work), other)


def test_git_version_is_derived_from_history(work):
    work.repository.commit(git_files(scm=True), tag="v1.2")
    commit = work.repository.commit({"README": "more"})
    settled = work.resolve_audited(f"fromgit @ {work.repository.url}", byurl(work))
    (built,) = settled.resolutions[host_arch()].built
    assert built.version == f"1.3.dev1+g{commit[:9]}"
    assert built.env == {"SETUPTOOLS_SCM_PRETEND_VERSION": built.version}


@pytest.mark.long  # the previous test has the history
@pytest.mark.parametrize(
    ("requires", "backend", "extra"),
    [
        ("setuptools>=64', 'setuptools-scm>=8", "setuptools.build_meta", "[tool.setuptools_scm]"),
        ("hatchling', 'hatch-vcs", "hatchling.build", "[tool.hatch.version]\nsource = 'vcs'"),
    ],
)
def test_build_backends_derive_version_from_history(requires, backend, extra, work, tmp_path):
    pyproject = (
        f"[build-system]\nrequires = ['{requires}']\nbuild-backend = '{backend}'\n"
        f"[project]\nname = 'fromgit'\ndynamic = ['version']\n{extra}\n"
    )
    work.repository.commit({"pyproject.toml": pyproject, "fromgit.py": ""}, tag="v0.3.0")
    commit = work.repository.commit({"fromgit.py": "VALUE = 1\n"})
    public = msgspec.structs.replace(work.matrix.indexes["pypi"], url=None, upload_times="index")
    indexes = {**work.matrix.indexes, "public": public}
    target = msgspec.structs.replace(
        work.matrix.targets[TARGET],
        indexes=dict.fromkeys(("torch", "nvidia-cublas-cu12", "cuda-toolkit"), "pypi"),
        pins={"torch": "2.6.0"},
    )
    work.matrix = msgspec.structs.replace(
        work.matrix, indexes=indexes, default_index="public", targets={TARGET: target}
    )
    settled = work.resolve_audited(f"fromgit @ {work.repository.url}")
    (built,) = settled.resolutions[host_arch()].built
    assert built.version == f"0.3.1.dev1+g{commit[:9]}"
    assert built.sdist.file == f"fromgit-{built.version}.tar.gz"


def test_url_in_package_metadata_must_be_declared_by_the_user(work):
    work.repository.commit(git_files("byurl @ https://files.example/byurl-1.0-py3-none-any.whl"))
    line = f"fromgit @ {work.repository.url}"
    with pytest.raises(NoSolution) as caught:
        work.resolve_audited(line)
    assert caught.value.reasons == (
        "fromgit requires byurl @ https://files.example/byurl-1.0-py3-none-any.whl",
    )
    assert "add byurl to the requirements of the project" in str(caught.value.hint)
    settled = work.resolve_audited(line, byurl(work))
    assert settled.resolutions[host_arch()].versions["byurl"] == "1.5"


def test_repository_with_a_cuda_extension_is_refused_before_the_build(work):
    setup = "from torch.utils.cpp_extension import CUDAExtension\nCUDAExtension('a', ['a.cu'])\n"
    work.repository.commit({"setup.py": setup})
    with pytest.raises(NoSolution) as caught:
        work.resolve_audited(f"fromgit @ {work.repository.url}")
    assert caught.value.reasons == ("it compiles CUDA code: setup.py:1 has CUDAExtension",)
    assert "use a wheel for this Python, torch and CUDA" in str(caught.value.hint)


def test_error_for_a_failed_build_names_the_compiled_source_files(work):
    files = {**git_files(), "setup.py": "setup(ext_modules=[])", "own.py": "raise OSError('no c')"}
    work.repository.commit(files)
    with pytest.raises(NoSolution) as caught:
        work.resolve_audited(f"fromgit @ {work.repository.url}")
    assert caught.value.reasons[0] == "it compiles an extension module: setup.py:1 has ext_modules"
    assert any("no c" in reason for reason in caught.value.reasons)


def test_repository_of_another_package_is_refused(work):
    work.repository.commit(git_files())
    with pytest.raises(NoSolution) as caught:
        work.resolve_audited(f"other @ {work.repository.url}")
    assert caught.value.reasons[0].startswith("the build produced fromgit-3.0-py3")


def test_repository_whose_build_needs_a_submodule_is_refused(work, tmp_path):
    other = GitRepository(tmp_path / "other")
    other.commit(project_files())
    work.repository.git(
        "-c", "protocol.file.allow=always",
        "submodule", "--quiet", "add", str(other.folder), "third_party/cutlass",
    )  # fmt: skip
    work.repository.commit({**git_files(), "setup.py": "Path('third_party') / 'cutlass'\n"})
    with pytest.raises(NoSolution) as caught:
        work.resolve_audited(f"fromgit @ {work.repository.url}")
    assert "submodules third_party/cutlass" in caught.value.reasons[0]
