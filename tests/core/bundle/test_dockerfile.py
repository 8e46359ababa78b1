"""Dockerfiles: lines, words, substitution, stages, and the command an image starts with."""

import io

import pytest

from agent_env_core.bundle.dockerfile import parse_dockerfile, read_dockerfile
from agent_env_core.errors import ImageError


def words(body, **more):
    """The arguments of the last instruction of a stage with ``body``."""
    return parse_dockerfile(f"FROM x\n{body}", **more).instructions[-1].arguments


# -- lines


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("FROM a\nRUN b", [(1, "FROM", "a"), (2, "RUN", "b")]),
        ("from a\nrun b", [(1, "FROM", "a"), (2, "RUN", "b")]),
        ("\n\n# c\n  FROM a  \n\tRUN\tb c\t", [(4, "FROM", "a"), (5, "RUN", "b c")]),
        ("\ufeffFROM a\r\nRUN b \\\r\n c\r\n", [(1, "FROM", "a"), (2, "RUN", "b  c")]),
        ("FROM a\nRUN b \\\n  # gone\n\n  c\nRUN d", [(1, "FROM", "a"), (2, "RUN", "b   c"), (6, "RUN", "d")]),
        ("FROM a\nRUN b \\  \t\nc", [(1, "FROM", "a"), (2, "RUN", "b c")]),
        ("FROM a\nRUN b \\\\\nRUN c", [(1, "FROM", "a"), (2, "RUN", "b \\\\"), (3, "RUN", "c")]),
        ("FROM a\nRUN b \\", [(1, "FROM", "a"), (2, "RUN", "b")]),
        ("FROM a\nRUN b # not a comment", [(1, "FROM", "a"), (2, "RUN", "b # not a comment")]),
        ("FROM a\nENV \\\n  A=1 \\\n  B=2", [(1, "FROM", "a"), (2, "ENV", "A=1   B=2")]),
        ("# escape=`\nFROM a\nRUN b `\n c\\\nRUN d", [(2, "FROM", "a"), (3, "RUN", "b  c\\"), (5, "RUN", "d")]),
        ("#Syntax = x\n# ESCAPE=`\nFROM a\nRUN b `\nc", [(3, "FROM", "a"), (4, "RUN", "b c")]),
        ("# note\n# escape=`\nFROM a\nRUN b \\\nc", [(3, "FROM", "a"), (4, "RUN", "b c")]),
        ("\n# escape=`\nFROM a\nRUN b \\\nc", [(3, "FROM", "a"), (4, "RUN", "b c")]),
    ],
)
def test_lines_become_instructions(text, want):
    found = parse_dockerfile(text).instructions
    assert [(one.line, one.keyword, one.raw) for one in found] == want


@pytest.mark.parametrize(
    ("body", "want"),
    [
        ("RUN <<EOF\na\n  b\nEOF", [("EOF", "a\n  b\n")]),
        ("RUN <<-EOF\n\ta\n\tEOF", [("EOF", "a\n")]),
        ("RUN python3 - <<'END' && ls\nprint(1)\nEND", [("END", "print(1)\n")]),
        ('COPY <<a.txt <<"b.txt" /d/\n1\na.txt\n2\nb.txt', [("a.txt", "1\n"), ("b.txt", "2\n")]),
        ("RUN 3<<A\n# kept\\\n\nA", [("A", "# kept\\\n\n")]),
        ("RUN echo $((1<<2)) '<<X'", []),
        ("ENV A=<<X", []),
    ],
)
def test_here_documents(body, want):
    found = parse_dockerfile(f"FROM x\n{body}\nUSER last").instructions
    assert found[-1].arguments == ("last",)
    assert [(doc.name, doc.text) for doc in found[1].heredocs] == want


@pytest.mark.parametrize(
    ("body", "flags", "arguments"),
    [
        ("COPY --from=build --chown=1:2 a b", (("from", "build"), ("chown", "1:2")), ("a", "b")),
        ("COPY --link a b", (("link", ""),), ("a", "b")),
        ("RUN --mount=type=cache,target=/x pip install y", (("mount", "type=cache,target=/x"),), ("pip install y",)),
        ("ARG S=b\nCOPY --from=$S a b", (("from", "b"),), ("a", "b")),
        ("HEALTHCHECK --interval=5s CMD curl x", (("interval", "5s"),), ("CMD curl x",)),
    ],
)
def test_flags(body, flags, arguments):
    one = parse_dockerfile(f"FROM x\n{body}").instructions[-1]
    assert (one.flags, one.arguments) == (flags, arguments)
    assert one.flag("nothing") is None


# -- words and variables


@pytest.mark.parametrize(
    ("body", "want"),
    [
        ("ENV A=1 B=two", ("A=1", "B=two")),
        ("ENV A=\"x y\" B='z  w' C=p\\ q", ("A=x y", "B=z  w", "C=p q")),
        ("ENV A some  text ", ("A=some  text",)),
        ("ENV A=1 B=$A", ("A=1", "B=")),
        ("ENV A=1\nENV A=2 B=$A", ("A=2", "B=1")),
        ("ENV A=1\nENV B='$A' C=\"$A\" D=\\$A E=\"\\$A\"", ("B=$A", "C=1", "D=$A", "E=$A")),
        ("ENV A=1\nENV B=${A}2 C=$A2 D=x${A}y$", ("B=12", "C=", "D=x1y$")),
        ("ENV A=1 E=\nENV B=${A:-d} C=${N:-d} D=${E:-d} F=${E-d}", ("B=1", "C=d", "D=d", "F=")),
        ("ENV A=1 E=\nENV B=${A:+d} C=${N:+d} D=${E:+d} F=${E+d}", ("B=d", "C=", "D=", "F=d")),
        ("ENV A=1\nENV B=${N:-${A}x} C=\"${N:-a b}\" D=${N:-'}'}", ("B=1x", "C=a b", "D=}")),
        ("ENV PATH=/app:$PATH", ("PATH=/app:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",)),
        ("ENV A=\"say \\\"hi\\\"\"", ('A=say "hi"',)),
        ("ENV A=a=b=c", ("A=a=b=c",)),
        ("ENV A=#x", ("A=#x",)),
        ("ARG A=1\nENV B=$A", ("B=1",)),
        ("ARG A=1\nENV A=2\nARG A=3\nENV B=$A", ("B=2",)),
        ("ARG A\nENV B=x$A", ("B=x",)),
        ("ARG A=1 B=$A C", ("A=1", "B=", "C")),
        ("LABEL a=b \"c d\"=e", ("a=b", "c d=e")),
        ("ARG D=/srv\nWORKDIR $D/my app", ("/srv/my app",)),
        ("ARG U=bob\nUSER ${U}:staff", ("bob:staff",)),
        ("ARG P='80 443'\nEXPOSE $P 22/tcp", ("80", "443", "22/tcp")),
        ("ARG S=src\nCOPY $S/a \"b c\" /d/", ("src/a", "b c", "/d/")),
        ('ARG S=src\nCOPY ["$S/a b", "/d/"]', ("src/a b", "/d/")),
        ('VOLUME ["/a", "/b c"]', ("/a", "/b c")),
        ("VOLUME /a /b", ("/a", "/b")),
        ("ARG X=1\nRUN echo $X \"a\" 'b'", ("echo $X \"a\" 'b'",)),
        ('ARG X=1\nCMD ["echo", "$X"]', ("echo", "$X")),
        ("ONBUILD RUN x", ("RUN x",)),
        ("MAINTAINER me", ("me",)),
    ],
)  # fmt: skip
def test_words(body, want):
    assert words(body) == want


def test_run_knows_the_variables_in_force_before_it():
    found = parse_dockerfile("FROM x\nARG A=1\nENV B=2\nRUN one\nENV A=3\nRUN two").instructions
    assert [dict(one.variables) for one in found if one.keyword == "RUN"] == [
        {"A": "1", "B": "2"},
        {"A": "3", "B": "2"},
    ]


def test_the_base_images_variables_are_for_substitution_only():
    found = parse_dockerfile("FROM x\nENV A=$HOME/a", base_env={"HOME": "/home/me"})
    assert dict(found.env) == {"A": "/home/me/a"}


def test_arguments_before_the_first_from():
    found = parse_dockerfile("ARG TAG=1\nARG U=bob\nFROM x:$TAG\nENV A=x$TAG\nARG TAG\nENV B=$TAG\nARG U=eve\nUSER $U")
    assert found.final.base == "x:1"
    assert (dict(found.env), found.user) == ({"A": "x", "B": "1"}, "eve")


# -- what a container gets


@pytest.mark.parametrize(
    ("body", "want"),
    [
        ("", ()),
        ('CMD ["python", "a.py"]', ("python", "a.py")),
        ("CMD python a.py", ("/bin/sh", "-c", "python a.py")),
        ("CMD ['python']", ("/bin/sh", "-c", "['python']")),
        ('CMD ["a"]\nCMD ["b"]', ("b",)),
        ('ENTRYPOINT ["a"]', ("a",)),
        ('ENTRYPOINT ["a"]\nCMD ["b", "c"]', ("a", "b", "c")),
        ('CMD ["b"]\nENTRYPOINT ["a"]', ("a", "b")),
        ('ENTRYPOINT ["a"]\nCMD b', ("a", "/bin/sh", "-c", "b")),
        ("ENTRYPOINT exec a", ("/bin/sh", "-c", "exec a")),
        ('ENTRYPOINT ["a"]\nENTRYPOINT []\nCMD ["b"]', ("b",)),
        ('CMD ["b"]\nCMD []', ()),
        ('SHELL ["/bin/bash", "-ec"]\nCMD a', ("/bin/bash", "-ec", "a")),
        ('CMD ["python", \\\n  # why\n  "a.py"]', ("python", "a.py")),
        ('FROM base AS other\nCMD ["b"]', ("b",)),
        ('CMD ["a"]\nFROM other', ()),
    ],
)
def test_the_start_command(body, want):
    assert parse_dockerfile(f"FROM x AS first\n{body}").start_command() == want


@pytest.mark.parametrize(
    ("body", "want"),
    [
        ("", (None, None, {}, ())),
        ("WORKDIR app", ("/app", None, {}, ())),
        ("WORKDIR /app/\nWORKDIR sub\nWORKDIR ../x", ("/app/x", None, {}, ())),
        ("USER bob\nUSER 7:8", (None, "7:8", {}, ())),
        ("EXPOSE 80 443/tcp\nEXPOSE 80 9000-9002/udp", (None, None, {}, (80, 443, 9000, 9001, 9002))),
        ("ENV A=1\nENV A=2 B=3", (None, None, {"A": "2", "B": "3"}, ())),
    ],
)
def test_the_image_settings(body, want):
    found = parse_dockerfile(f"FROM x\n{body}")
    assert (found.workdir, found.user, dict(found.env), found.exposed) == want


def test_the_last_stage_counts_and_takes_over_from_an_earlier_one():
    found = parse_dockerfile(
        "FROM x AS Base\nENV A=1\nARG P=1\nWORKDIR /app\nUSER bob\nEXPOSE 80\nCMD [\"a\"]\n"
        "FROM y AS tool\nENV T=1\nCMD [\"t\"]\n"
        "FROM base\nENV B=$A$P\nWORKDIR sub\nCOPY --from=tool a b\n"
    )  # fmt: skip
    assert [(stage.base, stage.name, stage.from_stage) for stage in found.stages] == [
        ("x", "base", False),
        ("y", "tool", False),
        ("base", "", True),
    ]
    assert (dict(found.env), found.workdir, found.user, found.exposed) == (
        {"A": "1", "B": "1"},
        "/app/sub",
        "bob",
        (80,),
    )
    assert found.start_command() == ("a",)
    assert [one.keyword for one in found.final.instructions] == ["FROM", "ENV", "WORKDIR", "COPY"]


def test_an_entrypoint_drops_the_cmd_of_the_stage_it_starts_from():
    found = parse_dockerfile('FROM x AS a\nCMD ["c"]\nFROM a\nENTRYPOINT ["e"]')
    assert found.start_command() == ("e",)


# -- what can't be read


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "has no FROM"),
        ("# only\n", 1, "has no FROM"),
        ("ARG A=1", 1, "has no FROM"),
        ("\nRUN x\nFROM y", 2, "RUN stands before the first FROM"),
        ("FROM x\nFORM y", 2, "has the unknown instruction 'FORM'"),
        ("FROM", 1, "FROM has no arguments"),
        ("FROM x\nRUN", 2, "RUN has no arguments"),
        ("FROM x\nWORKDIR", 2, "WORKDIR has no arguments"),
        ("FROM a b", 1, "FROM must be FROM <image>"),
        ("FROM a is b", 1, "FROM must be FROM <image>"),
        ("FROM $NOPE", 1, "names no image"),
        ("FROM x\nENV A", 2, "ENV has A without a value"),
        ("FROM x\nENV A=1 B", 2, "ENV has 'B', which is not KEY=value"),
        ("FROM x\nENV A='x", 2, "ENV has a ' without its end"),
        ('FROM x\nENV A="x', 2, 'ENV has a " without its end'),
        ("FROM x\nENV A=${B", 2, "ENV has a ${ without its }"),
        ("FROM x\nENV A=${B:-", 2, "ENV has a ${ without its }"),
        ("FROM x\nENV A=${}", 2, "ENV has a ${ that no name follows"),
        ("FROM x\nENV A=${B%c}", 2, "ENV has ${B%c…}, a form that isn't known here"),
        ('FROM x\nENV A="${B:?set it}"', 2, "ENV needs the variable B: set it"),
        ("FROM x\nENV A=" + "${B:-" * 3000, None, "is nested too deeply"),
        ("FROM x\nEXPOSE http", 2, "EXPOSE has 'http', which is no port"),
        ("FROM x\nEXPOSE 70000", 2, "no port"),
        ("FROM x\nEXPOSE 9-8", 2, "no port"),
        ("FROM x\nSHELL bash", 2, "SHELL must be a JSON array"),
        ("FROM x\nRUN \\\n  <<EOF\n a", 3, "opens the here-document 'EOF', which has no end"),
        ("# escape=x\nFROM x", 1, "sets escape to 'x'"),
        ("# escape=`\n# escape=`\nFROM x", 2, "sets the directive escape twice"),
    ],
)
def test_what_is_refused_names_its_line(text, line, message):
    with pytest.raises(ImageError) as caught:
        parse_dockerfile(text, "Dockerfile")
    assert str(caught.value).startswith(f"Dockerfile:{line}: " if line else "Dockerfile: ")
    assert message in str(caught.value)


def test_files(tmp_path):
    path = tmp_path / "Dockerfile"
    path.write_text("FROM x\nCMD a\n")
    assert read_dockerfile(path).start_command() == ("/bin/sh", "-c", "a")
    for make, why in (
        (lambda: path.write_bytes(b"FROM \xff"), "not UTF-8"),
        (lambda: path.write_bytes(b"#" * (8 * 1024 * 1024 + 1)), "8 MiB"),
        (path.unlink, "No such file"),
        (path.mkdir, "Is a directory"),
    ):
        make()
        with pytest.raises(ImageError, match=why):
            read_dockerfile(path)


# -- against an engine


@pytest.mark.docker
@pytest.mark.parametrize(
    "text",
    [
        'FROM scratch\nENV A="x y" B=\'z  w\' C=p\\ q\nENV D $A  text "q"\nENV E=$A F=${N:-${A}x} G="${N:-a b}"\n'
        'ENV H=${A:+yes} I=\'$A\' J="\\$A" K=\\$A L=x${A}y$ M=$A2 O=a=b P=#x Q="a\'b" R=\'a"b\' S=a"b c"d',
        "FROM scratch AS base\nENV A=1\nWORKDIR /app\nWORKDIR sub/../x/\nUSER bob\nEXPOSE 80 443/tcp 9000-9001\n"
        'CMD ["a", "b"]\nFROM base\nWORKDIR y\nENV B=$A\nENTRYPOINT exec e',
        "FROM scratch\nCMD ['a']",
        'FROM scratch\nCMD ["b"]\nENTRYPOINT ["a"]',
        'FROM scratch\nENTRYPOINT ["a"]\nENTRYPOINT []\nCMD b',
        'FROM scratch\nSHELL ["/bin/bash", "-c"]\nCMD  echo   "a"   b ',
        "ARG T=1\nFROM scratch\nARG T\nARG U=2$T\nENV A=$T$U W=${Q:-no}\nUSER $U:g\nWORKDIR /a b/$T",
        "# escape=`\nFROM scratch\nENV A=C:\\x `\n  B=1\n",
        'FROM scratch\nENV A=1 \\\n\n # c\n B=2\nCMD ["x", \\\n "y"]',
        'FROM scratch\nARG P="80 443"\nEXPOSE $P\nENV A=a\\\nb',
    ],
)
def test_an_engine_reads_it_the_same_way(text):
    import docker

    client = docker.from_env()
    try:
        image, _ = client.images.build(fileobj=io.BytesIO(text.encode()), rm=True, forcerm=True)
        built = image.attrs["Config"]
        client.images.remove(image.id, force=True)
    finally:
        client.close()
    ours = parse_dockerfile(text)
    # BuildKit sets a PATH where the base image has none.
    assert sorted(f"{key}={value}" for key, value in ours.env.items()) == sorted(
        entry for entry in built["Env"] or [] if not entry.startswith("PATH=")
    )
    assert [ours.workdir or "", ours.user or ""] == [built["WorkingDir"], built["User"]]
    assert sorted(ours.exposed) == sorted(int(port.split("/")[0]) for port in built.get("ExposedPorts") or ())
    assert list(ours.start_command()) == (built["Entrypoint"] or []) + (built["Cmd"] or [])
