"""bench_peers.py: what it computes and reports; how fast anything is is no test."""

import json
import re
import subprocess
import sys

import pytest
import torch

import bench_peers
from bench_cases import CAUSAL, CROSS, CURVE, DTYPES, SELF, Case, Problem, cases_of_shape
from bench_engines import LIBRARY, Engine, all_engines
from bench_measure import Effort, extra_bytes, take_turns
from bench_report import footers, tables
from bench_run import Run
from lesson import MultiHeadAttention

SHAPE = (2, 16, 32, 4)
KEYS = {
    "shape", "key_len", "case", "dtype", "threads", "engine", "min_ms", "median_ms", "calls", "gflops",
    "percent_of_peak", "max_error", "extra_bytes",
}  # fmt: skip


@pytest.fixture
def command(scripts):
    def command(*arguments):
        return subprocess.run(
            [sys.executable, str(scripts / "bench_peers.py"), *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
        )

    return command


@pytest.mark.skipif(not LIBRARY.is_file(), reason=f"{LIBRARY} is not built")
def test_run(command, tmp_path):
    files = {name: tmp_path / f"bench.{name}" for name in ("json", "markdown")}
    written = [argument for name, file in files.items() for argument in (f"--{name}", file)]
    measured = command(
        "--quick", "--shapes", "2,16,32,4", "--threads", "1", "--only", "mha|Python|module", *written
    )
    assert (measured.returncode, measured.stderr) == (0, "")
    results = json.loads(files["json"].read_text())
    machine = results["machine"]
    assert machine["packages"]["torch"] == torch.__version__ and machine["cpu_model"]
    assert {(peak["dtype"], peak["threads"]) for peak in machine["peak"]} == {(dtype, 1) for dtype in DTYPES}
    rows = results["rows"]
    engines = {row["engine"] for row in rows}
    assert engines == {"mha fused", "mha lesson", "Python lesson", "Python SDPA", "PyTorch module"}
    assert len(rows) == len(cases_of_shape(SHAPE)) * len(DTYPES) * len(engines)
    for row in rows:
        assert set(row) == KEYS
        assert row["shape"] == list(SHAPE) and row["threads"] == 1 and row["calls"] >= 1
        assert 0 < row["min_ms"] <= row["median_ms"] and row["gflops"] > 0 and row["percent_of_peak"] > 0
        assert 0 < row["max_error"] < {"float32": 1e-5, "bfloat16": 5e-2}[row["dtype"]]
    for text in (measured.stdout, files["markdown"].read_text()):
        assert "(2, 16x32, 32, 4) cross" in text and "float32, 1 thread: GF/s (peak " in text
    assert sorted(tmp_path.iterdir()) == sorted(files.values())

    again = command("--load", files["json"])
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout == measured.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--shapes", "2,16,30,4"],
            "argument --shapes: expected B,L,D,H with H dividing D, such as 8,512,768,12, found '2,16,30,4'",
        ),
        (["--threads", "0"], "argument --threads: expected numbers of threads, such as 1,2, found '0'"),
        (["--dtypes", "float16"], "argument --dtypes: expected some of float32,bfloat16, found 'float16'"),
        (["--only", "("], "argument --only: expected a regular expression, found '(': "),
        (["--library", "nowhere.so"], "nowhere.so: no such library; build it (cmake "),
        (["--json", "no/folder/bench.json"], "no/folder/bench.json: there is no folder no/folder"),
        (["--load", "bench_peers.py"], "bench_peers.py: "),
    ],
)
def test_bad_usage(capsys, monkeypatch, scripts, arguments, message):
    monkeypatch.chdir(scripts)
    with pytest.raises(SystemExit) as exit_:
        bench_peers.main(arguments)
    captured = capsys.readouterr()
    assert exit_.value.code == 2 and captured.out == ""
    assert captured.err.startswith(f"bench_peers.py: error: {message}") and captured.err.count("\n") == 1


def test_help_names_engines_and_packages(capsys):
    with pytest.raises(SystemExit) as exit_:
        bench_peers.main(["--help"])
    told = capsys.readouterr().out
    assert exit_.value.code == 0
    for engine in all_engines():
        assert engine.name in told and engine.about in told
        assert all(package in told for package in engine.packages)


def test_flops():
    assert Case(3, 5, 5, 8, 2, SELF).flops() == 8 * 3 * 5 * 8**2 + 4 * 3 * 5**2 * 8
    assert Case(3, 5, 5, 8, 2, CAUSAL).flops() == 8 * 3 * 5 * 8**2 + 2 * 3 * 5**2 * 8
    assert Case(3, 5, 7, 8, 2, CROSS).flops() == 4 * 3 * (5 + 7) * 8**2 + 4 * 3 * 5 * 7 * 8


@pytest.mark.parametrize("case", cases_of_shape((2, 700, 24, 3)), ids=str)  # longer than what is compared
def test_reference(case):
    problem = Problem(case, "float32")
    lesson = MultiHeadAttention(24, 3).double().eval()
    lesson.load_state_dict(problem.module.state_dict())
    memory = problem.memory.double()
    with torch.no_grad():
        expected = lesson(problem.query.double(), memory, memory, problem.mask_or_causal)
    rows = problem.rows.tolist()
    assert rows == sorted(set(rows)) and rows[0] == 0 and rows[-1] == 699 and len(rows) == 512
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(problem.reference, expected[:, rows], rtol=0, atol=1e-12)
    assert problem.error(expected) < 1e-12
    wrong = expected.clone()
    wrong[1, 699, 23] += 0.25
    assert problem.error(wrong) == pytest.approx(0.25) and problem.is_absurd(problem.error(wrong))
    wrong[0, 0, 0] = float("nan")
    assert problem.is_absurd(problem.error(wrong))


def test_both_dtypes_have_one_exact_result():
    for case in cases_of_shape(SHAPE):
        single, half = Problem(case, "float32"), Problem(case, "bfloat16")
        assert torch.equal(single.reference, half.reference)


def test_a_wrong_failing_or_missing_engine_does_not_stop_the_others(tmp_path):
    def wrong(problem, setup):
        return lambda: problem.reference + 1

    def fails(problem, setup):
        raise RuntimeError("no kernel\nand a backtrace")

    def good(problem, setup):
        return lambda: problem.reference.clone()

    engines = [
        Engine("wrong", "", wrong),
        Engine("fails", "", fails),
        Engine("good", "", good),
        Engine("half", "", good, dtypes=("bfloat16",)),
        Engine("missing", "", good, packages=("no_such_package_at_all",)),
    ]
    run = Run(
        engines,
        shapes=[SHAPE],
        threads=[1],
        dtypes=["float32"],
        only=re.compile(SELF),
        effort=Effort(rounds=1, burst=0, budget=1),
        library=tmp_path,
    )
    threads = torch.get_num_threads()
    try:
        run.measure()
    finally:
        torch.set_num_threads(threads)
    results = run.results()
    assert [row["engine"] for row in results["rows"]] == ["good"]
    told = "\n".join(footers(results))
    place = "((2, 16, 32, 4) self float32 threads=1)"
    assert f"fails: failed: RuntimeError: no kernel {place}" in told
    assert "wrong: wrong, not timed: error 1.0e+00" in told
    assert "half: no float32 on CPUs" in told
    assert "missing: not installed: pip install no_such_package_at_all" in told


def test_engines_take_turns():
    order = []
    calls = {name: (lambda name=name: order.append(name)) for name in "ab"}
    samples = {"a": [], "b": [0.25]}
    effort = Effort(rounds=3, burst=0, budget=100)
    assert take_turns(calls, samples, effort, lambda: order.append("|")) == {}
    assert "".join(order) == "|ab|ba|ab"
    assert {name: len(times) for name, times in samples.items()} == {"a": 3, "b": 4}
    assert samples["b"][0] == 0.25 and all(0 <= seconds < 0.25 for seconds in samples["a"])


def test_an_engine_with_its_budget_spent_rests():
    samples = {"a": [], "b": [], "c": [1.0]}
    take_turns(
        {name: lambda: None for name in samples}, samples, Effort(rounds=5, burst=0, budget=0), lambda: None
    )
    assert {name: len(times) for name, times in samples.items()} == {"a": 1, "b": 1, "c": 1}


def test_an_engine_that_throws_leaves_the_others():
    order, failure = [], RuntimeError("out of memory")

    def throws():
        order.append("a")
        raise failure

    samples = {"a": [], "b": []}
    calls = {"a": throws, "b": lambda: order.append("b")}
    assert take_turns(calls, samples, Effort(rounds=2, burst=0, budget=1), lambda: None) == {"a": failure}
    assert "".join(order) == "abb" and len(samples["b"]) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="told by Linux only")
def test_extra_bytes_are_those_of_one_call():
    mib = 2**20

    def call():
        temporary = torch.ones(48 * mib, dtype=torch.uint8)
        return temporary[: 16 * mib] + 1

    found = extra_bytes(call)
    if found is None:
        pytest.skip("this system does not let a process reset its peak")
    assert 63 * mib <= found < 72 * mib  # the system counts each thread's last pages late


def test_tables_of_given_numbers():
    def row(engine, ms, case=SELF, length=16, extra=None):
        return {
            "shape": [2, length, 32, 4], "key_len": length, "case": case, "dtype": "float32", "threads": 2,
            "engine": engine, "min_ms": ms, "median_ms": ms, "calls": 1, "gflops": 100 / ms,
            "percent_of_peak": 50 / ms, "max_error": 1e-6 * ms, "extra_bytes": extra,
        }  # fmt: skip

    rows = [
        row("mha fused", 2.0),
        row("slow peer", 5.0),
        row("fast peer", 3.0),
        row("mha fused", 1.0, CAUSAL),
    ]
    rows += [row("mha fused", 4.0, CURVE, 32, 2**21), row("slow peer", 8.0, CURVE, 32)]
    results = {"machine": {"peak": [{"dtype": "float32", "threads": 2, "gflops": 200.0}]}, "rows": rows}
    text = "\n".join(table.text() for table in tables(results))
    assert "float32, 2 threads: GF/s (peak 200)" in text
    lines = {tuple(line.split()) for line in text.splitlines()}
    assert ("(2,", "16,", "32,", "4)", "self", "50", "20", "33") in lines  # GF/s of all three
    assert ("(2,", "16,", "32,", "4)", "causal", "100", "-", "-") in lines
    assert ("largest", "error", "2e-06", "5e-06", "3e-06") in lines
    assert ("(2,", "32,", "32,", "4)", "curve", "4.00", "8.00") in lines  # milliseconds
    assert ("(2,", "32,", "32,", "4)", "curve", "2.00") in lines  # MiB
    summary = (
        "(2,",
        "16,",
        "32,",
        "4)",
        "self",
        "float32",
        "2",
        "2.00",
        "2.00",
        "50",
        "25",
        "1.50",
        "fast",
        "peer",
        "-",
    )
    assert summary in lines
    assert (
        "(2,",
        "16,",
        "32,",
        "4)",
        "causal",
        "float32",
        "2",
        "1.00",
        "1.00",
        "100",
        "50",
        "-",
        "-",
        "0.50",
    ) in lines
