"""Finds the releases of packages whose functions accept a parameter.

`tools/parameter_versions.py` generates the data in `data/diagnose/parameters/` from published
wheels. The data list parameters that some, but not all, versions of a function accept.
"""

from __future__ import annotations

import re
from functools import lru_cache

from imgbuild.audit.names.releases import Existence, renamed_parameter
from imgbuild.system import files

HEAD = re.compile(
    r"package: (?P<package>\S+)\nfirst: '?(?P<first>[^'\n]+)'?\nlast: '?(?P<last>[^'\n]+)'?\n"
)
QUOTED = ("yes", "no", "on", "off", "null", "true", "false")  # other values in YAML
ROW = re.compile(r"    '?(?P<spec>[^':]+)'?: (?P<functions>.+)")


@lru_cache(maxsize=1)
def _texts() -> tuple[str, ...]:
    """Return the files of all packages. Parsing them would take longer than searching them."""
    folder = files.data("diagnose/parameters")
    return tuple(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.yaml")))


def accepting_releases(function: str, name: str) -> dict[str, Existence]:
    """Map packages to their versions in which `function` accepts the parameter `name`.

    `function` is a function or Class.method.
    """
    key = f"'{name}'" if name in QUOTED else name
    found = {}
    for text in _texts():
        _, start, rest = text.partition(f"\n  {key}:\n")
        head = HEAD.match(text)
        if not start or head is None:
            continue
        for line in rest.splitlines():
            row = ROW.match(line)
            if row is None:
                break
            if function in row["functions"].split():
                package, spec = head["package"], row["spec"]
                new = renamed_parameter(package, function.removesuffix(".__init__"), name)
                instead = new if "<" in spec else ""
                found[package] = Existence(**head.groupdict(), spec=spec, instead=instead)
    return found


def is_listed(package: str, owner: str) -> bool:
    """Whether a function of a package's class has a parameter that only some versions accept."""
    return any(
        f" {owner}." in text for text in _texts() if text.startswith(f"package: {package}\n")
    )
