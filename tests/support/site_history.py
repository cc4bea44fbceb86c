"""Provides a short history of targets, for tests of the site."""

from imgbuild.show.lock_changes import VersionChange
from imgbuild.site.history import DigestChange, SiteHistory
from imgbuild.values import Arch

CHANGE = DigestChange(
    date="2026-11-27T10:00:00+01:00",
    commit="a" * 40,
    subject="newer vLLM",
    digest=f"sha256:{'1' * 64}",
    sizes={Arch.X86_64: 4_000_000_000},
    changes=(VersionChange(package="vllm", old="0.8.4", new="0.8.5.post1"),),
)
HISTORY = SiteHistory(targets={"cu124-vllm": (CHANGE,), "gone": (CHANGE,)})
