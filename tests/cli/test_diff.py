"""`mha diff`: any two readable files, tensor by tensor."""

import pytest
import torch


@pytest.fixture
def two(write, tmp_path):
    """Writes two files of tensors and returns their paths."""

    def two(a, b):
        return write(tmp_path / "a.safetensors", a), write(tmp_path / "b.safetensors", b)

    return two


def numbers() -> dict[str, torch.Tensor]:
    return {"first": torch.arange(6.0).view(2, 3) + 1, "second": torch.tensor([1, 2], dtype=torch.int64)}


def test_equal_files(mha, two):
    a, b = two(numbers(), numbers())
    run = mha("diff", a, b)
    assert run.status == 0
    assert run.report().startswith(f"case         {a} against {b}\n")
    assert set(run.rows()) == {"first", "second"}
    assert "(2, 3)" in run.rows()["first"] and "int64" in run.rows()["second"]
    assert run.report().splitlines()[-1] == "verdict: bit-exact (2 tensors, 8 elements)"


def test_a_file_equals_itself(mha, train_case):
    run = mha("diff", train_case.path, train_case.path)
    assert run.status == 0 and set(run.rows()) == set(train_case.tensors)


def test_metadata_is_not_compared(mha, eval_case, edited):
    run = mha("diff", eval_case.path, edited(eval_case, metadata={"cpu_model": "Some Other Processor"}))
    assert run.status == 0 and "\nverdict: bit-exact " in run.report()


DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def test_one_flipped_bit_in_every_dtype(mha, two, flip_lowest_bit):
    a = {str(dtype).removeprefix("torch."): torch.ones(2, 3).to(dtype) for dtype in DTYPES}
    b = {name: flip_lowest_bit(tensor)[0] for name, tensor in a.items()}
    run = mha("diff", *two(a, b))
    assert run.status == 1
    assert set(run.rows()) == set(a)
    for name, row in run.rows().items():
        assert f" {name} " in row and " MISMATCH " in row and " 1 / 6 " in row and "worst at (1, 1)" in row
    assert run.report().splitlines()[-1] == "verdict: MISMATCH (10 tensors, 60 elements)"


@pytest.fixture(scope="module")
def differences(mha, write, tmp_path_factory):
    """One run over two files that differ in every way there is."""
    nan = float("nan")
    here = {
        "mine": torch.ones(2, dtype=torch.int64),
        "shape": torch.ones(2, 3),
        "dtype": torch.ones(2),
        "zeros": torch.zeros(4),
        "nan": torch.tensor([nan, 1.0]),
        "moved nan": torch.tensor([nan, 1.0]),
    }
    there = {
        "theirs": torch.ones(3, dtype=torch.int64),
        "shape": torch.ones(3, 2),
        "dtype": torch.ones(2, dtype=torch.bfloat16),
        "zeros": torch.zeros(4),
        "nan": torch.tensor([-nan, 1.0]),  # Its payload does not matter.
        "moved nan": torch.tensor([1.0, nan]),
    }
    folder = tmp_path_factory.mktemp("differences")
    run = mha("diff", write(folder / "a.safetensors", here), write(folder / "b.safetensors", there))
    assert run.status == 1
    return run


@pytest.mark.parametrize(
    ("name", "verdict", "said"),
    [
        ("mine", "not comparable", ["(2,)", "int64", "missing in the reference"]),
        ("theirs", "not comparable", ["(3,)", "int64", "missing here"]),
        ("shape", "not comparable", ["(2, 3)", "the reference has shape (3, 2)"]),
        ("dtype", "not comparable", ["float32", "the reference is bfloat16"]),
        ("zeros", "bit-exact", ["0 / 4", "all zeros on both sides"]),
        ("nan", "bit-exact", ["0 / 2", "NaN 1, inf 0 on both sides"]),
        ("moved nan", "MISMATCH", ["2 / 2", "worst at (0,)"]),
    ],
)
def test_what_the_table_says_of_each_difference(differences, name, verdict, said):
    row = differences.rows()[name]
    assert f"  {verdict}  " in row
    assert all(text in row for text in said)


def test_the_report_ends_with_the_worst(differences):
    assert set(differences.rows()) == {"mine", "theirs", "shape", "dtype", "zeros", "nan", "moved nan"}
    first, last = differences.report().splitlines()[-2:]
    assert first.startswith("first divergence: ") and last.startswith("verdict: not comparable (7 tensors, ")


def test_no_comparison_passes_on_nothing(mha, two):
    assert mha("diff", *two({"x": torch.ones(0, 3)}, {"x": torch.ones(0, 3)})).status == 1


@pytest.mark.parametrize(("bad", "kind"), [("a", "text"), ("b", "absent"), ("b", "folder")])
def test_unreadable_files_are_errors_that_name_them(mha, two, tmp_path, bad, kind):
    files = dict(zip("ab", two(numbers(), numbers())))
    wrong = files[bad] = tmp_path / "wrong"
    if kind == "text":
        wrong.write_text("no tensors here\n")
    elif kind == "folder":
        wrong.mkdir()
    assert str(wrong) in mha("diff", files["a"], files["b"]).error()


def test_json(mha, two, with_element, tmp_path):
    a, b = two(numbers(), numbers() | {"first": with_element(numbers()["first"], (1, 2), float("nan"))})
    run = mha("diff", a, b, "--json", "-")
    assert run.status == 1 and run.err.startswith("case ")
    report = run.json()
    assert report["format"] == "mha.report/1" and report["verdict"] == "MISMATCH"
    (case,) = report["cases"]
    assert case["case"] == f"{a} against {b}" and case["first_divergence"]["name"] == "first"
    assert run.tensors()["second"]["verdict"] == "bit-exact"
    first = run.tensors()["first"]
    assert first["index"] == [1, 2] and first["max_abs"] == "nan" and first["nan"] == [0, 1]

    written = mha("diff", a, b, "--json", tmp_path / "report.json")
    assert written.status == 1 and written.report() == run.err
    assert (tmp_path / "report.json").read_text() == run.out


def test_json_of_missing_tensors(mha, two):
    run = mha("diff", *two({"mine": torch.ones(2)}, {"theirs": torch.ones(3)}), "--json", "-")
    tensors = run.tensors()
    assert run.status == 1 and run.json()["verdict"] == "not comparable"
    assert tensors["mine"]["index"] is None and tensors["mine"]["note"] == "missing in the reference"
    assert tensors["theirs"]["shape"] == [3] and tensors["theirs"]["note"] == "missing here"


# A line feed, a colour, a right-to-left override and a C1 code that some terminals obey.
HOSTILE = ["a\nverdict: bit-exact", "b\x1b[31mred", "c\u202egnp", "d\x9b2J", "e\x7f\r\t"]


def test_hostile_names_stay_on_their_line(mha, two):
    run = mha("diff", *two({name: torch.ones(2) for name in HOSTILE}, {}))
    assert run.status == 1
    assert len(run.rows()) == len(HOSTILE) and "\u202e" not in run.report()
    assert run.report().count("\nverdict: ") == 1


def test_hostile_names_in_json(mha, two):
    a = {name: torch.ones(2) for name in HOSTILE}
    run = mha("diff", *two(a, {}), "--json", "-")
    assert set(run.tensors()) == set(HOSTILE)  # A program gets the names as they are.
