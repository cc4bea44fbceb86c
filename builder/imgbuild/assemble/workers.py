"""Builds layers in parallel in worker processes (`--jobs`), largest layers first."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import as_completed
from pathlib import Path

from imgbuild.assemble.layer_contents import BuiltLayer, LayerJob, make_layer
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.system.amounts import format_count
from imgbuild.system.reporter import ProgressBar
from imgbuild.system.workers import WorkerPool, report_progress

# Bytes of input: less is assembled faster than a process starts.
PARALLEL_MINIMUM = 2_000_000


def assemble_all(jobs: Sequence[LayerJob], context: Context, *, processes: int) -> list[BuiltLayer]:
    """Build the layers of `jobs` with up to `processes` processes.

    Finished layers stay in the store, even after an error.
    """
    if not jobs:
        return []
    total = sum(job.layer.recipe.input_size for job in jobs)
    largest_first = sorted(jobs, key=lambda job: -job.layer.recipe.input_size)
    with context.reporter.progress(f"assembling {format_count(len(jobs), 'layer')}", total) as bar:
        # The largest layer is assembled in this process if the others are small.
        others = sum(job.layer.recipe.input_size for job in largest_first[1:])
        if processes == 1 or others < PARALLEL_MINIMUM:
            return [make_layer(job, context.store, bar.advance) for job in largest_first]
        return _assemble_in_processes(largest_first, context.store, processes, bar)


def _assemble_in_processes(
    jobs: Sequence[LayerJob], store: Store, processes: int, bar: ProgressBar
) -> list[BuiltLayer]:
    workers = WorkerPool(min(processes, len(jobs)), bar.advance)
    try:
        futures = [workers.submit_call(_assemble_in_worker, job, store.root) for job in jobs]
        layers = [future.result() for future in as_completed(futures)]
    except BaseException:
        workers.stop()
        raise
    workers.close()
    return layers


def _assemble_in_worker(job: LayerJob, root: Path) -> BuiltLayer:
    return make_layer(job, Store.open(root), report_progress)
