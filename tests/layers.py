"""Who may import whom: the columns of the program, left to right, and the doors.

A module imports its own column and those left of it. A new module is added to its column here;
tests/test_repository.py fails for one that has none.
"""

from __future__ import annotations

# Names are relative to imgbuild; "wheel.*" is every module of that package.
COLUMNS: tuple[tuple[str, ...], ...] = (
    ("", "errors"),
    (
        "values",
        "codec",
        "report",
        "matrix.model",
        "resolution",
        "oci.tar",
        "oci.documents",
        "audit.facts",
    ),
    ("console", "steps", "run", "disk", "threads"),
    ("credentials", "fetch_headers", "fetch_folder", "fetch_session", "fetch_http", "store", "upkeep", "fetch"),
    ("registry.*",),
    ("project", "matrix.*"),
    ("constraints",),
    # Left of `resolve`, since it builds sdists in a root, and a root is a recipe of the plan.
    ("drift", "lock", "plan", "extend", "extend_lock", "mirrored"),
    ("oci.content", "oci.layer", "oci.tree", "oci.unpack", "oci.registry"),
    ("wheel.metadata", "indexes", "remote"),
    ("sandbox", "wheel.*", "deb.*"),
    ("bases", "roots"),
    (
        "cuda",
        "selection",
        "uv",
        "gateway",
        "freshness",
        "refusal",
        "torches",
        "chain",
        "extend_base",
        "nearest",
        "behind",
        "sdists",
    ),
    ("audit.*",),
    ("resolve",),
    ("requirements", "rows", "sources", "whys", "wishes", "extend_init"),
    ("probe", "past", "learn", "settle"),
    ("records", "skeleton", "oci.*"),
    ("mirror",),
    ("assemble", "workers", "inputs"),
    ("seal", "diff", "history"),
    ("mirroring", "holdings", "gc", "claims"),
    ("sbom.*",),
    ("attach", "provenance", "carried", "inside"),
    ("signing.*",),
    ("push_plan", "pull", "listing", "tagging", "difference"),
    ("render.*",),
    ("sif.*",),
    (
        "engine",
        "apptainer",
        "driver",
        "runner",
        "smoke",
        "smoke_sif",
        "kernels",
        "host",
        "doctor",
        "checkup",
        "slurm",
        "cluster",
        "buildkit",
        "buildkit_progress",
        "podman",
    ),
    ("accepting", "compare"),
    (
        "extend_folders",
        "extend_layers",
        "building",
        "contexts",
        "push",
        "sealing",
        "auditing",
        "glance",
        "pythons",
        "rendering",
        "surveys",
        "extend_explain",
        "worlds",
        "states",
        "pipeline",
        "rebuilding",
        "foreign",
    ),
    ("verifying.*",),
    ("ci.*",),
    ("cli.*", "__main__"),
)

# What only doors may import, and which modules are its doors.
DOORS: dict[str, tuple[str, ...]] = {
    "subprocess": ("run",),
    "requests": ("fetch", "fetch_folder", "fetch_http", "fetch_session"),
    "urllib3": ("fetch", "fetch_folder", "fetch_http", "fetch_session"),
    "urllib.request": ("fetch", "fetch_http", "fetch_session"),
    "http.client": ("fetch", "fetch_http", "fetch_session"),
    "http.server": ("gateway",),
    "socketserver": ("gateway",),
    "socket": ("fetch", "fetch_http", "fetch_session", "gateway"),
}

# Calls that only doors may make.
CALLS: dict[str, tuple[str, ...]] = {
    "print": ("console",),
    "sys.exit": ("cli.*", "__main__"),
    "os._exit": ("cli.*", "__main__"),
    "SystemExit": ("cli.*", "__main__"),
    "os.system": ("run",),
    "os.popen": ("run",),
    "os.execv": ("run",),
    "os.execve": ("run",),
    "os.execvp": ("run",),
    "os.posix_spawn": ("run",),
}

# What `imgbuild digest` must not load, since it has 0.3 s from start to end.
HEAVY = (
    "requests",
    "cryptography",
    "nacl",
    "rich.progress",
    "elftools",
    "yaml",
    "jinja2",
    "hypothesis",
    "uv",
)
