"""Compares every file of a run with the list that its manifest names: changed, missing and surplus ones."""

from altalign import listing, storage
from altalign.audit.checks.findings import Findings
from altalign.audit.run_folder import RunFolder

ABOUT = {
    "files": (
        f"file(s) as {listing.FILE}, manifest and seals say",
        "`altalign repair` makes anew what it can; what nothing lists is not of the run: move it away",
    )
}


def check(run: RunFolder, findings: Findings, *, sizes_alone: bool) -> None:
    """Checks all files, those of rows by size: other checks read their bytes.

    A run of an earlier version, which has no list, is not checked.
    """
    if "files" not in storage.read_json(run.path("manifest.json")) and not storage.exists(run.path(listing.FILE)):
        return
    files, wrong = listing.look(run.folder, sizes_alone=sizes_alone, but_of_rows=True)
    findings.saw("files", files)
    for name, why in sorted(wrong.items()):
        findings.fails("files", f"{name}: {why}")
