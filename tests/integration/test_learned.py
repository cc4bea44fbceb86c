"""Tests resolving with constraints learned from audits, with local and real indexes."""

import datetime
from contextlib import ExitStack

import msgspec
import pytest
from packaging.specifiers import SpecifierSet

from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import NoSolution
from imgbuild.http.client import HttpClient
from imgbuild.learn import loop
from imgbuild.learn.loop import add_constraints
from imgbuild.matrix import constraints
from imgbuild.matrix.load import load_matrix
from imgbuild.matrix.model import RequiredPackage
from imgbuild.solve import solve, uv
from imgbuild.solve.problem import SolveProblem
from imgbuild.values import Arch
from tests.support import needs, samples
from tests.support.local_index import LocalIndex
from tests.support.servers import FileSite, serve_site
from tests.support.source_code import ROOT

WANTED = RequiredPackage(reason="for the test")
PINS = {"torch": "2.6.0", "vllm": "0.8.5"}

# vLLM 0.8 uses a name removed in transformers 5; TRL from 1.0 a module of vLLM 0.11.
HEAD = "VERSION = 1\n"
ENGINE = "from transformers.tokens import Old\nclass LLM:\n    pass\n"
VLLM = {"vllm/__init__.py": "from vllm.engine import LLM\n", "vllm/engine.py": ENGINE}
NEW_VLLM = {
    "vllm/__init__.py": "from vllm.engine import LLM\n",
    "vllm/engine.py": "class LLM:\n    pass\n",
    "vllm/net.py": "def port():\n    pass\n",
}
ASKS = 'import importlib.util\nif importlib.util.find_spec("vllm"):\n'
TRAINER = "class GRPOTrainer:\n    def __init__(self, model):\n        pass\n"
TRL = {"trl/__init__.py": "from trl.trainer import GRPOTrainer\n", "trl/trainer.py": TRAINER}
NEW_TRL = {**TRL, "trl/trainer.py": ASKS + "    from vllm.net import port\n" + TRAINER}
OLD_TOKENS = {"transformers/__init__.py": HEAD, "transformers/tokens.py": "class Old: pass\n"}
NEW_TOKENS = {"transformers/__init__.py": HEAD, "transformers/tokens.py": "class New: pass\n"}
TRITON = {"triton/__init__.py": HEAD + "import setuptools\ndef jit(f):\n    return f\n"}


def index():
    index = LocalIndex()
    index.wheel("cuda-toolkit", "12.4.1", ['nvidia-cublas-cu12==12.4.5.8; extra == "all"'])
    index.wheel("torch", "2.6.0", ["nvidia-cublas-cu12==12.4.5.8"])
    index.wheel("nvidia-cublas-cu12", "12.4.5.8")
    index.wheel("pip", "25.1")
    index.wheel("setuptools", "80.9.0", files={"setuptools/__init__.py": b"VERSION = 80\n"})
    for version, sources in {"0.8.5": VLLM, "0.10.0": VLLM, "0.11.0": NEW_VLLM}.items():
        _wheel(index, "vllm", version, sources, ["transformers>=4.40", "triton"])
    for version in ("0.17.0", "0.18.0", "1.0.0", "1.1.0", "1.2.0"):
        sources = TRL if version.startswith("0") else NEW_TRL
        _wheel(index, "trl", version, sources, ["transformers"])
    for version in ("4.40.0", "4.50.0", "4.57.6", "5.0.0", "5.1.0"):
        sources = OLD_TOKENS if version.startswith("4") else NEW_TOKENS
        _wheel(index, "transformers", version, sources, [])
    _wheel(index, "triton", "3.2.0", TRITON, [])
    return index


def _wheel(index, package, version, sources, requires):
    files = {path: text.encode() for path, text in sources.items()}
    index.wheel(package, version, requires, files=files)


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


class Small:
    """A small image with packages of a local index and learned constraints."""

    def __init__(self, stack, monkeypatch, folder, **changes):
        self.site = stack.enter_context(serve_site(FileSite(files=index().site_files())))
        monkeypatch.setenv("UV_DEFAULT_INDEX", self.site.url("simple"))
        uv.default_index.cache_clear()
        stack.callback(uv.default_index.cache_clear)
        self.images = folder / "images"
        self.store = Store.open(folder / "cache")
        self.http = HttpClient(attempts=1)
        self.matrix = samples.matrix(**changes)
        self.kept = []

    def keep(self, learned):
        self.kept.append(tuple(learned))
        return add_constraints(self.images, learned, self.store)

    def resolve_audited(self):
        problem = SolveProblem(self.matrix, "small", Arch.X86_64, Context(self.store, self.http))
        prepared = solve.prepare_target(problem, "3.11.2", no_root)
        return loop.resolve_audited_arch(
            prepared, constraints.read_constraints(self.images), self.keep
        )


def no_root():
    raise AssertionError("no package must be built from an sdist")


def test_learned_constraints_lead_to_compatible_versions(stack, monkeypatch, tmp_path):
    small = Small(stack, monkeypatch, tmp_path, pins=PINS, requires={"trl": WANTED})
    settlement = small.resolve_audited()
    versions = settlement.resolution.versions
    assert (versions["vllm"], versions["trl"]) == ("0.8.5", "0.18.0")
    assert (versions["transformers"], versions["setuptools"]) == ("4.57.6", "80.9.0")
    assert settlement.report.ok
    learned = {entry.package: entry for entry in constraints.read_constraints(small.images)}
    assert learned["vllm"].versions == "==0.8.5"
    assert (learned["vllm"].needs, learned["vllm"].went) == ("transformers<5.0.0", "5.0.0")
    assert (learned["vllm"].file, learned["vllm"].line) == ("vllm/engine.py", 1)
    assert (learned["trl"].versions, learned["trl"].needs) == (">=1.0.0,<=1.2.0", "vllm>=0.11.0")
    assert (learned["triton"].needs, learned["triton"].missing) == ("setuptools", True)
    whole = [
        path
        for _, path, headers in small.site.requests
        if path.endswith(".whl") and "Range" not in headers
    ]
    assert whole == []  # no wheel was downloaded


@pytest.mark.long
def test_learned_constraints_are_reused(stack, monkeypatch, tmp_path):
    small = Small(stack, monkeypatch, tmp_path, pins=PINS, requires={"trl": WANTED})
    first = small.resolve_audited()
    text = constraints.constraints_path(small.images).read_bytes()
    small.kept.clear()
    second = small.resolve_audited()
    assert (first.rounds > 1, second.rounds) == (True, 1)
    assert small.kept == []
    assert second.resolution == first.resolution
    assert constraints.constraints_path(small.images).read_bytes() == text


@pytest.mark.long  # unit/learn/test_learn.py has the rule
def test_learned_constraint_adds_no_package(stack, monkeypatch, tmp_path):
    small = Small(stack, monkeypatch, tmp_path, pins=PINS, requires={"trl": WANTED})
    small.resolve_audited()
    small.matrix = samples.matrix(pins={"torch": "2.6.0"}, requires={"trl": WANTED})
    versions = small.resolve_audited().resolution.versions
    assert versions["trl"] == "1.2.0"
    assert "vllm" not in versions
    assert versions["transformers"] == "5.1.0"


def test_incompatible_pins_are_refused_with_learned_constraints(stack, monkeypatch, tmp_path):
    small = Small(stack, monkeypatch, tmp_path, pins={**PINS, "trl": "1.2.0"})
    with pytest.raises(NoSolution) as caught:
        small.resolve_audited()
    text = "\n".join(caught.value.reasons)
    assert "trl==1.2.0 needs vllm>=0.11.0 (imports, trl/trainer.py:3, vllm.net" in text


def test_interrupted_run_resumes_with_learned_constraints(stack, monkeypatch, tmp_path):
    small = Small(stack, monkeypatch, tmp_path, pins=PINS, requires={"trl": WANTED})
    ask = solve.choose_packages
    calls = []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return ask(*arguments)

    monkeypatch.setattr(solve, "choose_packages", interrupted)
    with pytest.raises(KeyboardInterrupt):
        small.resolve_audited()
    assert constraints.read_constraints(small.images)
    monkeypatch.setattr(solve, "choose_packages", ask)
    small.kept.clear()
    assert small.resolve_audited().resolution.versions["trl"] == "0.18.0"
    assert not any("transformers" in entry.needs for once in small.kept for entry in once)


@pytest.mark.long
@pytest.mark.network
@pytest.mark.timeout(1800)
def test_old_vllm_without_a_cutoff_date_gets_compatible_versions(tmp_path):
    needs.require_network()
    repository_matrix = load_matrix(ROOT / "matrix.yaml")
    target = msgspec.structs.replace(
        repository_matrix.targets["cu124-vllm"],
        as_of=datetime.date(2100, 1, 1),
        arch=(Arch.X86_64,),
        pins={"torch": "2.6.0", "vllm": "0.8.5.post1"},
        requires={"trl": WANTED},
        waive=(),
    )
    matrix = msgspec.structs.replace(repository_matrix, targets={"old": target})
    store = Store.open(tmp_path / "cache")
    problem = SolveProblem(matrix, "old", Arch.X86_64, Context(store, HttpClient()))
    settled = loop.resolve_audited_arch(
        solve.prepare_target(problem, "3.11.2", no_root),
        (),
        lambda learned: add_constraints(tmp_path / "images", learned, store),
    )
    versions = settled.resolution.versions
    assert versions["vllm"] == "0.8.5.post1"
    assert versions["trl"] in SpecifierSet(
        ">=0.18,<0.27"
    )  # with colocated vLLM, and with its names
    assert versions["transformers"] in SpecifierSet(">=4.51.1,<5")
    assert versions["huggingface-hub"] in SpecifierSet("<1")
    assert "setuptools" in versions  # Triton imports it and does not declare it
    learned = constraints.read_constraints(tmp_path / "images")
    tokens = [entry for entry in learned if entry.name.endswith("all_special_tokens_extended")]
    assert [(entry.package, entry.needs) for entry in tokens] == [("vllm", "transformers<5.0.0")]
