"""`resolve`: a package set for a request, or why there is none; `init`: a new repository."""
