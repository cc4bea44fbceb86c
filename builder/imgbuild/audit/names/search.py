"""Names of the packages of a world, from the side that provides them.

Input: a world's modules. Output: whether a module has a name, what it is, what calling it
takes, which attributes it has. "unknown" and None are the answers wherever compiled code or
anything else that cannot be read could change it; a false alarm costs more than a missed fault.
"""

from imgbuild.audit.names.classes import ancestors, attributes, class_of, follow, member, resolve
from imgbuild.audit.names.lookup import lookup
from imgbuild.audit.names.model import Found, Modules, Opaque, Searchable, Signature
from imgbuild.audit.names.signature import parameters, signature

__all__ = [
    "Found",
    "Modules",
    "Opaque",
    "Searchable",
    "Signature",
    "ancestors",
    "attributes",
    "class_of",
    "follow",
    "lookup",
    "member",
    "parameters",
    "resolve",
    "signature",
]
