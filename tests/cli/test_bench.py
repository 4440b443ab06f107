"""mha bench: what it measures, and what it refuses."""

import json

import pytest


def test_rows(mha, tmp_path):
    result = mha("bench", "--shape", "2,16,32,4", "--shape", "1,8,24,3", "--threads", "1,2", "--seconds", "0",
                 "--json", tmp_path / "rows.json")
    assert result.status == 0, result.err
    assert "(2, 16, 32, 4)" in result.out and "(1, 8, 24, 3)" in result.out
    report = json.loads((tmp_path / "rows.json").read_text())
    assert set(report) == {"machine", "rows"}
    rows = report["rows"]
    # two shapes, two dtypes, two numbers of threads, two engines
    assert len(rows) == 16
    assert {row["engine"] for row in rows} == {"mha lesson", "mha fused"}
    for row in rows:
        assert set(row) == {"shape", "case", "dtype", "threads", "engine", "min_ms", "median_ms", "gflops",
                            "percent_of_peak", "max_error", "extra_bytes"}
        assert 0 < row["min_ms"] <= row["median_ms"]
        assert row["gflops"] > 0 and row["percent_of_peak"] > 0
        # Random weights of this width keep outputs below 1: an error of this size is rounding, not another function.
        assert 0 < row["max_error"] < (1e-5 if row["dtype"] == "float32" else 3e-2)


def test_causal_and_standard_output(mha):
    result = mha("bench", "--shape", "1,70,32,4", "--dtype", "float32", "--causal", "--seconds", "0", "--json", "-")
    assert result.status == 0, result.err
    rows = json.loads(result.out)["rows"]
    assert [row["case"] for row in rows] == ["causal", "causal"]
    assert all(row["max_error"] < 1e-5 for row in rows)
    assert "(1, 70, 32, 4)" in result.err


@pytest.mark.parametrize("arguments, expected", [
    (["--shape", "1,2,3"], 'expected four positive numbers B,L,D,H, found "1,2,3"'),
    (["--shape", "1,2,x,4"], 'expected four positive numbers B,L,D,H, found "1,2,x,4"'),
    (["--shape", "0,2,4,4"], 'expected four positive numbers B,L,D,H, found "0,2,4,4"'),
    (["--shape", "1,2,4,3"], "expected sizes up to 1,048,576 and D divisible by H"),
    (["--shape", "1,99999999,4,4"], "expected sizes up to 1,048,576 and D divisible by H"),
    (["--shape", "1,99999999999999999999,4,4"], "expected four positive numbers"),
    (["--dtype", "float8"], "float8"),
    (["--threads", "0"], "0 not in range"),
    (["--seconds", "nan"], "--seconds"),
])
def test_bad_usage(mha, arguments, expected):
    result = mha("bench", *arguments)
    assert expected in result.error()
