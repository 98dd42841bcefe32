"""VTAB's 19 tasks (Zhai et al., arXiv 1910.04867) with 1,000 examples each, from folders, without TensorFlow.

A task is a folder of this name with `train800.txt`, `val200.txt` and `test.txt`: lines of FILE CLASS. ALIGN fine-tunes
all layers with 50 trials a task (section 5.3): `altalign train --sweep`. This is the linear probe in its place, with
the same examples: 800 are fitted and 200 choose the strength, then all 1,000 are fitted.
"""

from collections.abc import Mapping

import numpy as np

from altalign import storage
from altalign.errors import UnreadableError
from altalign.eval.encoded import Features
from altalign.eval.image_sources import Images
from altalign.eval.linear_probe import linear_probe
from altalign.eval.outcomes import Outcomes, Result
from altalign.eval.sets import classes_of_lists, labelled_set

GROUPS = {
    "natural": ("caltech101", "cifar", "dtd", "oxford_flowers102", "oxford_iiit_pet", "sun397", "svhn"),
    "specialised": ("patch_camelyon", "eurosat", "resisc45", "diabetic_retinopathy"),
    "structured": (
        "clevr_count", "clevr_dist", "dmlab", "dsprites_loc", "dsprites_ori", "kitti", "smallnorb_azi", "smallnorb_ele",
    ),
}  # fmt: skip
TASKS = tuple(name for group in GROUPS.values() for name in group)

_NO_TASK = "no folder of this task"


def tasks_in(folder: str) -> list[str]:
    """The tasks that are there. Raises UnreadableError: none is."""
    there = [name for name in TASKS if storage.exists(storage.join(folder, name, "test.txt"))]
    if not there:
        raise UnreadableError(f"{folder}: no folder of VTAB, as {TASKS[0]} with its test.txt; give the folder of them")
    return there


def lists_of(folder: str, task: str) -> list[str]:
    """The lists of a task: 800 examples, 200, and the test images."""
    return [storage.join(folder, task, f"{part}.txt") for part in ("train800", "val200", "test")]


def of_folder(folder: str, features: Features) -> tuple[Images, Result]:
    """The probe of every task that is there; the rows are the test images of all of them.

    Raises UnreadableError: no task is there, or a file of one is damaged.
    """
    there = tasks_in(folder)
    names = list[str]()
    rows, tasks, ranks = list[int](), list[int](), list[int]()
    left_out = {_NO_TASK: missing} if (missing := [name for name in TASKS if name not in there]) else {}
    for name in there:
        lists = lists_of(folder, name)
        classes = classes_of_lists(lists)
        train, held, test = (labelled_set(path, classes=classes) for path in lists)
        of = linear_probe(test, train, held, features)
        rows += [len(names) + row for row in of.rows]
        tasks += [TASKS.index(name)] * len(of.rows)
        ranks += of.outcomes["rank"].tolist()
        left_out |= {f"{name}: {why}": some for why, some in of.left_out.items()}
        names += [f"{name}/{one}" for one in test.images.names]
    outcomes = {"task": np.array(tasks), "rank": np.array(ranks)}
    facts = {"tasks": len(there), "of_tasks": len(TASKS)}
    return Images(names, names), Result(measured(outcomes), facts, outcomes, rows, left_out)


def measured(outcomes: Outcomes) -> dict[str, float]:
    """Top-1 in percent of each task that is there, their mean (`mean_there`), and `means` of them."""
    tasks, hits = outcomes["task"], outcomes["rank"] == 1
    found = {TASKS[task]: 100 * float(hits[tasks == task].mean()) for task in np.unique(tasks)}
    return {**found, "mean_there": sum(found.values()) / len(found), **means(found)}


def means(accuracies: Mapping[str, float]) -> dict[str, float]:
    """The mean of each group that is whole, and of all where all 19 are there."""
    return {
        f"mean_{group}": sum(accuracies[name] for name in names) / len(names)
        for group, names in {**GROUPS, "all": TASKS}.items()
        if all(name in accuracies for name in names)
    }
