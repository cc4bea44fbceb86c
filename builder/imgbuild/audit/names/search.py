"""Lookups of names in the packages of a package set: the functions of this folder in one place.

The result is "unknown" or None where compiled code, or anything else that cannot be read, could
change it: a false alarm costs more than a missed error.
"""

from imgbuild.audit.names.classes import ancestors, attributes, class_of, follow, member, resolve
from imgbuild.audit.names.lookup import lookup
from imgbuild.audit.names.model import CallSignature, LookupResult, Modules, Opaque, Searchable
from imgbuild.audit.names.signature import parameters, signature

__all__ = [
    "CallSignature",
    "LookupResult",
    "Modules",
    "Opaque",
    "Searchable",
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
