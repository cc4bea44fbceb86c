"""Lists the order of imgbuild's folders, and the modules allowed to use certain imports and calls.

A folder imports only from lower levels. tests/test_repository.py checks this, including lazy and
type-only imports.
"""

from __future__ import annotations

# Modules next to the folders.
ROOT_MODULES = ("errors", "values", "report", "codec")

# Lowest first.
LEVELS: tuple[tuple[str, ...], ...] = (
    ("errors", "values", "report"),
    ("system",),
    ("codec",),
    ("matrix", "oci", "http"),
    ("project",),
    ("lock", "wheel"),
    ("plan", "index", "cache"),
    ("registry", "deb", "cpython", "container"),
    ("solve", "audit", "attest", "sif"),
    ("assemble", "cves", "diagnose", "learn", "smoke"),
    ("resolve", "show", "render", "doctor"),
    ("pipeline", "slurm", "site"),
    ("ci", "publish", "update", "verify"),
    ("cli", "__main__"),
)

# Which modules may import these; tests/test_repository.py and ruff (TID251) check it.
IMPORTERS: dict[str, tuple[str, ...]] = {
    "subprocess": ("system.process",),
    "multiprocessing": (),  # its processes import from the current folder: see system.workers
    "requests": ("http.*", "cache.download"),
    "urllib3": ("http.*", "cache.download"),
    "urllib.request": ("http.*", "cache.download"),
    "http.client": ("http.*", "cache.download"),
    "http.server": ("index.server",),
    "socketserver": ("index.server",),
    "socket": ("http.*", "cache.download", "index.server", "system.terminal"),
}

# Folders and modules that may print. Other stages report through `system.reporter`, or in their
# result. `system.process` is an exception: it shows each command with -v, wherever it is run from,
# and passing a reporter through every caller would only repeat the one console.
PRINTERS = ("cli", "pipeline", "system.process")

# Which modules may call these.
CALLERS: dict[str, tuple[str, ...]] = {
    "print": ("system.console",),
    "sys.exit": ("cli.*", "__main__"),
    "os._exit": ("cli.*", "__main__", "container.enclosure", "system.forked"),  # copies of it
    "SystemExit": ("cli.*", "__main__"),
    "os.system": ("system.process",),
    "os.popen": ("system.process",),
    # It also searches relative folders of PATH, such as the current one.
    "shutil.which": ("system.programs",),
    "os.execv": ("system.process",),
    "os.execve": ("system.process", "container.enclosure"),
    "os.execvp": ("system.process",),
    "os.posix_spawn": ("system.process",),
    # Not in two threads at once: see system.syntax.
    "ast.parse": ("system.syntax",),
    "ast.literal_eval": (
        "system.syntax",
        "audit.checks.support_files",
    ),  # the second for a tree
    "Requirement": ("system.syntax",),
    # Types are analyzed in one thread at a time: see system.decoding.
    "msgspec.convert": ("system.decoding",),
    "msgspec.json.Decoder": ("system.decoding",),
    "msgspec.msgpack.Decoder": ("system.decoding",),
}

# Modules that `imgbuild digest` must not import, since it must finish in 0.3 s.
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

# Classes that may extend one of their own folder, apart from protocols and values: typer's group of
# all verbs, an error of a more general one, a stored value with more fields, the levels of
# the audit's interpreter: expressions, statements, one evaluation.
EXTENDING = (
    *("ProgramGroup", "_ImpossibleResponse", "ImageRun"),
    *("ExpressionValues", "Execution", "Evaluation"),
)
