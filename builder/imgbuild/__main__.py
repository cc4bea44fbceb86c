"""Runs the command line for `python -m imgbuild`."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the current folder: nothing else is imported from there
    from imgbuild.cli import main

    main()
