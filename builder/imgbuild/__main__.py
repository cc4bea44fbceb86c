"""`python -m imgbuild` is `imgbuild`."""

from imgbuild.cli import main

if __name__ == "__main__":
    main()
