"""Lists accepted differences between an assembled and an installed Debian root, with reasons.

Names with `_OF` contain the differences of one suite, by code name.
"""

from __future__ import annotations

# Paths that exist only in the installed root.
ONLY_REAL = {
    r"dev/.+": "the container runtime provides devices",
    r"etc/(\.pwd\.lock|(passwd|group|gshadow)-)": "account tools write locks and backups",
    r"etc/(fstab|hostname|resolv\.conf)": "the container runtime mounts its files",
    r"etc/dpkg/dpkg\.cfg\.d/99mmdebstrap": "mmdebstrap writes its list of omitted paths",
    r"etc/rc[06S]\.d/[KS]01(hwclock\.sh|procps)": "no init runs that starts these services",
    r"etc/systemd/system/timers\.target\.wants(/.+)?": "systemd is not installed",
    r"usr/lib/python3(\.\d+)?/(.+/)?__pycache__(/.+)?": "bytecode differs in each run",
    r"usr/share/python3/(.+/)?__pycache__(/.+)?": "bytecode differs in each run",
    r"usr/share/info/dir": "the index lists info pages, which are omitted",
    r"var/(cache/apt/archives|lib/apt/lists)/lock": "locks are created at each use",
    r"var/lib/apt/extended_states": "apt keeps every package without this list",
    r"var/cache/debconf/.+": "debconf creates these files at first use",
    r"var/lib/dpkg/(lock|lock-frontend|triggers/Lock)": "locks are created at each use",
    r"var/lib/dpkg/.+-old": "dpkg backs up its state",
    r"var/lib/systemd/deb-systemd-helper-enabled(/.+)?": "systemd is not installed",
}
ONLY_REAL_OF: dict[str, dict[str, str]] = {
    "bookworm": {},
    "trixie": {
        r"etc/apt/sources\.list": "the installed root has another mirror",
        r"etc/systemd/user/sockets\.target\.wants(/.+)?": "systemd is not installed",
        r"var/lib/systemd/deb-systemd-user-helper-enabled(/.+)?": "systemd is not installed",
    },
}
# Only folders and links of these may be missing in the assembled root.
ONLY_REAL_EMPTY = {
    r"usr/share/doc/.+": "these folders and links belong to omitted documentation",
}
ONLY_OURS = {
    r"etc/dpkg/dpkg\.cfg\.d/imgbuild": "dpkg omits these paths in packages that users add",
}
ONLY_OURS_OF: dict[str, dict[str, str]] = {
    "bookworm": {},
    "trixie": {
        r"etc/apt/sources\.list\.d/debian\.sources": "the file lists the mirrors of apt's example"
    },
}
OTHER_CONTENT_OF: dict[str, dict[str, str]] = {
    "bookworm": {
        r"etc/apt/sources\.list": "the installed root has another mirror",
    },
    "trixie": {},
}
OTHER_OWNER = {
    r"var/(cache/apt/archives|lib/apt/lists)/partial": "apt changes the owner at first use",
}
