"""What a sandbox shows and enforces, as values: no process is started."""

import errno
import json
import os
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from conformance.diagnosis.advice import advise
from conformance.diagnosis.limits import limit_met
from conformance.execution.deadlines import Deadlines
from conformance.execution.fork_servers import own_files
from conformance.execution.restart import restart
from conformance.sandbox import cgroups as cgroup_module
from conformance.sandbox import plan as plans
from conformance.sandbox import sandbox as sandbox_module
from conformance.sandbox import view as views
from conformance.sandbox import zygote as zygote_module
from conformance.sandbox.attempts import Sandboxes
from conformance.sandbox.cgroups import cgroups, memory_kills
from conformance.sandbox.plan import Plan, clean_environment, completed, ladder
from conformance.sandbox.sandbox import Sandbox, outside_id
from conformance.sandbox.view import TMP, View, view_of
from conformance.sandbox.zygotes import BusyError, RefusedError
from conformance.scenarios.scenario import Scenario
from conformance.submissions.location import Location, locate
from pytest_ddp.errors import LaunchError, UsageError
from pytest_ddp.outcomes.failure import describe_outcome
from pytest_ddp.outcomes.outcome import Died


@pytest.fixture
def folders(tmp_path):
    """Make folders below a new one, and return their paths."""

    def make(*names):
        for name in names:
            (tmp_path / name).mkdir(parents=True)
        return [str(tmp_path / name) for name in names]

    return make


def test_the_submission_is_shown_and_no_folder_that_holds_more(folders):
    course, alice, bob, path = folders("course", "course/alice", "course/bob", "packages")
    shown = view_of([alice], uid=1, path=["", course, path], private=[]).shown
    assert {alice, path} <= set(shown)
    assert not {course, bob} & set(shown)


def test_a_folder_with_something_private_is_not_shown_because_modules_are_in_it(folders):
    home, below, cwd = folders("home", "home/.local/lib", "home/work")
    shown = view_of([], uid=1, path=[home, below, cwd], private=[home, cwd]).shown
    assert below in shown
    assert not {home, cwd} & set(shown)


def test_our_packages_are_shown_and_not_the_folder_that_holds_them(folders):
    ours = Path(plans.__file__).parents[1]
    (elsewhere,) = folders("elsewhere")
    shown = view_of([], uid=1, path=[str(ours.parent)], private=[elsewhere]).shown
    assert str(ours) in shown
    assert str(ours.parent) not in shown


def test_references_beside_an_installed_grader_seem_to_be_empty_unless_they_are_graded(folders, monkeypatch):
    packages, solutions, part = folders("packages", "packages/reference", "packages/reference/ddp")
    monkeypatch.setattr(views, "_SOLUTIONS", solutions)
    (ada,) = folders("packages-of-ada")
    for own in (ada, packages):  # a student may install the grader in the folder of the assignment
        assert view_of([own], uid=1, path=[packages], private=[]).emptied == (solutions,)
    assert view_of([ada], uid=1, path=[], private=[]).emptied == ()
    for graded in (solutions, part):
        assert view_of([graded], uid=1, path=[packages], private=[]).emptied == ()


def test_links_on_the_way_are_made_again(folders, tmp_path):
    (real,) = folders("real/packages")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "other").symlink_to(tmp_path / "link")
    view = view_of([str(tmp_path / "other" / "packages")], uid=1, path=[], private=[])
    assert real in view.shown
    assert (str(tmp_path / "link"), "real") in view.links
    assert (str(tmp_path / "other"), str(tmp_path / "link")) in view.links


def test_the_interpreter_is_shown():
    shown = view_of([], uid=1, path=[], private=[]).shown
    for place in (sys.executable, sys.prefix, sys.base_prefix, json.__file__):
        assert any(os.path.realpath(place).startswith(one) for one in shown)


def test_a_module_is_its_package_and_a_file_is_alone(tmp_path, monkeypatch):
    (reference,) = own_files(locate("reference.adapters"))
    assert Path(reference).name == "reference"
    assert own_files(Location("x", "x", "/tmp/x.py", "/tmp", ("/tmp",))) == ("/tmp/x.py",)
    for name in ("here.py", "adapters.py"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert own_files(locate("here.py")) == (str(tmp_path / "here.py"),)
    assert set(own_files(locate("adapters.py"))) == {str(tmp_path)}


def test_the_users_home_is_never_shown_as_a_whole(tmp_path, monkeypatch):
    home = tmp_path / "home"
    for folder in (home, tmp_path):
        folder.mkdir(exist_ok=True)
        (folder / "adapters.py").touch()
    monkeypatch.setenv("HOME", str(home))
    for folder in (home, tmp_path):
        assert own_files(locate(str(folder))) == (str(folder / "adapters.py"),)


def test_the_sandbox_shows_nothing_that_a_submission_names_outside_of_its_folder(folders, tmp_path):
    ada, _, secret = folders("course/ada", "course/bob/src", "secret")
    (tmp_path / "course/ada/adapters.py").touch()
    (tmp_path / "course/ada/src").symlink_to(secret)
    for named in ("../bob", "../..", "/", str(Path(plans.__file__).parents[2])):
        (tmp_path / "course/ada/pyproject.toml").write_text(f'[tool.uv.sources]\nx = {{ path = "{named}" }}')
        shown = set(view_of(own_files(locate(ada)), uid=1, path=[], private=[]).shown)
        assert shown - set(view_of([], uid=1, path=[], private=[]).shown) == {ada}


def test_the_environment_is_an_allow_list():
    outer = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "AWS_SECRET": "x",
        "PYTHONPATH": "x",
        "HOME": "/root",
        "OMP_NUM_THREADS": "9",
    }
    found = clean_environment(outer)
    assert found == {
        "PATH": "/bin", "LC_ALL": "C", "HOME": "/tmp/home", "TMPDIR": "/tmp", "USER": "submission",
        "LOGNAME": "submission", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    }  # fmt: skip


ALL = Plan(namespaces=True, user_namespace=True, uid=7, limits={"FSIZE": 1}, cgroups={"memory": "x", "pids": "x"})
ALL_WORDS = (
    "own user; user, PID, mount, IPC and network namespaces; no network; 2 GiB /tmp; clean environment; limits on "
    "file size; cgroup: memory and processes"
)


@pytest.mark.parametrize(("plan", "words"), [
    (Plan(), "none; clean environment"),
    (Plan(limits={"AS": 1, "NOFILE": 1}),
     "the user of the grader; clean environment; limits on memory, open files; cgroup: none"),
    (Plan(uid=7, limits={"NPROC": 1}), "own user; clean environment; limits on threads; cgroup: none"),
    (ALL, ALL_WORDS),
])  # fmt: skip
def test_the_report_says_what_is_enforced(plan, words):
    assert plan.enforced == words


def test_a_plan_survives_the_trip_to_a_zygote():
    view = View(("/usr",), (("/bin", "usr/bin"),), (("/etc/hosts", "x"),))
    plan = completed(Plan(namespaces=True, uid=5), view, {"PATH": "x"}, {"pids": "/sys/x"})
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert plan.limits["CORE"] == 0
    assert {"AS", "FSIZE", "NOFILE", "NPROC"} <= plan.limits.keys()


def test_threads_are_limited_only_where_they_are_counted_apart(monkeypatch):
    monkeypatch.setattr(plans, "_linux", lambda: (5, 10))
    assert "NPROC" not in plans.limits(Plan(namespaces=True, user_namespace=True))
    assert "NPROC" in plans.limits(Plan(uid=5))


def test_root_tries_another_user_and_everybody_tries_namespaces_first():
    assert [(plan.namespaces, plan.user_namespace, plan.uid is not None) for plan in ladder(root=True)] == [
        (True, True, True), (True, False, True), (False, False, True), (False, False, False),
    ]  # fmt: skip
    assert [(plan.namespaces, plan.uid) for plan in ladder(root=False)] == [(True, None), (False, None)]


class Refuses:
    """A zygote on a machine that refuses everything."""

    def ask(self, *_):
        raise RefusedError("[Errno 1] unshare: Operation not permitted")


def test_a_sandbox_that_is_required_and_refused_ends_the_grade():
    refused = (
        "this machine does not let the grader make a sandbox: .*unshare: Operation not permitted.*--isolation=auto"
    )
    with pytest.raises(UsageError, match=refused), Sandboxes("require", [Refuses()]).servers([]):
        raise AssertionError("there is none")


class RefusesFiles:
    """A zygote on a machine that makes sandboxes, but cannot show the files of one submission."""

    def __init__(self):
        self.asked = []

    def ask(self, _, plan, *__):
        self.asked.append((plan.namespaces, "/bad" in plan.view.shown))
        raise RefusedError("mount: refused") if "/bad" in plan.view.shown else BusyError("this test makes no sandbox")


def test_a_submission_that_cannot_be_shown_leaves_the_next_one_all_isolation(monkeypatch):
    zygote = RefusesFiles()
    monkeypatch.setattr("conformance.sandbox.attempts._PAUSE_SECONDS", 0)
    monkeypatch.setattr("conformance.sandbox.attempts.view_of", lambda files, **_: View(tuple(files)))
    sandboxes = Sandboxes("require", [zygote])
    with pytest.raises(UsageError, match="mount: refused"), sandboxes.servers(["/bad"]):
        pass
    with pytest.raises(BusyError), sandboxes.servers(["/good"]):
        pass
    assert zygote.asked[-1] == (True, False)


def test_where_nothing_can_be_started_auto_does_not_speak_of_require(monkeypatch):
    monkeypatch.setattr(Sandboxes, "_tried", Refuses.ask)
    refused = pytest.raises(LaunchError, match=r"with a sandbox or without: .*unshare")
    with refused as raised, Sandboxes("auto", [Refuses()]).servers([]):
        pass
    assert "require" not in str(raised.value)


def test_a_system_without_cgroups_is_none_that_refuses(tmp_path, monkeypatch):
    monkeypatch.setattr(
        cgroup_module, "Path", lambda *parts: tmp_path / "none" if parts[0] == "/proc/self/cgroup" else Path(*parts)
    )
    with cgroups(tmp_path) as groups:
        assert groups == {}


def test_another_system_is_told_that_linux_is_needed(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UsageError, match="needs Linux"):
        restart([])


@pytest.fixture
def served():
    """A connection to a zygote's loop, which runs in a thread."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    thread = threading.Thread(target=zygote_module._serve, args=(theirs,))
    thread.start()
    with ours:
        yield ours
    thread.join(60)
    assert not thread.is_alive()
    theirs.close()


def connected(served):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        socket.send_fds(served, [zygote_module.CONNECT], [theirs.fileno()])
    return ours


def ask_for_nothing(connection):
    asked = json.dumps({"do": "serve", "plan": Plan().to_json()}).encode()
    with Path(os.devnull).open() as control:
        socket.send_fds(connection, [asked], [control.fileno()])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a zygote that ends closes nothing
def test_a_grader_that_ends_before_it_reads_an_answer_ends_no_zygote(served, monkeypatch):
    monkeypatch.setattr(zygote_module, "_start_server", lambda *_: {"pid": 7})
    killed, other = connected(served), connected(served)
    ask_for_nothing(killed)
    select.select([killed], [], [], 60)
    killed.close()
    with other:
        ask_for_nothing(other)
        other.settimeout(60)
        assert json.loads(other.recv(4096)) == {"pid": 7}


def test_a_zygote_that_cannot_fork_is_busy(served, monkeypatch):
    def refuse():
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(zygote_module.os, "fork", refuse)
    ask_for_nothing(served)
    served.settimeout(60)
    assert json.loads(served.recv(4096))["for_now"]


def test_a_zygote_that_fails_says_why(capfd):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        if (child := os.fork()) == 0:
            zygote_module.main(theirs.fileno(), os.getppid(), ["no_such_module_is_there"])
        assert os.waitpid(child, 0)[1] == 0
    assert "No module named 'no_such_module_is_there'" in capfd.readouterr().err


def test_the_judge_follows_no_link_that_a_rank_puts_in_place_of_a_folder(tmp_path, monkeypatch):
    (tmp_path / "judges").mkdir(mode=0o700)
    make = os.mkdir

    def make_and_replace(name, **options):
        make(name, **options)
        (tmp_path / name).rmdir()
        (tmp_path / name).symlink_to(tmp_path / "judges")

    descriptor = os.open(tmp_path, os.O_RDONLY)
    sandbox = Sandbox(Plan(namespaces=True), _folders={TMP: descriptor})
    monkeypatch.setattr(os, "mkdir", make_and_replace)
    with sandbox.folder(in_memory=False):
        assert (tmp_path / "judges").stat().st_mode & 0o777 == 0o700
    os.close(descriptor)


def nest(folder, levels=1500):
    """Make folders in one another; the path of the last one is longer than the system takes."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("x", dir_fd=here)
        inner = os.open("x", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


def test_folders_that_ranks_nest_end_no_grade(tmp_path):
    with Sandbox(Plan()).folder(in_memory=False) as folder:
        nest(folder)
    assert not Path(folder).exists()
    descriptor = os.open(tmp_path, os.O_RDONLY)
    with Sandbox(Plan(namespaces=True), _folders={TMP: descriptor}).folder(in_memory=False) as folder:
        nest(tmp_path / Path(folder).name)
    os.close(descriptor)
    subprocess.run(["/bin/rm", "-rf", tmp_path / Path(folder).name], check=True)


VERSION_1 = "4:memory:/box\n3:cpuset:/\n8:pids:/\n0::/\n"


def test_a_busy_machine_is_asked_again_for_the_same_sandbox(monkeypatch):
    asked = []

    class Busy:
        def ask(self, _, plan, *__):
            asked.append(plan.namespaces)
            raise BusyError("[Errno 11] Resource temporarily unavailable")

    monkeypatch.setattr("conformance.sandbox.attempts._PAUSE_SECONDS", 0)
    with pytest.raises(BusyError, match="temporarily"), Sandboxes("auto", (Busy(), Busy())).servers([]):
        pass
    assert asked == [True] * len(asked)
    assert len(asked) > 1


def test_a_cgroup_of_version_1_is_made_below_the_own_one(tmp_path):
    for folder in ("memory/box", "pids"):
        (tmp_path / folder).mkdir(parents=True)
    with cgroups(tmp_path, VERSION_1) as groups:
        assert Path(groups["memory"]).parent == tmp_path / "memory" / "box"
        assert Path(groups["pids"]).parent == tmp_path / "pids"
        assert int(Path(groups["memory"], "memory.limit_in_bytes").read_text()) > 2**20
        assert memory_kills(groups) == 0
        Path(groups["memory"], "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
        assert memory_kills(groups) == 2


def test_cgroups_of_judges_that_were_killed_are_removed(tmp_path):
    stale, other = tmp_path / "pids" / "pytest-ddp-99999999-ab", tmp_path / "pids" / f"pytest-ddp-{os.getpid()}-ab"
    for folder in (stale, other):
        folder.mkdir(parents=True)
    with cgroups(tmp_path, VERSION_1):
        assert not stale.exists()
        assert other.exists()


def test_a_cgroup_of_version_2_is_made_beside_the_own_one(tmp_path):
    (tmp_path / "user" / "shell").mkdir(parents=True)
    (tmp_path / "cgroup.controllers").touch()
    with cgroups(tmp_path, "0::/user/shell\n") as groups:
        assert groups["memory"] == groups["pids"]
        assert Path(groups["memory"]).parent == tmp_path / "user"
        assert Path(groups["pids"], "pids.max").read_text() == "2048"


def test_without_a_writable_cgroup_there_is_none(tmp_path):
    with cgroups(tmp_path, VERSION_1) as groups:
        assert groups == {}


@pytest.mark.parametrize("listed", [True, False])
def test_a_child_is_found_also_where_the_list_of_children_leaves_it_out(listed, monkeypatch):
    with subprocess.Popen(["sleep", "60"]) as child:  # noqa: S607
        try:
            if not listed:
                monkeypatch.setattr(sandbox_module, "_listed_children", lambda _: iter(()))
            assert outside_id(os.getpid(), child.pid) == child.pid
        finally:
            child.kill()
    with pytest.raises(LaunchError, match="a rank ended as soon as it was forked"):
        outside_id(os.getpid(), child.pid)


def test_a_deadline_stays_bounded_on_a_loaded_machine():
    assert Deadlines(fastest=1e6, import_seconds=30).of(Scenario()) <= 300 + 60


def test_ranks_that_run_one_after_another_have_longer():
    deadlines = Deadlines(fastest=0.01)
    assert deadlines.of(Scenario(world_size=3, simulated=True)) == deadlines.of(Scenario(world_size=3)) == 10
    assert deadlines.of(Scenario(world_size=64, simulated=True)) == 160


def test_arguments_and_environment_wait_until_the_zygote_is_forked():
    """The program that `restart` executes has neither of them; `resume` gives them back to the judge."""
    begins = "import conformance.execution.restart as one; one.os.execve = lambda *call: print(call[1][-1], call[2]); "
    run = subprocess.run(
        [sys.executable, "-c", f"{begins} one.restart(['--seed', '12345'])"],
        env={**os.environ, "TOKEN": "secret", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "resume" in run.stdout
    assert "12345" not in run.stdout
    assert "secret" not in run.stdout


@pytest.mark.parametrize(("kind", "message", "words"), [
    ("OSError", "[Errno 28] No space left on device", "private /tmp and /dev/shm of a submission hold 2 GiB each"),
    ("OSError", "[Errno 101] Network is unreachable", "Submissions run without a network (--isolation)"),
    ("gaierror", "[Errno -3] Temporary failure in name resolution", "Submissions run without a network (--isolation)"),
    ("OSError", "[Errno 30] Read-only file system: 'log'", "its own folder is read-only (--isolation)"),
    ("OSError", "[Errno 27] File too large", "may write files of 2 GiB at most"),
    ("RuntimeError", "can't start new thread", "2048 processes and threads together"),
    ("BlockingIOError", "[Errno 11] Resource temporarily unavailable", "2048 processes and threads together"),
    ("OSError", "[Errno 24] Too many open files", "may have 4096 open files"),
    ("RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried", "The memory of a rank is limited"),
    ("ValueError", "no limit", ""),
])  # fmt: skip
def test_a_limit_that_was_met_is_named(kind, message, words):
    assert words in limit_met(kind, message)
    assert bool(words) == bool(advise(kind, message, Scenario(), on_all_ranks=True))


def test_ranks_that_the_cgroup_killed_say_so(tmp_path):
    died = Died(rank=0, seconds=1.0, output="", signal="SIGKILL")
    sandbox = Sandbox(Plan(cgroups={"memory": str(tmp_path)}))
    (tmp_path / "memory.events").write_text("oom_kill 0\n")
    assert sandbox.explained([died]) == [died]
    (tmp_path / "memory.events").write_text("oom_kill 1\n")
    (explained,) = sandbox.explained([died])
    assert "killed by SIGKILL: the memory that the ranks of a submission may have" in describe_outcome(explained)
    assert sandbox.explained([died]) == [died]
