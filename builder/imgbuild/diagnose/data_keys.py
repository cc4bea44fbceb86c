"""Explains fields that rows of a dataset do not have, and keys that checkpoints do not have."""

# A separate module: one kind of exception, of any package.
from __future__ import annotations

import re

from imgbuild.diagnose.exceptions import TraceFrame

READ = re.compile(
    r"(?P<holder>[A-Za-z_][\w.]{0,80}(?:\[['\"]?\w{1,60}['\"]?\]){0,3})"
    r"\[(?P<index>['\"][^'\"\]]{1,120}['\"]|[A-Za-z_][\w.]{0,80})\]"
)
# Names of variables that contain one row of a dataset, or a batch of them.
ROWS = re.compile(
    r"(?:^|[._])(?:examples?|rows?|row_dict|samples?|items?|docs?|records?|features?|data_item|"
    r"non_tensor_batch|extra_info|instances?|elements?|entry|datum|rows?_data|raw_data|"
    r"(?:\w{1,30}_)?(?:dataset|ds))(?:\W|$)"
)
# Names that are also used for other things, in code that prepares data.
SHORT = re.compile(r"(?:^|[._])(?:x|d|ex|e|s|line|data|batch|inputs?|info|messages?)(?:\W|$)")
PREPARES = re.compile(
    r"(?i)data|collat|reward|score|preproc|tokeniz|prompt|format|to_\w*(?:list|dict)|map_fn"
)
# Keys of a dictionary of data sets.
SPLITS = frozenset(("train", "training", "test", "validation", "valid", "val", "eval", "dev"))

# Names of variables that contain a checkpoint, and keys of what resumes training.
STATES = re.compile(
    r"(?:^|[._])(?:checkpoints?|ckpt|state_?dicts?|sd|saved|loaded)\w{0,20}(?:\W|$)"
)
LOADED = re.compile(r"torch\.load\([^\n]{0,160}\)\[['\"]\w{1,60}['\"]\]")
RESUMES = re.compile(r"(?i)optim|sched|rng|scaler|epoch|step|iteration")


def absent_field(raised: TraceFrame | None, key: str) -> tuple[str, str]:
    """Return cause and cure if a row of a dataset lacks the field `key`, else empty texts.

    `raised` is the frame that read it.
    """
    if raised is None or key in SPLITS or key.lstrip("-").isdigit():  # or the number of a row
        return "", ""
    if cause_and_cure := _absent_state(raised, key):
        return cause_and_cure
    prepares = PREPARES.search(f"{raised.file.rpartition('/')[2]}:{raised.name}") is not None
    for match in READ.finditer(raised.code):
        holder, index = match["holder"], match["index"]
        literal = index.strip("'\"")
        if index[0] in "'\"" and literal != key:
            continue
        if not (ROWS.search(holder) or (prepares and SHORT.search(holder))):
            continue
        cause = f"the data has no field {key}: {match[0]} reads it in a row that lacks it"
        cure = f"print the fields of that row (dataset.column_names, {holder}.keys()) and rename"
        cure += f" or add {key}, in the training and the validation data: preprocess the files as"
        cure += " this code expects them"
        if index == literal and not index.isupper():
            option = index.rpartition(".")[2]
            cure += f", or set {option} to a column that exists"
        else:
            cure += f"; if only some rows have it, read it by .get('{key}') in your own code"
        return cause, cure
    return "", ""


def _absent_state(raised: TraceFrame, key: str) -> tuple[str, str] | None:
    """Return cause and cure if the program reads the key `key` that a checkpoint lacks."""
    reads = (match for match in READ.finditer(raised.code) if match["index"].strip("'\"") == key)
    if raised.package or not (
        LOADED.search(raised.code) or any(STATES.search(match["holder"]) for match in reads)
    ):
        return None
    cause = f"the loaded checkpoint has no {key}: it was saved without it, or in another format"
    cause += " (weights alone, another framework, a file of a sharded checkpoint)"
    cure = f"print its keys: list(torch.load(PATH, map_location='cpu')); if one contains {key} in"
    cure += " another place, read it there"
    if RESUMES.search(key):
        return cause, (
            f"resume from the weights alone (without {key}: --no-load-optim, --finetune or the"
            " program's option for it), or load it as it was saved: sharded states of an optimizer"
            f" are in separate files, with a function of their own; {cure}"
        )
    return cause, f"{cure}; a file of weights alone is passed to load_state_dict as a whole"
