"""Reading shell scripts, compared with what bash itself prints."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from gpuguide.clusters.shell_text import Shell, is_known

SCRIPTS = [
    "a='two words'\nprintf '[%s]' $a \"$a\" ${a} x\n",
    "n=2\ng=4\nprintf '[%s]' $(($n * g)) $((n+1)) \"$((2*3 + 4))\"\n",
    'args=(--lr 1 "two words" # a comment\'s end\n  last)\nprintf \'[%s]\' "${args[@]}" ${args[0]} $args\n',
    "a=1; a+=2; printf '[%s]' $a'$a'\"\\$a\"\\$a\n",
    'cmd="printf \\\n  [%s] \\\n  a b"\n$cmd # it\'s a comment\n',
    "cat <<'END' > /dev/null\nprintf wrong\nit's\nEND\nprintf '[%s]' right\n",
    "cat <<-END > /dev/null\n\tprintf wrong\n\tEND\nprintf '[%s]' a\\ b \"it's\" 'say \"x\"'\n",
    "quote='say \"x\" or it'\"'\"'s'\nprintf '[%s]' \"$quote\" $quote\n",
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_words_are_those_of_bash(script: str) -> None:
    shell = Shell()
    command = next(command for command in shell.read(script) if command.words[:1] == ("printf",))
    assert all(is_known(word) for word in command.words[2:] if "$" not in shell.show(word))
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    printed = subprocess.run([bash, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "".join(f"[{shell.show(word)}]" for word in command.words[2:]) == printed


def test_what_only_a_run_could_tell_stays_as_it_is_written() -> None:
    shell = Shell()
    (command,) = shell.read('srun -N "$N" run $(hostname | head -n 1) `date` ${X:-3} \\$late\n')
    assert not is_known(command.words[2])
    assert [shell.show(word) for word in command.words] == [
        "srun", "-N", "$N", "run", "$(hostname | head -n 1)", "`date`", "${X:-3}", "$late",
    ]  # fmt: skip
    assert shell.is_expanded_early(command.words[2], ("N",))
    assert not shell.is_expanded_early(command.words[-1], ("late",))


def test_a_variable_that_may_be_set_otherwise_is_not_known() -> None:
    shell = Shell()
    commands = shell.read(
        "a=1\nif test -f x; then a=2; fi\nb=1\ntest -f x && b=2\nfor c in 1 2; do :; done\necho $a $b $c\n"
    )
    assert not any(is_known(word) for word in commands[-1].words[1:])


def test_commands_know_their_lines_and_blocks() -> None:
    shell = Shell()
    commands = shell.read(
        "one \\\n  x\nif two; then\n  three | four &\nfi\nf() {\n  five\n}\nsix && seven\n{ eight; }\n"
    )
    assert [(command.words[0], command.line, command.always_runs) for command in commands] == [
        ("one", 1, True), ("two", 3, False), ("three", 4, False), ("four", 4, False),
        ("five", 7, False), ("six", 9, True), ("seven", 9, False), ("eight", 10, True),
    ]  # fmt: skip
    assert commands[3].after == "&"
