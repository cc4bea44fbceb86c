"""Python source read into facts without running it: imports, calls, guards, versions."""
