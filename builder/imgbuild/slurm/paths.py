"""What a job script does with variables whose value is a path; see `container.path_variables`.

The variables are those that are set when the job runs, so the script has the table.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from imgbuild.container import path_variables

OWN = ("HF_HOME", "TMPDIR")  # the script itself reads and sets them
# Patterns of the variables that reach the image under Apptainer.
FAMILIES = (
    "HF_*", "HUGGING_FACE_*", "WANDB_*", "MLFLOW_*", "NCCL_*", "GLOO_*", "UCX_*", "FI_*", "TORCH_*",
    "PYTORCH_*", "VLLM_*", "RAY_*", "TRITON_*", "OMP_*", "MKL_*", "OPENBLAS_*",
)  # fmt: skip


class HostOnly(msgspec.Struct, frozen=True):
    """Variables that are not passed, for one reason."""

    reason: str
    names: tuple[str, ...]


class JobPaths(msgspec.Struct, frozen=True, kw_only=True):
    """The table for a job script.

    `mounted` has KIND:NAME with KIND folder, file or new. `families` are patterns of other
    variables that are passed, `named` path variables that `--env` passes.
    """

    mounted: tuple[str, ...]
    left_out: tuple[HostOnly, ...]
    families: tuple[str, ...]
    named: tuple[str, ...]

    @property
    def passed(self) -> tuple[str, ...]:
        """Patterns of all variables that may reach the image."""
        return (*self.families, *self.named)


def job_paths(values: Collection[str], passed: Collection[str]) -> JobPaths:
    """The table for a script in which `--env` sets `values`, and passes on the names `passed`."""
    mounted = []
    left_out = []
    for row in path_variables.table():
        if row.use == "mounted":
            kind = row.holds.split()[0]
            mounted += [f"{kind}:{name}" for name in row.names if name not in (*values, *OWN)]
            continue
        without = (*values, *passed, *OWN)
        names = tuple(name for name in row.names if name not in without)
        left_out += [HostOnly(row.reason, names)] if names else []
    named = tuple(sorted(path_variables.names().intersection(passed)))
    return JobPaths(
        mounted=tuple(mounted), left_out=tuple(left_out), families=FAMILIES, named=named
    )
