"""Whatever a value holds, it arrives as it was given or is refused: it never becomes an option, a command or a line."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from clusterrun.base.errors import RequestError
from clusterrun.base.fields import FIELD, FIELDS, NAME_BYTES
from clusterrun.jobspec.render import Places
from clusterrun.jobspec.spec import Command, JobSpec, Module, Script, Task
from clusterrun.worker.job import supervisor
from tests.support.hostile_texts import FORBIDDEN, NASTY, anything, hostile
from tests.support.rendered_scripts import IDENTITY, PLACES, make_script, make_spec, sbatch_options

TEXTS = [field.name for field in FIELDS if field.kind == "text" and field.name not in (
    "scheduler", "template", "python", "mem", "time", "launcher", "accelerate-config",
    "resume-args", "total-time", "signal", "notify", "on-failure", "venv", "conda", "in-job")
         and not field.name.startswith("container-")]  # fmt: skip
PLAIN = dict.fromkeys(TEXTS, "x")
often = settings(max_examples=2 * settings().max_examples, suppress_health_check=list(HealthCheck))
at_times = settings(often, max_examples=settings().max_examples)


def spec_of(values: dict[str, str], **more: object) -> JobSpec | None:
    """The specification, None where it is refused."""
    try:
        return make_spec(**{name.replace("-", "_"): value for name, value in values.items()}, **more)
    except RequestError:
        return None


def bash(script: str) -> list[str]:
    """What a shell prints, cut at each NUL."""
    done = subprocess.run(["bash"], input=os.fsencode(script), capture_output=True)
    assert done.stderr == b"", done.stderr
    return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]


def assert_shell(script: str) -> None:
    done = subprocess.run(["bash", "-n"], input=os.fsencode(script), capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def line_of(script: str, beginning: str) -> str:
    (line,) = [line for line in script.split("\n") if line.startswith(beginning)]
    return line


def test_these_are_all_the_fields_that_take_text() -> None:
    assert set(TEXTS) == {"partition", "account", "qos", "constraint", "gres", "reservation", "exclude", "nodelist",
                          "dependency", "job-name", "mail-type", "comment"}  # fmt: skip


@often
@given(st.sampled_from(TEXTS), anything)
@example("comment", '" --wrap=x #\\')
@example("job-name", "\\")
def test_a_directive_holds_its_value_and_nothing_else(name: str, value: str) -> None:
    spec = spec_of({**PLAIN, name: value})
    if spec is None:
        assert any(c in value for c in "\n\0") or value == "" or name == "job-name" or len(os.fsencode(value)) > 40
        return
    plain = make_script(make_spec(**{n.replace("-", "_"): v for n, v in PLAIN.items()}))
    script = make_script(spec)
    expected = dict(sbatch_options(plain))
    expected[name] = value
    expected["job-name"] = ("x" if name != "job-name" else value) + f".{IDENTITY.token[:8]}"
    if name == "gres":
        expected["ntasks-per-node"] = str(spec.tasks_per_node)
    assert dict(sbatch_options(script)) == expected
    assert len(sbatch_options(script)) == len(sbatch_options(plain))
    assert script.count("\n") == plain.count("\n")


@at_times
@given(st.fixed_dictionaries({name: hostile for name in TEXTS if name not in ("job-name", "gres")}))
def test_all_directives_at_once(values: dict[str, str]) -> None:
    spec = spec_of({name: value or "x" for name, value in values.items()})
    assert spec is not None, "one line of text is never refused"
    script = make_script(spec)
    options = dict(sbatch_options(script))
    assert {n: options[n] for n in values} == {n: v or "x" for n, v in values.items()}
    assert_shell(script)


@at_times
@given(hostile)
def test_a_path_of_accelerates_yaml_is_one_word(name: str) -> None:
    spec = make_spec(**{"launcher": "accelerate", "accelerate-config": f"/x/{name}", "gpus-per-node": 0})
    (word,) = bash(line_of(make_script(spec), "CR_WORK=") + "\nprintf '%s\\0' \"${CR_WORK[5]}\"\n")
    assert word == f"/x/{name}"


@at_times
@given(hostile, st.sampled_from(["pyxis", "apptainer"]))
def test_an_image_is_one_word(name: str, runtime: str) -> None:
    spec = make_spec(container_image=f"/x/{name}", container_runtime=runtime)
    line = next(line for line in make_script(spec).split("\n") if line.startswith("CR_OPTIONS=("))
    options = bash(line + "\nprintf '%s\\0' \"${CR_OPTIONS[@]}\"\n")
    assert (f"--srun-arg=--container-image=/x/{name}" if runtime == "pyxis" else f"--rank-prefix=/x/{name}") in options


@at_times
@given(st.lists(hostile, min_size=1, max_size=4))
def test_the_words_for_a_later_start_arrive(words: list[str]) -> None:
    script = make_script(make_spec(resume_args=shlex.join(words)))
    assert_shell(script)
    line = next(line for line in script.split("\n") if line.startswith("CR_OPTIONS=("))
    options = bash(line + "\nprintf '%s\\0' \"${CR_OPTIONS[@]}\"\n")
    assert shlex.split(supervisor.parse([*options, "--"])[0].resume_args) == words


@often
@given(
    st.lists(hostile, max_size=6), st.dictionaries(st.sampled_from("ABCDEF"), hostile), hostile, hostile, st.booleans()
)
def test_the_shell_reads_what_was_given(
    words: list[str], env: dict[str, str], name: str, folder: str, local: bool
) -> None:
    path = Path("/data") / folder.replace("\\", "") / "p"
    kind, work = (("script", Script), ("module", Module), ("command", Command))[len(words) % 3]
    places = Places(workdir=path, logs=path / "logs", worker=path / "w.py", umask=0o027)
    spec = make_spec(work(f"/x/{name}", tuple(words)), env=env, python=f"/py/{name}")
    script = make_script(spec, places=places, local=local)
    assert_shell(script)
    exports = [line for line in script.split("\n") if re.match("export [A-F]=", line)]
    cd = next(line for line in script.split("\n") if line.startswith("cd "))
    kept = [
        line_of(script, f"{variable}=")
        for variable in ("CR_PYTHON", "CR_WORKER", "CR_WORK", "export CLUSTERRUN_RUN_DIR")
    ]
    show = "cd() { printf '%s\\0' \"$1\"; }\nshow() { printf '%s\\0' \"$@\"; }\n"
    asked = '\nshow "$CR_PYTHON" "$CR_WORKER" "${CR_WORK[@]}"\n' + "".join(f'show "${key}"\n' for key in sorted(env))
    assert bash(show + "\n".join([*kept, *exports, cd]) + asked) == [
        str(path), f"/py/{name}", str(path / "w.py"), kind, "--", f"/x/{name}", *words,
        *(env[key] for key in sorted(env)),
    ]  # fmt: skip
    options = dict(sbatch_options(script))
    assert options["chdir"] == str(path)
    assert options["output"].replace("%%", "\0").replace("%j", "7").replace("\0", "%") == str(path / "logs/train_7.out")


@at_times
@given(st.dictionaries(hostile, hostile, max_size=4))
def test_the_settings_of_a_task_arrive(settings_: dict[str, str]) -> None:
    script = make_script(make_spec(Task("lm", tuple(settings_.items()))))
    assert_shell(script)
    words = bash(line_of(script, "CR_WORK=") + "\nprintf '%s\\0' \"${CR_WORK[@]}\"\n")
    assert words == ["task", "lm", *(f"{key}={value}" for key, value in settings_.items())]


@at_times
@given(hostile)
def test_the_name_of_the_job_follows_any_file_name(name: str) -> None:
    spec = make_spec(Script(f"/data/{name}.py"))
    assert 0 < len(os.fsencode(spec.job_name)) <= NAME_BYTES
    assert not any(letter < " " or letter == "\x7f" for letter in spec.job_name)
    options = dict(sbatch_options(make_script(spec)))
    assert options["job-name"] == f"{spec.job_name}.{IDENTITY.token[:8]}"


@often
@given(hostile, hostile)
def test_variables_have_names(key: str, value: str) -> None:
    spec = spec_of({}, env={key: value})
    assert (spec is not None) == (key.isascii() and key.isidentifier() and key != "_")


@pytest.mark.parametrize("name", [*TEXTS, "setup", "sbatch-arg", "env", "set"])
def test_a_newline_or_nul_is_refused_everywhere(name: str) -> None:
    for bad in FORBIDDEN:
        value: object = {"list": [f"--x{bad}"], "map": {"A": bad}}.get(FIELD[name].kind, bad)
        with pytest.raises(RequestError):
            make_spec(**{name.replace("-", "_"): value})
        if FIELD[name].kind == "map":
            with pytest.raises(RequestError):
                make_spec(**{name: {bad: "x"}})


def test_half_a_character_is_refused() -> None:
    with pytest.raises(RequestError, match="invalid Unicode"):
        make_spec(comment="\ud83d")


def test_setup_is_code_and_nothing_else_is() -> None:
    """A setup line stands in the script as it is; the same text in any other field runs nothing."""
    text = "touch /tmp/never; $(touch /tmp/never) `touch /tmp/never`"
    script = make_script(make_spec(setup=[text], comment=text, env={"A": text}))
    assert f"{{ {text}\n" in script
    rest = script.replace(f"{{ {text}\n", "").split("\n")
    assert all(line.startswith(("#", "export A='", "} || cr_setup_failed")) for line in rest if "touch" in line)


def test_places_with_a_backslash_are_refused_for_logs_alone() -> None:
    make_script(make_spec(), places=Places(Path("/a\\b"), PLACES.logs, PLACES.worker, 0))
    with pytest.raises(RequestError):
        make_script(make_spec(), places=Places(PLACES.workdir, Path("/a\\b"), PLACES.worker, 0))


def test_the_list_is_long_enough() -> None:
    assert len(set(NASTY)) >= 80
