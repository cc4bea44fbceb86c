"""The `resolve` verb: from a request to a package set, or to the reasons why there is none."""
