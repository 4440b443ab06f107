"""Bad usage, unreadable files, help, colours, reports for programs: what holds whatever is compared."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

# Arguments

BAD_VALUES = [
    ("--threads", "0"),
    ("--threads", "1.5"),
    ("--threads", "1000000"),
    ("--num-heads", "0"),
    ("--num-heads", "eight"),
    ("--num-heads", "99999999999999999999"),
    ("--engine", "eager"),
    ("--require", "bits"),
    ("--device", "gpu"),
]


@pytest.mark.parametrize(("option", "value"), BAD_VALUES)
def test_a_bad_value_is_an_error_that_names_option_and_value(mha, eval_case, option, value):
    error = mha("verify", eval_case.path, option, value).error()
    assert option in error and value in error
    assert len(error) < 200


@pytest.mark.parametrize("option", ["--weights", "--json"])
def test_an_empty_file_name_is_not_taken_for_none(mha, eval_case, option):
    # As left behind by an unset variable of the shell.
    assert option in mha("verify", eval_case.path, option, "").error()


# The arguments, and what the error must name.
BAD_USAGE = [
    ([], "command"),
    (["compare", "a", "b"], "compare"),
    (["--bogus"], "--bogus"),
    (["verify"], "CASE"),
    (["verify", "case", "--bogus"], "--bogus"),
    (["verify", "case", "--thread", "1"], "--thread"),  # No guessing at abbreviations.
    (["verify", "case", "--json"], "--json"),
    (["verify", "case", "--threads", "1", "--threads", "2"], "--threads"),
    (["diff", "a"], "B "),
    (["diff", "a", "b", "surplus"], "surplus"),
]


@pytest.mark.parametrize(
    ("arguments", "named"), BAD_USAGE, ids=["_".join(arguments) or "nothing" for arguments, _ in BAD_USAGE]
)
def test_bad_usage_is_one_line_that_names_the_problem(mha, arguments, named):
    error = mha(*arguments).error()
    assert named in error and "mha --help" in error


def test_control_codes_in_arguments_are_not_repeated(mha, eval_case):
    assert mha("verify", eval_case.path, "--bo\x1b[31mgus\r").error()
    assert mha("verify", "absent\x1b[31m\n.safetensors").error()


def test_any_file_name_will_do(mha, eval_case, tmp_path):
    names = ["diff", "-x.safetensors", "{}", "\u00e9 \u2713"]
    for name in names:
        (tmp_path / name).write_bytes(eval_case.path.read_bytes())
    run = mha("verify", "--", *names, cwd=tmp_path)
    assert run.status == 0
    assert all(f"  {name}  (" in line for name, line in zip(names, run.report().splitlines()))


def test_cuda_without_cuda(mha, eval_case, edited):
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    assert "CUDA" in mha("verify", eval_case.path, "--device", "cuda").error()
    error = mha("verify", edited(eval_case, metadata={"device": "cuda"})).error()
    assert "edited.safetensors: " in error and "--device cpu" in error


# Help and version


COMMANDS = ["verify", "diff", "inspect", "convert"]


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=["mha", *COMMANDS])
def test_help(mha, command):
    run = mha(*command, "--help")
    assert run.status == 0 and run.err == ""
    assert " ".join(["Usage: mha", *command]) in run.out
    for name in command or COMMANDS:
        assert name in run.out
    assert re.search(r"Exit status: 0 .+ 1 .+ 2 ", run.out)


def test_help_by_its_letter(mha):
    run = mha("verify", "-h")
    assert run.status == 0 and run.err == "" and "Usage: mha verify" in run.out


def test_version_names_the_tool_and_what_it_computes_with(mha, eval_case):
    run = mha("--version")
    assert run.status == 0 and run.err == ""
    assert re.fullmatch(r"mha \d+\.\d+\.\d+ \(LibTorch \d+\.\d+\.\d+\S*, .+\)\n", run.out)
    assert eval_case.metadata["torch_version"] in run.out


# Unreadable files


def test_no_such_file(mha, tmp_path):
    assert str(tmp_path / "absent") in mha("verify", tmp_path / "absent").error()


def test_a_directory(mha, tmp_path):
    assert f"{tmp_path}: " in mha("verify", tmp_path).error()


def _cut(data: bytes, where: str) -> bytes:
    header = 8 + int.from_bytes(data[:8], "little")
    length = {
        "nothing": 0,
        "half the length": 4,
        "half the header": header // 2,
        "the header": header,
        "half the data": (header + len(data)) // 2,
        "all but a byte": len(data) - 1,
    }[where]
    return data[:length]


@pytest.mark.parametrize(
    "where",
    [
        "nothing",
        "half the length",
        "half the header",
        "the header",
        "half the data",
        "all but a byte",
    ],
)
def test_a_truncated_file(mha, eval_case, tmp_path, where):
    path = tmp_path / "cut.safetensors"
    path.write_bytes(_cut(eval_case.path.read_bytes(), where))
    assert f"{path}: " in mha("verify", path).error()


def test_a_file_with_something_after_its_end(mha, eval_case, tmp_path):
    path = tmp_path / "long.safetensors"
    path.write_bytes(eval_case.path.read_bytes() + b"x")
    assert f"{path}: " in mha("verify", path).error()


@pytest.mark.parametrize("at", [b"", b"{", b'":"', b"F32", b"inputs/"])
def test_a_flipped_byte_of_the_header(mha, eval_case, tmp_path, at):
    data = bytearray(eval_case.path.read_bytes())
    data[data.index(at)] ^= 0x02
    path = tmp_path / "flipped.safetensors"
    path.write_bytes(data)
    assert f"{path}: " in mha("verify", path).error()


@pytest.mark.parametrize("said", ["mha.reference/2", ""])
def test_another_format_asks_to_export_again(mha, eval_case, edited, said):
    error = mha("verify", edited(eval_case, metadata={"format": said})).error()
    assert "edited.safetensors: " in error and '"mha.reference/1"' in error and "export" in error
    assert said in error


@pytest.mark.parametrize("name", ["grads/W_x.weight", "extra"])
def test_a_tensor_of_unknown_name(mha, eval_case, edited, name):
    error = mha("verify", edited(eval_case, {name: torch.ones(1)})).error()
    assert "edited.safetensors: " in error and f'"{name}"' in error


@pytest.mark.parametrize("zip_archive", [True, False], ids=["zip", "legacy"])
def test_a_file_of_torch_save_is_no_case(mha, eval_case, tmp_path, zip_archive):
    path = tmp_path / "model.pt"
    torch.save(eval_case.weights(), path, _use_new_zipfile_serialization=zip_archive)
    assert f"{path}: " in mha("verify", path).error()


@pytest.mark.parametrize(
    "text", ["no tensors here\n", "\x00" * 64, "\x1b[31m\n" * 9], ids=["text", "zeros", "codes"]
)
def test_something_else_altogether(mha, tmp_path, text):
    path = tmp_path / "notes.txt"
    path.write_text(text)
    assert f"{path}: " in mha("verify", path).error()


def test_an_unreadable_file_after_a_good_one(mha, eval_case, tmp_path):
    run = mha("verify", eval_case.path, tmp_path / "absent")
    assert run.status == 2
    assert run.err.startswith(f"mha: {tmp_path / 'absent'}: ") and run.err.count("\n") == 1


# Hostile content

HOSTILE = "x\n\x1b[31m\u202e\x9b2J\r"


@pytest.mark.parametrize("name", [HOSTILE, "weights/" + HOSTILE], ids=["unknown", "weights"])
def test_hostile_tensor_names(mha, eval_case, edited, name):
    error = mha("verify", edited(eval_case, {name: torch.ones(1)})).error()
    assert "\\x1b[31m" in error and "\u202e" not in error


@pytest.mark.parametrize("key", ["format", "d_model", "weights_file"])
def test_hostile_metadata_in_errors(mha, eval_case, edited, key):
    without = "weights/" if key == "weights_file" else None
    error = mha("verify", edited(eval_case, metadata={key: HOSTILE}, without=without)).error()
    assert "\\x1b[31m" in error and "\u202e" not in error


@pytest.mark.parametrize("keys", [["torch_version"], ["build", "cpu_model"]], ids=" ".join)
def test_hostile_metadata_in_reports(mha, eval_case, edited, keys):
    path = edited(eval_case, metadata=dict.fromkeys(keys, "x\n\x1b[31m\nverdict: bit-exact"))
    run = mha("verify", path)
    assert run.status == 0
    assert run.report().count("\nverdict: ") == 1


def test_a_hostile_file_name(mha, eval_case, tmp_path):
    name = "x\n\x1b[31mverdict: bit-exact.safetensors"
    (tmp_path / name).write_bytes(eval_case.path.read_bytes())
    run = mha("verify", name, "--json", "-", cwd=tmp_path)
    assert run.status == 0 and run.json()["cases"][0]["case"] == name
    assert run.err.startswith("case         x\\x0a\\x1b[31mverdict: bit-exact.safetensors\n")


def test_a_file_name_that_is_not_utf8(mha, eval_case, tmp_path):
    name = os.fsdecode(b"caf\xe9.safetensors")
    (tmp_path / name).write_bytes(eval_case.path.read_bytes())
    run = mha("verify", name, "--json", "-", cwd=tmp_path)
    assert run.status == 0
    assert "caf\\xe9.safetensors" in run.err and run.json()["cases"][0]["case"] == "caf\ufffd.safetensors"


# Reports for programs

CASE_KEYS = {"case", "engine", "verdict", "environment", "first_divergence", "tensors"}
TENSOR_KEYS = {
    *("name", "dtype", "shape", "verdict", "max_abs", "max_rel", "max_ulp", "index", "mismatched", "total"),
}


def test_json_schema(mha, eval_case, train_case):
    run = mha("verify", eval_case.path, train_case.path, "--json", "-")
    assert run.status == 0
    report = run.json()
    assert set(report) == {"format", "verdict", "cases"}
    assert report["format"] == "mha.report/1" and report["verdict"] == "bit-exact"
    assert [case["case"] for case in report["cases"]] == [str(eval_case.path), str(train_case.path)]
    for case in report["cases"]:
        assert set(case) >= CASE_KEYS
        assert case["engine"] == "lesson" and case["verdict"] == "bit-exact"
        assert case["first_divergence"] is None
        assert set(case["environment"]) >= {"torch_version", "cpu_model", "num_threads", "device"}
        assert case["environment"]["cpu_model"] == eval_case.metadata["cpu_model"]
        assert case["environment"]["differences"] == []
        for tensor in case["tensors"]:
            assert set(tensor) >= TENSOR_KEYS
            assert tensor["verdict"] == "bit-exact" and tensor["index"] is None
            assert tensor["max_abs"] == tensor["max_rel"] == tensor["max_ulp"] == tensor["mismatched"] == 0
            assert tensor["total"] == torch.Size(tensor["shape"]).numel()


def test_json_of_a_difference(mha, eval_case, edited, with_element):
    output = eval_case.tensors["outputs/output"]
    was = output[1, 2, 3].item()
    path = edited(eval_case, {"outputs/output": with_element(output, (1, 2, 3), was + 0.5)})
    run = mha("verify", path, "--json", "-")
    assert run.status == 1 and run.json()["verdict"] == "MISMATCH"
    divergence = run.json()["cases"][0]["first_divergence"]
    assert divergence["name"] == "outputs/output" and isinstance(divergence["hint"], str)
    tensor = run.tensors()["outputs/output"]
    assert tensor["dtype"] == "float32" and tensor["shape"] == [2, 5, 32]
    assert tensor["index"] == [1, 2, 3] and tensor["mismatched"] == 1 and tensor["total"] == 320
    assert tensor["max_abs"] == pytest.approx(0.5)
    assert tensor["max_rel"] == pytest.approx(0.5 / abs(was + 0.5))


def test_the_verdict_is_that_of_the_worst_case(mha, eval_case, edited, flip_lowest_bit):
    flipped, _ = flip_lowest_bit(eval_case.tensors["outputs/output"])
    bad = edited(eval_case, {"outputs/output": flipped})
    run = mha("verify", eval_case.path, bad, eval_case.path, "--json", "-")
    assert run.status == 1
    report = run.json()
    assert report["verdict"] == "MISMATCH"
    assert [case["verdict"] for case in report["cases"]] == ["bit-exact", "MISMATCH", "bit-exact"]


def test_the_text_goes_to_standard_error_when_json_takes_the_output(eval_json, eval_run):
    assert eval_json.status == 0
    assert eval_json.err == eval_run.report() and eval_json.out.startswith("{")


def test_the_json_file_appears_whole(mha, eval_case, eval_run, eval_json, tmp_path):
    path = tmp_path / "report.json"
    path.write_text('{"old": 1}')
    with open(path, encoding="utf-8") as old:
        run = mha("verify", eval_case.path, "--json", path)
        # Replaced, not overwritten: whoever reads the old file goes on reading it to its end.
        assert old.read() == '{"old": 1}'
    assert run.status == 0 and run.report() == eval_run.report()
    assert path.read_text() == eval_json.out
    assert list(tmp_path.iterdir()) == [path]


def test_an_unreadable_case_does_not_hide_the_others(mha, eval_case, tmp_path):
    path = tmp_path / "report.json"
    path.write_text('{"old": 1}')
    run = mha("verify", tmp_path / "absent", eval_case.path, "--json", path)
    assert run.status == 2
    assert run.err.count("\n") == 1 and "absent: cannot open" in run.err
    report = json.loads(path.read_text())
    assert list(tmp_path.iterdir()) == [path]
    assert report["verdict"] == "not comparable"
    assert [case["verdict"] for case in report["cases"]] == ["not comparable", "bit-exact"]
    assert "cannot open" in report["cases"][0]["error"] and report["cases"][0]["tensors"] == []
    assert "error" not in report["cases"][1]


def test_json_does_not_replace_a_file_that_is_no_report(mha, eval_case, tmp_path):
    # As when the name after --json is left out: mha verify --json *.safetensors
    case = tmp_path / "case.safetensors"
    case.write_bytes(eval_case.path.read_bytes())
    assert "earlier report" in mha("verify", "--json", case, eval_case.path).error()
    assert case.read_bytes() == eval_case.path.read_bytes()


def test_an_error_that_cannot_be_written_is_no_crash(mha):
    if not Path("/dev/full").is_char_device():
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        assert subprocess.run([os.environ["MHA_TOOL"], "verify", "absent"], stderr=full).returncode == 2


def test_nothing_is_written_on_bad_usage(mha, eval_case, tmp_path):
    path = tmp_path / "report.json"
    path.write_text('{"old": 1}')
    assert mha("verify", eval_case.path, "--json", path, "--threads", "0").error()
    assert path.read_text() == '{"old": 1}' and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("where", ["missing/report.json", "."])
def test_json_that_cannot_be_written(mha, eval_case, tmp_path, where):
    run = mha("verify", eval_case.path, "--json", tmp_path / where)
    assert run.status == 2
    assert run.err.startswith(f"mha: {tmp_path / where}") and run.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", [[], ["--json", "-"]], ids=["text", "json"])
def test_a_report_that_is_lost_is_no_success(eval_case, arguments):
    command = [os.environ["MHA_TOOL"], "verify", eval_case.path, *arguments]
    with open(FULL, "wb") as full:
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert run.returncode == 2 and b"mha: " in run.stderr


# Colours

CODE = re.compile("\x1b\\[[0-9;]*m")


def test_a_terminal_gets_colours(on_terminal, eval_case, eval_run):
    status, shown = on_terminal("verify", eval_case.path)
    assert status == 0
    assert shown.count("\x1b[32mbit-exact\x1b[0m") == 10  # Nine tensors and the verdict.
    # Colours change neither words nor columns.
    assert CODE.sub("", shown) == eval_run.report()


def test_verdicts_have_colours_of_their_own(on_terminal, eval_case, edited, flip_lowest_bit):
    flipped, _ = flip_lowest_bit(eval_case.tensors["outputs/output"])
    path = edited(eval_case, {"outputs/output": flipped})
    status, shown = on_terminal("verify", path, eval_case.path)
    assert status == 1 and "\x1b[31mMISMATCH\x1b[0m" in shown and "\x1b[32mbit-exact\x1b[0m" in shown
    status, shown = on_terminal("verify", path, "--require", "tolerance")
    assert status == 0 and "\x1b[33mwithin tolerance\x1b[0m" in shown


def test_no_color_is_respected(on_terminal, eval_case, eval_run):
    status, shown = on_terminal("verify", eval_case.path, NO_COLOR="1")
    assert status == 0 and shown == eval_run.report()
    # By https://no-color.org an empty value asks for nothing.
    assert CODE.search(on_terminal("verify", eval_case.path, NO_COLOR="")[1])


def test_colours_follow_the_stream_of_the_text(on_terminal, eval_case):
    _, text = on_terminal("verify", eval_case.path, "--json", "-", stream="stderr")
    assert "\x1b[32mbit-exact\x1b[0m" in text
    _, json_text = on_terminal("verify", eval_case.path, "--json", "-")
    assert json_text.startswith("{") and "\x1b" not in json_text


@pytest.mark.parametrize(
    ("arguments", "stream"), [(["--help"], "stdout"), (["verify", "absent"], "stderr")], ids=["help", "error"]
)
def test_help_and_errors_have_no_colours(on_terminal, arguments, stream):
    _, shown = on_terminal(*arguments, stream=stream)
    assert shown and "\x1b" not in shown
