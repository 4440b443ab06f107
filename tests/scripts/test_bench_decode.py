"""bench_decode.py: what it computes and reports; how fast anything is is no test."""

import json
import re
import subprocess
import sys

import pytest
import torch

import bench_decode
from bench_cases import DTYPES, SELF, Case
from bench_decode_cases import (
    ATTENTION,
    GENERATION,
    PROBLEMS,
    STEP,
    StepProblem,
    bytes_read,
    cases_of_shape,
    standard_cases,
)
from bench_decode_engines import CHUNK, OURS, Generation, engines_by_kind
from bench_decode_report import footers, tables
from bench_decode_run import DecodeRun, Floor, Plan
from bench_engines import LIBRARY, Engine, Rewound, Setup, forget_compiled, load_library
from bench_measure import Effort, timed
from lesson import MultiHeadAttention

SHAPE = (2, 70, 32, 4)  # more steps than one chunk
EFFORT = Effort(rounds=2, burst=0, budget=1)
KEYS = {
    "shape", "key_len", "case", "dtype", "threads", "engine", "min_ms", "median_ms", "calls", "max_error",
    "floor_ms",
}  # fmt: skip


def run_of(engines, *, shapes=(SHAPE,), only="", dtypes=("float32",), passes=2):
    """A run on one thread, measured."""
    run = DecodeRun(
        engines,
        shapes=shapes,
        threads=[1],
        dtypes=dtypes,
        only=re.compile(only),
        plan=Plan(EFFORT, steps=SHAPE[1], passes=passes),
    )
    threads = torch.get_num_threads()
    try:
        with torch.inference_mode():
            run.measure()
    finally:
        torch.set_num_threads(threads)
    return run


@pytest.mark.skipif(not LIBRARY.is_file(), reason=f"{LIBRARY} is not built")
def test_command(scripts, tmp_path):
    def command(*arguments):
        return subprocess.run(
            [sys.executable, str(scripts / "bench_decode.py"), *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
        )

    files = {name: tmp_path / f"decode.{name}" for name in ("json", "markdown")}
    written = [argument for name, file in files.items() for argument in (f"--{name}", file)]
    only = "mha|Python|attention| SDPA"
    measured = command(
        "--quick", "--shapes", "2,70,32,4", "--threads", "1", "--only", f"^(?!.*compiled).*({only})", *written
    )
    assert (measured.returncode, measured.stderr) == (0, "")
    results = json.loads(files["json"].read_text())
    assert results["machine"]["packages"]["torch"] == torch.__version__
    rows = results["rows"]
    assert {row["case"] for row in rows} == {STEP, ATTENTION, SELF, GENERATION}
    assert set(OURS) | {"Python lesson", "Python SDPA", "SDPA"} <= {row["engine"] for row in rows}
    for row in rows:
        assert set(row) == KEYS and row["threads"] == 1 and row["calls"] >= 1
        assert 0 < row["min_ms"] <= row["median_ms"] and row["floor_ms"] is None
        assert 0 < row["max_error"] < {"float32": 1e-5, "bfloat16": 5e-2}[row["dtype"]]
    for text in (measured.stdout, files["markdown"].read_text()):
        assert "one step, the earlier positions cached, float32" in text
        assert "(2, 1x70, 32, 4) step" in text and "(2, 70, 32, 4) generation" in text

    again = command("--load", files["json"])
    assert (again.returncode, again.stderr, again.stdout) == (0, "", measured.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shapes", "1,2048"], "argument --shapes: expected B,L,D,H with H dividing D, such as "),
        (["--only", "("], "argument --only: expected a regular expression, found '(': "),
        (["--library", "nowhere.so"], "nowhere.so: no such library; build it (cmake "),
        (["--markdown", "no/folder/decode.md"], "no/folder/decode.md: there is no folder no/folder"),
        (
            ["--load", "bench.json"],
            'bench.json: expected what --json writes, found no "format": "mha.bench.d',
        ),
    ],
)
def test_bad_usage(capsys, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bench.json").write_text('{"format": "mha.bench/1"}')
    with pytest.raises(SystemExit) as exit_:
        bench_decode.main(arguments)
    captured = capsys.readouterr()
    assert exit_.value.code == 2 and captured.out == ""
    assert captured.err.startswith(f"bench_decode.py: error: {message}") and captured.err.count("\n") == 1


def test_help_names_engines_and_packages(capsys):
    with pytest.raises(SystemExit) as exit_:
        bench_decode.main(["--help"])
    told = capsys.readouterr().out
    assert exit_.value.code == 0
    for kind, engines in engines_by_kind().items():
        assert f"\n  {kind}: " in told
        for engine in engines:
            assert engine.name in told and engine.about in told
            assert all(package in told for package in engine.packages)


def test_ours_are_engines():
    names = {engine.name for engines in engines_by_kind().values() for engine in engines}
    assert set(OURS) <= names


@pytest.mark.parametrize("case", cases_of_shape(SHAPE), ids=str)
def test_reference(case):
    problem = PROBLEMS[case.kind](case, "float32")
    lesson = MultiHeadAttention(32, 4).double().eval()
    lesson.load_state_dict(problem.module.state_dict())
    with torch.no_grad():
        if case.kind == ATTENTION:
            query, key, value = (t.double() for t in (problem.query, problem.key, problem.value))
            assert query.shape == (2, 4, 1, 8) and key.shape == value.shape == (2, 4, 70, 8)
            expected = torch.softmax(query @ key.mT / 8**0.5, -1) @ value
        else:
            memory = problem.memory.double()
            assert memory.shape == (2, 70, 32)
            mask = None if case.kind == SELF else torch.ones(70, 70).tril()
            expected = lesson(memory, memory, memory, mask)
        if case.kind == STEP:
            assert torch.equal(problem.memory[:, -1:], problem.query)
            expected = expected[:, -1:]
    assert expected.abs().max() > 0.1

    def asked(output):
        return {i: output[:, i : i + 1] for i in range(70)} if case.kind == GENERATION else output

    assert problem.error(asked(expected)) < 1e-12
    wrong = expected.clone()
    wrong[1, ..., -1, 3] += 0.25
    assert problem.error(asked(wrong)) == pytest.approx(0.25) and problem.is_absurd(0.25)
    wrong[0, ..., -1, 0] = float("nan")
    assert problem.is_absurd(problem.error(asked(wrong)))


def test_a_generation_is_compared_as_far_as_it_went():
    problem = PROBLEMS[GENERATION](Case(1, 70, 70, 32, 4, GENERATION), "float32")
    outputs = {i: problem.reference[:, i : i + 1] for i in range(10)}
    assert problem.error(outputs) == 0
    outputs[9] = outputs[9] + 1
    assert problem.error(outputs) == pytest.approx(1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", engines_by_kind()[STEP], ids=lambda engine: engine.name)
def test_a_step_can_be_repeated(engine, dtype):
    """However often it was called, a call sees the same number of positions, or nearly so."""
    if engine.missing() or dtype not in engine.dtypes:
        pytest.skip("not here")
    if engine.name in OURS:
        if not LIBRARY.is_file():
            pytest.skip(f"{LIBRARY} is not built")
        load_library(LIBRARY)
    forget_compiled()
    problem = StepProblem(Case(2, 1, 48, 32, 4, STEP), dtype)
    with torch.inference_mode():
        call = engine.build(problem, Setup(torch.get_num_threads()))
        first = call().clone()
        assert not problem.is_absurd(problem.error(first))
        if engine.name != "OpenVINO state":
            for _ in range(3):
                assert torch.equal(call(), first)
            return
        # Its state grows from 16 positions below to 16 above, over and over.
        windows = [[call().clone() for _ in range(32)] for _ in range(2)]
    for once, again in zip(*windows):
        assert torch.equal(once, again)
    assert not torch.equal(windows[0][0], windows[0][1])
    repeated = problem.memory[:, :31]
    memory = torch.cat([repeated, problem.query], 1).double()
    expected = problem.module.double()(problem.query.double(), memory, memory)
    assert not problem.is_absurd((windows[0][0].double() - expected).abs().max().item())


def test_all_engines_of_pytorch_are_right():
    run = run_of(engines_by_kind(), only="^(?!.*(mha|compiled|ONNX|Open)).*", dtypes=list(DTYPES))
    assert run.skipped == [] or all("not installed" in entry["reason"] for entry in run.skipped)
    found = {(row["case"], row["engine"]) for row in run.rows}
    assert {(STEP, "Python lesson"), (STEP, "Python SDPA"), (ATTENTION, "SDPA")} <= found
    assert {(GENERATION, "Python lesson"), (GENERATION, "Python SDPA")} <= found
    assert len(run.rows) == len(found) * len(DTYPES)


def test_a_generation_goes_on_in_chunks_and_starts_again():
    problem = PROBLEMS[GENERATION](Case(2, 70, 70, 32, 4, GENERATION), "float32")
    starts = []

    def start():
        starts.append(len(generation.outputs))
        count = iter(range(1000))
        return lambda x: x + next(count)

    generation = Generation(problem, start)
    assert list(generation()) == list(range(CHUNK)) and list(generation()) == list(range(70))
    generation()
    assert generation.chunks == [0, 1, 0] and starts == [0, 70]
    for i in (0, CHUNK, 69):
        assert torch.equal(generation.outputs[i], problem.query[:, i : i + 1] + i)


def test_a_generation_that_goes_wrong_late_is_not_timed():
    def forgetful(problem, setup):
        """Right in the first chunk alone: the one whose result is known when the call is admitted."""
        rows = problem.reference.float().split(1, 1)

        def start():
            left = iter(range(70))
            return lambda x: rows[min(next(left), CHUNK)]

        return Generation(problem, start)

    def right(problem, setup):
        rows = problem.reference.float().split(1, 1)

        def start():
            left = iter(rows)
            return lambda x: next(left)

        return Generation(problem, start)

    engines = {kind: [] for kind in engines_by_kind()}
    engines[GENERATION] = [Engine("forgetful", "", forgetful), Engine("right", "", right)]
    run = run_of(engines, passes=3)
    (row,) = run.rows
    assert row["engine"] == "right" and row["calls"] == 6 and 0 < row["min_ms"] <= row["median_ms"]
    (entry,) = run.skipped
    assert entry["engine"] == "forgetful" and entry["reason"].startswith("wrong, not timed: error ")


def test_times_of_a_generation_are_added_up_by_chunk():
    from bench_decode_run import _of_all_steps

    chunks = [0, 1, 0, 1, 0, 1]  # the first call was no sample
    least, median = _of_all_steps(chunks, [0.5, 0.1, 0.4, 0.3, 0.9])
    assert least == pytest.approx(1e3 * (0.1 + 0.4)) and median == pytest.approx(1e3 * (0.2 + 0.5))


def test_rewinding_is_not_timed():
    order = []

    class Clock:
        @staticmethod
        def perf_counter():
            order.append("clock")
            return 0.0

    call = Rewound(lambda: order.append("call"), lambda: order.append("rewind"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bench_measure.time", Clock)
        timed(call)
    assert order == ["rewind", "clock", "call", "clock"]
    order.clear()
    call()
    assert order == ["rewind", "call"]


def test_bytes_read():
    single = {case.kind: bytes_read(case, "float32") for case in cases_of_shape((2, 70, 32, 4))}
    weights, cache = 4 * 4 * 32 * 32, 4 * 2 * 2 * 70 * 32
    assert single == {SELF: weights, STEP: weights + cache, ATTENTION: cache, GENERATION: 0}
    assert bytes_read(Case(2, 1, 70, 32, 4, STEP), "bfloat16") == (weights + cache) // 2


def test_the_floor_is_the_best_of_the_run():
    floor, threads = Floor(), torch.get_num_threads()
    floor.probe(Floor.LEAST - 4, threads)
    assert floor.best == {} and floor.milliseconds(Floor.LEAST - 4, threads) is None
    floor.probe(2**22, threads)
    first = floor.milliseconds(2**22, threads)
    assert 0 < first < 100
    floor.best[2**22, threads] = 1e-9  # nothing is faster
    floor.probe(2**22, threads)
    assert floor.milliseconds(2**22, threads) == pytest.approx(1e-6)


def test_standard_cases_are_what_is_promised():
    cases = standard_cases(1000)
    assert Case(1, 1, 2048, 1024, 16, STEP) in cases and Case(1, 1, 2048, 1024, 16, ATTENTION) in cases
    assert {case.query_len for case in cases if case.kind == SELF and case.d_model == 512} == {1, 4, 16}
    generated = {(case.batch, case.d_model) for case in cases if case.kind == GENERATION}
    assert generated == {(batch, d_model) for batch in (1, 8) for d_model in (512, 1024)}


def test_tables_of_given_numbers():
    def row(engine, ms, case=STEP, dtype="float32", threads=2, floor=None):
        return {
            "shape": [1, 100 if case == GENERATION else 1, 32, 4], "key_len": 100, "case": case, "dtype": dtype,
            "threads": threads, "engine": engine, "min_ms": ms, "median_ms": 2 * ms, "calls": 1,
            "max_error": 1e-6 * ms, "floor_ms": floor,
        }  # fmt: skip

    rows = [
        row("mha cache", 0.2, floor=0.1),
        row("slow peer", 0.5, floor=0.1),
        row("fast peer", 0.3, floor=0.1),
        row("slow peer", 0.6, threads=1),
        row("mha cache", 0.1, dtype="bfloat16"),
        row("mha cache", 2.0, GENERATION),
        row("fast peer", 5.0, GENERATION),
    ]
    machine = {
        "cpu_model": "some", "cores": 2, "cpu_capability": "AVX", "packages": {}, "load_average": 0.9,
    }  # fmt: skip
    skipped = [{"engine": "half", "where": "", "reason": "no bfloat16 on CPUs"}]
    results = {"machine": machine, "rows": rows, "skipped": skipped}
    text = "\n".join(table.text() for table in tables(results))
    lines = {" ".join(line.split()) for line in text.splitlines()}
    step = "(1, 1x100, 32, 4) step"
    assert f"{step} mha cache - - - 200 400 1.00 2e-07" in lines  # one thread, then two
    assert f"{step} slow peer 600 1200 - 500 1000 2.50 6e-07" in lines
    assert f"{step} (floor) - - - 100 - 0.50 -" in lines
    assert (
        "(1, 100, 32, 4) generation fast peer 0.005 50.0 2.50 5e-06" in lines
    )  # seconds, microseconds a step
    assert f"{step} float32 2 200 1.50 fast peer 2.00 -" in lines  # the summary
    assert f"{step} bfloat16 2 100 - - - 2.00" in lines
    assert "(1, 100, 32, 4) generation float32 2 20.0 2.50 fast peer - -" in lines
    notes = footers(results)
    assert "half: no bfloat16 on CPUs" in notes
    assert "The machine was busy: load average 0.9 before the first call." in notes


def test_tables_without_ours():
    run = run_of(engines_by_kind(), only="step .*Python", passes=1)
    (table,) = tables(run.results())
    assert {line[1] for line in table.lines} == {"Python lesson", "Python SDPA"}
    assert {line[4] for line in table.lines} == {"-"}
