"""The course over any executor: runs that end, that are cut off, refused or lost, and submissions sent as bytes."""

import errno
import io
import json
import os
import socket
import sys
import tarfile
from contextlib import contextmanager
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from conformance.batch import graders
from conformance.batch.archives import MOST_FILES
from conformance.batch.course import Course, grade_course
from conformance.batch.entries import Entry, entries
from conformance.batch.executor import Job, Outcome
from conformance.batch.folders import remove_tree
from conformance.batch.graders import Graders
from conformance.batch.local_executor import LocalExecutor
from conformance.batch.progress import CourseProgress
from conformance.batch.ray_executor import RayExecutor, ray_options
from conformance.batch.record import Record
from conformance.batch.shipping import Inbox, Shipment, Update, graded, hold_sandboxes, packed
from conformance.batch.warm_grader import FORKED
from conformance.cli import main
from conformance.execution.fork_servers import ForkServers
from conformance.grading.formats import to_json_text
from conformance.grading.grade import Grading, planned
from conformance.reproduction.replay import SCHEMA
from conformance.sandbox.attempts import Sandboxes
from pytest_ddp.errors import LaunchError, UsageError

COMPONENT = "naive_ddp"
ENDED, CUT_OFF, LOST = Outcome("ended"), Outcome("cut off"), Outcome("lost", "node7 was lost: NodeDiedError")


class Scripted:
    """An executor that runs nothing: each job has the next outcome of its submission.

    A run that ends has graded its components, unless `Outcome("ended", "unfinished")` says otherwise.
    """

    def __init__(self, **outcomes: list[Outcome]) -> None:
        self.outcomes, self.jobs, self.cancelled = outcomes, [], False
        self._waiting: list[Job] = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, job):
        self._waiting.append(job)
        self.jobs.append((job.record.name, job.number, job.components))

    def as_completed(self):
        while self._waiting:
            job = self._waiting.pop(0)
            outcome = self.outcomes[job.record.name].pop(0)
            if outcome == ENDED:
                write_part(job.record)
            yield job, outcome

    def cancel(self):
        self.cancelled = True


def write_part(record: Record) -> None:
    """Write what a grader finds where nothing is submitted."""
    plan = planned(record.name, Grading(1, 2, record.components, 1))
    absent = (replace(one, submitted=False, graded=True) for one in plan.components)
    record.next_part().write_text(to_json_text([replace(plan, components=tuple(absent))]), encoding="utf-8")


@pytest.fixture
def course(tmp_path):
    for name in ("ada", "bob"):
        (tmp_path / "course" / name).mkdir(parents=True)
        (tmp_path / "course" / name / "adapters.py").write_text(f"name = {name!r}\n", encoding="utf-8")
    return Course(entries(tmp_path / "course"), tmp_path / "out", Grading(1, 2, (COMPONENT,), 1), (), (), 60)


def look_at(course: Course, executor: Scripted) -> dict[str, tuple[str, ...]]:
    return {one.name: one.look_at for one in grade_course(course, executor, CourseProgress())}


def test_a_lost_run_costs_a_retry_and_is_told(course, capsys):
    executor = Scripted(ada=[LOST, ENDED], bob=[ENDED])
    found = look_at(course, executor)
    assert found["ada"] == found["bob"] == ("none of the components is submitted",)
    assert executor.jobs == [("ada", 1, (COMPONENT,)), ("bob", 1, (COMPONENT,)), ("ada", 2, (COMPONENT,))]
    assert "conformance: ada is graded again: node7 was lost: NodeDiedError\n" in capsys.readouterr().err


def test_a_submission_that_is_lost_three_times_is_given_up(course):
    executor = Scripted(ada=[LOST, LOST, LOST], bob=[ENDED])
    assert "the grader ended 3 times before it was done" in look_at(course, executor)["ada"][0]
    assert [number for name, number, _ in executor.jobs if name == "ada"] == [1, 2, 3]


def test_a_run_that_is_cut_off_or_refused_is_not_repeated(course):
    executor = Scripted(ada=[CUT_OFF], bob=[Outcome("refused", "bob.zip cannot be unpacked")])
    found = look_at(course, executor)
    assert found["ada"] == ("cut off after 60 s: --resume with a larger --limit goes on",)
    assert found["bob"] == ("bob.zip cannot be unpacked",)
    assert len(executor.jobs) == 2


def test_what_cannot_be_read_is_refused_and_costs_the_others_nothing(course):
    bob = course.entries[1].path
    (bob / "/".join("a" * 100)).mkdir(parents=True)
    executor = Scripted(ada=[ENDED])
    assert look_at(course, executor)["bob"] == ("bob cannot be read: bob has more than 64 folders in one another",)
    assert [name for name, _, _ in executor.jobs] == ["ada"]
    remove_tree(bob)
    bob.mkdir()
    assert "bob" in look_at(course, Scripted(bob=[ENDED])), "it is graded when it has been put right"


def test_the_limit_counts_from_when_the_grader_is_forked(tmp_path, monkeypatch):
    monkeypatch.setattr(graders, "EXIT_SECONDS", 0.1)
    found = Graders(Grading(1, 2, (COMPONENT,), 1))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    found.warm = SimpleNamespace(control=ours)
    with ours, theirs:
        run = found.run([], tmp_path / "log.txt", tmp_path / "tmp", 0.2)
        assert [next(run) for _ in range(5)] == [False] * 5
        _, fds, _, _ = socket.recv_fds(theirs, 1000, 2)
        os.close(fds[1])
        with socket.socket(fileno=fds[0]) as channel:
            channel.send(FORKED)
            assert list(run) == [False], "it is cut off, also if it does not end in time"


def test_a_course_stops_if_what_forks_graders_fails(tmp_path, capfd):
    failed = pytest.raises(LaunchError, match="has failed; its error is printed above")
    with Graders(Grading(1, 2, ("nothing",), 1)) as found, failed:
        list(found.run([], tmp_path / "log.txt", tmp_path / "tmp", 60))
    assert "KeyError: 'nothing'" in capfd.readouterr().err


def test_where_a_required_sandbox_is_refused_nobody_is_graded(tmp_path, monkeypatch, capsys):
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada/adapters.py").touch()
    monkeypatch.setattr(Sandboxes, "servers", refused)
    monkeypatch.setattr(ForkServers, "begin", lambda _: None)
    monkeypatch.setattr(ForkServers, "close", lambda _: None)
    asked = ["--isolation", "require", "--components", COMPONENT, "--seed", "1", "--world-size", "2"]
    assert main([str(tmp_path / "ada"), *asked]) == 2
    assert "mend the adapters" not in "".join(capsys.readouterr())
    assert main([str(tmp_path), *asked, "--out", str(tmp_path / "out")]) == 2
    assert "this machine refuses" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@contextmanager
def refused(*_):
    raise UsageError("this machine refuses")
    yield


def test_a_name_that_is_no_utf8_is_escaped(course):
    name = os.fsdecode(b"Jos\xe9")
    found = look_at(
        replace(course, entries=[Entry("ada", Path(name))]), Scripted(ada=[Outcome("refused", f"no {name}")])
    )
    assert found == {"ada": (r"no Jos\udce9",)}
    assert r"no Jos\udce9." in (course.out / "ada/report.html").read_text(encoding="utf-8")


def test_a_job_refuses_what_cannot_be_read(job):
    loop = job.entry.path.with_name("loop")
    loop.symlink_to("loop")
    with pytest.raises(UsageError, match="loop is not there"):
        replace(job, entry=replace(job.entry, path=loop)).folder()


def test_what_was_graded_before_an_interruption_is_kept(course):
    class Interrupted(Scripted):
        def as_completed(self):
            yield next(super().as_completed())
            raise KeyboardInterrupt

    executor = Interrupted(ada=[ENDED], bob=[])
    with pytest.raises(KeyboardInterrupt):
        look_at(course, executor)
    assert executor.cancelled
    again = Scripted(bob=[ENDED])
    assert set(look_at(course, again)) == {"ada", "bob"}
    assert again.jobs == [("bob", 1, (COMPONENT,))]


class Writing:
    """Stands for `graders.Graders`: writes what a grader would, in two steps, and keeps its command line."""

    def run(self, arguments, log, _, limit):
        self.submission, self.limit = Path(arguments[1]), limit
        self.part, scripts = (Path(arguments[arguments.index(option) + 1]) for option in ("--json", "--repro-dir"))
        self.text = (self.submission / "adapters.py").read_text(encoding="utf-8")
        place = scripts / str(self.submission).lstrip("/")
        place.mkdir(parents=True)
        (place / "naive_ddp-averages.py").write_text(f"sys.path[:0] = ['{self.submission}']\n", encoding="utf-8")
        log.write_text(f"graded {self.submission}\n", encoding="utf-8")
        self.part.write_text(f'{{"script": "{place}/naive_ddp-averages.py"}}', encoding="utf-8")
        yield False
        yield False
        with log.open("a", encoding="utf-8") as opened:
            opened.write("ended\n")
        yield True


@pytest.fixture
def job(course):
    record = course.results.record("ada")
    record.folder.mkdir(parents=True)
    return Job(course.entries[0], record, (COMPONENT,), ("--components", COMPONENT), 60)


def test_a_submission_graded_elsewhere_leaves_what_a_run_here_would(job, tmp_path):
    graders, folder = Writing(), job.folder()
    updates = list(graded(Shipment.of(job, folder), graders, "node7"))
    assert [update.state for update in updates] == ["runs", "runs", "ended"]
    assert (graders.text, graders.limit) == ("name = 'ada'\n", 60)
    assert graders.submission != folder
    assert not graders.submission.exists()
    inbox = Inbox(job, job.record.next_part(), folder)
    for update in updates:
        inbox.take(update)
    script = tmp_path / "out/ada/scripts" / str(folder).lstrip("/") / "naive_ddp-averages.py"
    assert script.read_text(encoding="utf-8") == f"sys.path[:0] = ['{folder}']\n"
    assert (tmp_path / "out/ada/part-000.json").read_text(encoding="utf-8") == f'{{"script": "{script}"}}'
    assert (tmp_path / "out/ada/log.txt").read_text(encoding="utf-8") == f"graded {folder}\nended\n"


def test_what_a_killed_run_left_on_a_node_goes(job, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept, gone = tmp_path / f"pytest-ddp-grade-{os.getpid()}-x", tmp_path / "pytest-ddp-grade-999999999-x"
    for folder in (kept, gone):
        (folder / "submission").mkdir(parents=True)
    list(graded(Shipment.of(job, job.folder()), Writing(), "node7"))
    assert list(tmp_path.glob("pytest-ddp-grade-*")) == [kept]


def test_scripts_of_an_earlier_run_go(job, tmp_path):
    place = tmp_path / "out/ada/scripts" / str(job.folder()).lstrip("/")
    place.mkdir(parents=True)
    (place / "naive_ddp-sums.json").write_text(json.dumps({"schema": SCHEMA}), encoding="utf-8")
    (place / "notes.py").touch()
    Inbox(job, job.record.next_part(), job.folder()).begin()
    assert [path.name for path in place.iterdir()] == ["notes.py"]


def test_another_version_on_a_node_is_refused(job):
    shipment = Shipment("ada", packed(job.folder()), (), 60, {"torch": "1.0"})
    with pytest.raises(UsageError, match=r"node7 has torch .*, and this machine 1\.0: grades need the same on all"):
        next(graded(shipment, Writing(), "node7"))


def test_a_node_that_refuses_required_sandboxes_grades_nobody(job, monkeypatch):
    monkeypatch.setattr(Sandboxes, "servers", refused)
    monkeypatch.setattr(ForkServers, "begin", lambda _: None)
    monkeypatch.setattr(ForkServers, "close", lambda _: None)
    hold_sandboxes.cache_clear()
    shipment = Shipment.of(replace(job, arguments=("--isolation", "require")), job.folder())
    with pytest.raises(UsageError, match="this machine refuses"):
        next(graded(shipment, Writing(), "node7"))


def test_a_full_disk_stops_the_course_and_is_nobodys_fault(job, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Entry, "folder", full)
    with pytest.raises(OSError, match="No space left on device"):
        job.folder()


def names(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        assert all(one.isfile() or one.isdir() for one in opened)
        return sorted(opened.getnames())


def test_a_packed_submission_has_what_its_digest_covers(job):
    folder = job.folder()
    for kept in (".git", "__pycache__", ".venv"):
        (folder / kept).mkdir()
        (folder / kept / "x").touch()
    (folder / "link.py").symlink_to("adapters.py")
    assert names(packed(folder)) == ["ada", "ada/adapters.py", "ada/link.py"]
    assert names(packed(folder / "adapters.py")) == ["adapters.py"]


def test_what_may_not_be_in_an_archive_is_not_sent(job, tmp_path):
    folder = job.folder()
    (tmp_path / "secret").touch()
    (folder / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(UsageError, match="ada holds a link that leads outside, 'link'"):
        packed(folder)
    (folder / "link").unlink()
    (folder / "folder").symlink_to(".")
    with pytest.raises(UsageError, match="ada holds a link to a folder, 'folder'"):
        packed(folder)
    (folder / "folder").unlink()
    for number in range(MOST_FILES):
        os.link(folder / "adapters.py", folder / f"{number}.py")
    with pytest.raises(UsageError, match="ada has more than 10000 files"):
        packed(folder)


@pytest.mark.parametrize(
    ("request_", "options"),
    [
        ("", {"num_cpus": 1}),
        ("cpu=4,gpu=0.5,memory=2GiB", {"num_cpus": 4, "num_gpus": 0.5, "memory": 2**31}),
        ("cpu=0,big=1", {"num_cpus": 0, "resources": {"big": 1}}),
    ],
)
def test_a_request_becomes_options_of_ray(request_, options):
    assert ray_options(request_) == options


@pytest.mark.parametrize("wrong", ["cpu", "cpu=many", "memory=2", "memory=2GB", "=1"])
def test_a_request_that_cannot_be_read_is_named(wrong):
    with pytest.raises(UsageError, match=f"--ray-request '{wrong}': give, for example, cpu=2"):
        ray_options(wrong)


def test_without_ray_its_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"needs the package ray: pip install 'pytest-ddp\[ray\]'"):
        RayExecutor(Grading(1, 2, (COMPONENT,), 1), None, print, {})


def test_options_of_ray_need_its_executor(course, capsys):
    given = ["grade", str(course.out.parent / "course"), "--out", str(course.out), "--seed", "1"]
    assert main([*given, "--ray-address", "auto"]) == 2
    assert "--ray-address is for --executor ray" in capsys.readouterr().err


def test_cancelling_ends_runs_and_those_that_wait(job, course, monkeypatch):
    class Endless:
        def run(self, *_):
            yield from repeat(False)

    began = SimpleQueue()
    monkeypatch.setattr("conformance.batch.local_executor.Graders", lambda *_, **__: Endless())
    executor = LocalExecutor(course.grading, 1, began.put)
    executor.submit(job)
    executor.submit(job)
    assert began.get() == job.record
    executor.cancel()
    assert list(executor.as_completed()) == [(job, Outcome("stopped"))] * 2
    assert began.empty()


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause):
        super().__init__(f"the traceback of {cause}")
        self.cause = cause


class DiskFullError(RayTaskError, OSError):
    """As Ray makes it of an OSError."""


class FakeRay:
    """Stands for the package `ray`: each task yields the next list of updates, or raises what is in it."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, *tasks: list[object]) -> None:
        self.tasks, self.most, self.cancelled = [iter(task) for task in tasks], 0, []

    def is_initialized(self):
        return True

    def cluster_resources(self):
        return {"CPU": 1.0}

    def remote(self, **options):
        self.options = options
        return lambda _: SimpleNamespace(remote=lambda *_: self.tasks.pop(0))

    def wait(self, streams, num_returns):
        self.most = max(self.most, len(streams))
        return streams[:num_returns], streams[num_returns:]

    def get(self, update):
        if isinstance(update, Exception):
            raise update
        return update

    def cancel(self, stream, *, force):
        self.cancelled.append((stream, force))


def update(state: str) -> Update:
    return Update("node7", "/there", "there/submission", state, b"", {})


@pytest.fixture
def on_ray(job, monkeypatch):
    """Run five jobs on a fake of Ray; return its outcomes and the executor."""

    def run(*tasks):
        fake = FakeRay(*tasks)
        monkeypatch.setitem(sys.modules, "ray", fake)
        began = []
        executor = RayExecutor(Grading(1, 2, (COMPONENT,), 1), None, began.append, ray_options("cpu=0.5"))
        with executor:
            for _ in tasks:
                executor.submit(job)
            outcomes = [outcome for _, outcome in executor.as_completed()]
        return fake, outcomes, began

    return run


def test_ray_gets_as_many_jobs_as_keep_it_busy(on_ray, job):
    fake, outcomes, began = on_ray(*[[update("runs"), update("ended")] for _ in range(5)])
    assert outcomes == [ENDED] * 5
    assert began == [job.record] * 5
    assert fake.most == 2, "twice the one that a CPU can run"
    assert fake.options == {
        "num_cpus": 0.5,
        "num_returns": "streaming",
        "max_retries": 0,
        "scheduling_strategy": "SPREAD",
    }


def test_a_node_that_is_lost_is_named(on_ray, job):
    lost = RayError("its raylet died\nmore")
    _, outcomes, _ = on_ray([update("runs"), lost], [lost], [DiskFullError(OSError("disk full"))])
    assert [one.kind for one in outcomes] == ["lost"] * 3
    assert outcomes[0].why == "node7 was lost: RayError: its raylet died"
    assert outcomes[1].why == "a node was lost: RayError: its raylet died"
    assert (job.record.folder / "log.txt").read_text(encoding="utf-8").startswith("conformance: node7 was lost: ")


def test_a_node_that_cannot_grade_ends_the_grade(on_ray):
    with pytest.raises(
        UsageError, match="a Ray node cannot grade, which needs pytest-ddp on every node; then use --re"
    ):
        on_ray([RayTaskError(ModuleNotFoundError("No module named 'conformance'"))])
    with pytest.raises(UsageError, match="node7 has torch 1"):
        on_ray([RayTaskError(UsageError("node7 has torch 1"))])


def test_cancelling_cancels_tasks_of_ray(job, monkeypatch):
    fake = FakeRay([update("runs"), update("runs")])
    monkeypatch.setitem(sys.modules, "ray", fake)
    task = fake.tasks[0]
    with RayExecutor(Grading(1, 2, (COMPONENT,), 1), 1, print, ray_options("")) as executor:
        executor.submit(job)
        executor.submit(job)
        assert list(executor._send()) == []
        executor.cancel()
        assert list(executor.as_completed()) == []
    assert fake.cancelled == [(task, True)]
