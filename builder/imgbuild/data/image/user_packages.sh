
# Packages that a user adds (pip install) lie in @WORKDIR@, or where nobody can write there, in the
# home folder.
case "${PYTHONUSERBASE:-}" in
  "@WORKDIR@"/.imgbuild-packages/*)
    if [ ! -w "@WORKDIR@" ] && [ ! -w "$PYTHONUSERBASE" ]; then
      PATH="${PATH%":$PYTHONUSERBASE/bin"}"
      export PYTHONUSERBASE="$HOME/.local/share/imgbuild/${PYTHONUSERBASE##*/}"
      export PATH="$PATH:$PYTHONUSERBASE/bin"
    fi
    ;;
esac
