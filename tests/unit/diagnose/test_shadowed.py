"""Tests that the file which replaces a package, and circular imports, are named."""

from __future__ import annotations

import io

from imgbuild.diagnose.diagnosis import diagnose_log
from imgbuild.diagnose.finding import LogFinding
from tests.support.rows import each_row

JOB = "/home/pump/job"
SITE = "/opt/venv/lib/python3.12/site-packages"
CIRCULAR = "(most likely due to a circular import)"


def first(*frames: tuple[str, str], error: str) -> LogFinding:
    """The first finding for a traceback of modules that are imported."""
    lines = "".join(f'  File "{file}", line 3, in <module>\n    {code}\n' for file, code in frames)
    text = f"Traceback (most recent call last):\n{lines}{error}\n"
    return diagnose_log(io.BytesIO(text.encode()), "log").findings[0]


@each_row(
    ("frames", "error", "cause"),
    [
        # Python 3.13 names the file.
        (
            [(f"{JOB}/train.py", "random.randint(5)")],
            (
                "AttributeError: module 'random' has no attribute 'randint' (consider renaming"
                f" '{JOB}/random.py' since it has the same name as the standard library module"
                " named 'random' and prevents importing that standard library module)"
            ),
            f"the file {JOB}/random.py of the project is imported instead of Python's own module",
        ),
        (
            [(f"{JOB}/numpy.py", "np.array([1])")],
            (
                f"AttributeError: module 'numpy' has no attribute 'array' (consider renaming"
                f" '{JOB}/numpy.py' if it has the same name as a library you intended to import)"
            ),
            f"the file {JOB}/numpy.py of the project is imported instead of the package numpy",
        ),
        # The error concerns another module than the file that a package imports by mistake.
        (
            [
                (f"{JOB}/infer.py", "import transformers"),
                (f"{SITE}/transformers/utils/generic.py", "import inspect"),
                (f"{JOB}/inspect.py", "transformers.AutoModel"),
            ],
            (
                "AttributeError: partially initialized module 'transformers' has no attribute"
                f" 'AutoModel' {CIRCULAR}"
            ),
            f"the file {JOB}/inspect.py of the project",
        ),
        (
            [(f"{JOB}/trl.py", "from trl import GRPOTrainer")] * 2,
            (
                f"ImportError: cannot import name 'GRPOTrainer' from partially initialized module"
                f" 'trl' {CIRCULAR} ({JOB}/trl.py)"
            ),
            f"the file {JOB}/trl.py of the project is imported instead of the package trl",
        ),
        (
            [(f"{JOB}/train.py", "from datasets import load_dataset")],
            (
                "ImportError: cannot import name 'load_dataset' from partially initialized module"
                f" 'datasets' {CIRCULAR} ({JOB}/datasets/__init__.py)"
            ),
            f"the folder {JOB}/datasets of the project is imported instead of the package datasets",
        ),
        # The log does not show the file, but Python's own module has the name.
        (
            [(f"{SITE}/transformers/trainer_utils.py", "json.loads(text)")],
            "AttributeError: module 'json' has no attribute 'loads'",
            "json is not Python's own module here: a file json.py or a folder json",
        ),
    ],
)
def test_file_that_replaces_a_package_is_named(
    frames: list[tuple[str, str]], error: str, cause: str
) -> None:
    finding = first(*frames, error=error)
    assert (finding.code, cause in finding.cause) == ("IMG633", True)


def test_cycle_of_the_project_names_its_files_in_order() -> None:
    finding = first(
        (f"{JOB}/main.py", "from models import Net"),
        (f"{JOB}/models.py", "from tools import load"),
        (f"{JOB}/tools.py", "from models import Net"),
        error=f"ImportError: cannot import name 'Net' from partially initialized module 'models'"
        f" {CIRCULAR} ({JOB}/models.py)",
    )
    assert (finding.code, finding.confidence) == ("IMG902", "high")
    assert "models.py, which imports" in finding.cause
    assert "tools.py, which imports models," in finding.cause


def test_cycle_within_a_package_is_not_explained_by_a_file_of_the_project() -> None:
    finding = first(
        (f"{JOB}/main.py", "import verl"),
        (f"{SITE}/verl/__init__.py", "from .protocol import DataProto"),
        (f"{SITE}/verl/protocol.py", "from verl import DataProto"),
        error="ImportError: cannot import name 'DataProto' from partially initialized module"
        f" 'verl' {CIRCULAR} ({SITE}/verl/__init__.py)",
    )
    assert "verl/__init__.py, which imports verl/protocol.py" in finding.cause
    assert "install verl again" in finding.cure
