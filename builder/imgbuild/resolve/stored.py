"""Caches the results of `imgbuild resolve` for a day."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from imgbuild import codec
from imgbuild.cache.context import Context
from imgbuild.errors import InputError
from imgbuild.lock import lock_file
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.project_paths import Project
from imgbuild.resolve import answers, resolve_request
from imgbuild.resolve.answers import ResolveAnswer
from imgbuild.resolve.resolve_request import ResolveRequest
from imgbuild.solve import uv
from imgbuild.system.code_digest import code_digest
from imgbuild.values import sha256

FACT = "resolve"


def cached_answer(
    request: ResolveRequest,
    project: Project,
    matrix: Matrix,
    learned: Sequence[Constraint],
    context: Context,
    *,
    again: bool = False,
) -> ResolveAnswer:
    """Return the result of `answers.answer_request`, from the cache unless `again` is set.

    A cached result is valid on the same day (UTC), for the same request, matrix, locks,
    constraints, default index and code. Errors are not cached.
    """
    key = result_key(request, project, matrix, learned)
    data = None if again else context.store.fact(FACT, key)
    if data is not None:
        with contextlib.suppress(InputError):
            resolve_answer = codec.decode(
                data, ResolveAnswer, file=f"fact {FACT}", what="stored answer"
            )
            context.reporter.info("solved earlier today; use --again to solve again")
            return resolve_answer
    resolve_answer = answers.answer_request(request, project, matrix, learned, context)
    context.store.put_fact(FACT, key, codec.encode(resolve_answer))
    return resolve_answer


def result_key(
    request: ResolveRequest, project: Project, matrix: Matrix, learned: Sequence[Constraint]
) -> str:
    """Return a hash of all inputs on which a result depends."""
    locked = [lock_file.lock_path(project.images, name) for name in project.locked_targets()]
    index = matrix.indexes[matrix.default_index].url or uv.default_index()
    parts = (
        code_digest(__name__),
        resolve_request.today_utc().isoformat(),
        sha256(index.encode()),  # it may hold a password
        codec.encode_compact(request).decode(),
        codec.encode_compact(matrix).decode(),
        codec.encode_compact(list(learned)).decode(),
        *(sha256(path.read_bytes()) for path in locked),
    )
    return "\n".join(parts)
