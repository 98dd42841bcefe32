"""Which files of dropped rows are looked through, where not all are."""

from altalign.audit.checks import dropped


def test_files_of_the_ranges_come_first_whatever_other_runs_are_called() -> None:
    of_others = ["99999999-00001.parquet", "0000000a-00000.parquet"]
    names = [*of_others, "00000-00000.parquet", "00003-00000.parquet"]
    first_half, last = (0, 0x3FFF), (0xFFFF, 0xFFFF)
    assert dropped.nearest(names, [first_half])[0] == "00000-00000.parquet"
    assert dropped.nearest(names, [last])[0] == "00003-00000.parquet"
    assert set(dropped.nearest(names, [first_half, last])[:2]) == {*names[2:]}
    assert dropped.nearest(names, []) == names
