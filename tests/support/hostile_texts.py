"""Lists texts that end a word, line, comment or section of a language and start a command.

The command creates the file $CANARY.
"""

from __future__ import annotations

RUN = "touch $CANARY"
PAYLOADS = (
    f"$({RUN})", f"`{RUN}`", f'"; {RUN}; "', f"'; {RUN}; '", f"; {RUN} #", f"& {RUN} &",
    f"| {RUN}", f"\\'; {RUN}; \\'", f"'\\''$({RUN})", f"%setup {RUN}", "%setup", "{{ x }}", "{{{{",
    f"x {RUN}", "<<EOF", "\\", "x\\", "'", '"', "$HOME ${HOME}", "# syntax=evil/x", "~", "*", "-x",
    "--index-url https://evil.example", "a#b", "é 🙂", "a: b", "]]>", "-->", "</script>", "|", "{%",
    "#SBATCH --wrap=x", f"'\"'\"'$({RUN})", f"$'\\n{RUN}'", "!!", "--", "=",
)  # fmt: skip
BREAKS = tuple(
    before + RUN + after
    for before in (
        *("\n", "\nEND\n", "x\n%setup\n", "\\\n", "\r\n", "\nRUN ", "\n[[x]]\n", "\n    "),
        "\n#SBATCH --wrap=x\n",
    )
    for after in ("", "\n")
)
# Those that a word of a shell script can contain.
WORDS = tuple(text for text in (*PAYLOADS, *BREAKS) if "\r" not in text)


def path_component(text: str) -> str:
    """`text` as a component of a path."""
    return text.replace("/", "_")
