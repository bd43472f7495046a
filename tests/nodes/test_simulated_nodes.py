"""The simulated nodes do what real ones do: they reach one another, lose their link, are slow, and end."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from simulated_nodes import Nodes, missing

pytestmark = pytest.mark.nodes
PORT = 29_400


def test_nodes_reach_one_another_and_nothing_else(make_nodes):
    first, second, third = make_nodes(3)
    second.take_port(PORT)
    assert first.reaches(second, PORT)
    assert third.reaches(second, PORT)
    assert second.run("ip", "route").startswith("10.56.0.0/24 dev eth0")
    assert second.run("ip", "route").count("\n") == 1


def test_a_node_has_a_name_that_the_others_know(make_nodes):
    first, second = make_nodes(2)
    assert first.run("hostname").strip() == "node0"
    assert second.address in first.run("getent", "hosts", "node1")


def test_a_command_runs_in_the_folder_that_is_asked_for(make_nodes, tmp_path):
    (node,) = make_nodes(1)
    assert node.run("pwd", cwd=tmp_path).strip() == str(tmp_path)
    assert node.run("pwd").strip() == str(Path.cwd())


def test_a_port_that_is_taken_on_one_node_is_free_on_the_other(make_nodes):
    first, second = make_nodes(2)
    first.take_port(PORT)
    second.take_port(PORT)
    again = second.start(sys.executable, "-c", f"import socket; socket.create_server(('', {PORT}))")
    assert again.wait() == 1
    assert "Address already in use" in again.output


def test_a_cut_node_is_unreachable_until_its_link_is_restored(make_nodes):
    first, second, third = make_nodes(3)
    for node in (first, second):
        node.take_port(PORT)
    first.cut()
    assert not second.reaches(first, PORT)
    assert not first.reaches(second, PORT)
    assert third.reaches(second, PORT)
    first.restore()
    assert second.reaches(first, PORT)


def test_packets_of_a_slow_node_are_late_but_arrive(make_nodes):
    first, second = make_nodes(2)
    second.take_port(PORT)
    second.delay(0.15)
    timed = f"import socket, time; t = time.monotonic(); socket.create_connection(({second.address!r}, {PORT}))"
    assert float(first.run(sys.executable, "-c", f"{timed}; print(time.monotonic() - t)")) >= 0.3
    second.restore()
    assert first.reaches(second, PORT)


def test_a_slow_link_carries_more_than_one_packet_holds(make_nodes):
    first, second = make_nodes(2)
    second.delay(0.001)
    code = "import socket; s = socket.create_server(('', {port})); print('up', flush=True); c, _ = s.accept();"
    count = "n = 0\nwhile got := c.recv(1 << 20): n += len(got)\nprint(n)"
    receiver = second.start(sys.executable, "-c", f"{code.format(port=PORT)}\n{count}")
    receiver.wait_for("up")
    connect = f"import socket; s = socket.create_connection(('node1', {PORT}))"
    first.run(sys.executable, "-c", f"{connect}; s.sendall(bytes(10**6))")
    assert receiver.wait() == 0
    assert receiver.output.split()[-1] == "1000000"


def test_a_command_can_be_killed_alone(make_nodes):
    (node,) = make_nodes(1)
    shell = node.start("sh", "-c", "sleep 1000 & echo begun; wait")
    shell.wait_for("begun")
    shell.kill()
    assert shell.wait() == 128 + signal.SIGKILL
    assert node.processes() == ["sleep 1000"]


def test_power_off_ends_all_processes_of_a_node_and_of_no_other(make_nodes):
    first, second = make_nodes(2)
    lost, kept = first.start("sleep", "1000"), second.start("sleep", "1000")
    assert lost.process.name() == "sleep"
    first.power_off()
    assert lost.wait() == 128 + signal.SIGKILL
    assert first.processes() == []
    assert kept.running()


@pytest.mark.usefixtures("_nodes_possible")
def test_nodes_end_with_their_processes(tmp_path):
    with Nodes(2, tmp_path) as nodes:
        escaped = nodes[1].start("setsid", "sh", "-c", "sleep 1000 & sleep 1000 & echo begun; wait")
        escaped.wait_for("begun")
        below = [psutil.Process(nodes[1].first), *escaped.process.children()]
    assert not any(process.is_running() for process in below)


@pytest.mark.usefixtures("_nodes_possible")
def test_nothing_is_left_when_the_process_that_made_the_nodes_is_killed(tmp_path):
    code = """
import pathlib, signal, sys
sys.path.insert(0, sys.argv[1])
from simulated_nodes import Nodes, missing
nodes = Nodes(2, pathlib.Path(sys.argv[2]))
nodes[1].delay(0.01)
nodes[0].start("sh", "-c", "sleep 1000 & echo begun; wait").wait_for("begun")
print("up", flush=True)
signal.pause()
"""
    harness = Path(sys.modules["simulated_nodes"].__file__).parent
    maker = subprocess.Popen([sys.executable, "-c", code, harness, tmp_path], stdout=subprocess.PIPE, text=True)
    assert maker.stdout.readline() == "up\n"
    below = psutil.Process(maker.pid).children(recursive=True)
    assert any(process.name() == "sleep" for process in below)
    maker.kill()
    maker.communicate()
    _, alive = psutil.wait_procs(below, timeout=60)
    assert alive == []


def test_a_machine_without_the_tools_says_which_one_it_lacks(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing() == "unshare is not installed"


def test_a_machine_that_forbids_namespaces_says_so(monkeypatch, tmp_path):
    refusing = tmp_path / "unshare"
    refusing.write_text("#!/bin/sh\necho unshare: unshare failed: Operation not permitted >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing() == "no network namespaces here: unshare: unshare failed: Operation not permitted"
