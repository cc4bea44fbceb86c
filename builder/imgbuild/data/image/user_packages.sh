
# Packages that a user adds (pip install) lie in @WORKDIR@, or where this user cannot write there,
# in the home folder.
case "${PYTHONUSERBASE:-}" in
  "@WORKDIR@"/.imgbuild-packages/*)
    imgbuild_folder="$PYTHONUSERBASE"
    while [ ! -e "$imgbuild_folder" ] && [ "$imgbuild_folder" != "@WORKDIR@" ]; do
      imgbuild_folder="${imgbuild_folder%/*}"
    done
    if [ ! -w "$imgbuild_folder" ]; then
      PATH="${PATH%":$PYTHONUSERBASE/bin"}"
      export PYTHONUSERBASE="$HOME/.local/share/imgbuild/${PYTHONUSERBASE##*/}"
      export PATH="$PATH:$PYTHONUSERBASE/bin"
    fi
    unset imgbuild_folder
    ;;
esac
