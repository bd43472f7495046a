"""With `@distributed(group=False)`, ranks have no default process group: the test makes its own."""


def test_a_test_makes_its_group_in_any_way_and_may_leave_it(run_suite):
    result = run_suite(
        """
        def check():
            total = torch.ones(1)
            dist.all_reduce(total)
            assert total.item() == dist.get_world_size() == 2

        @distributed(group=False)
        def test_environment(ddp):
            assert not dist.is_initialized()
            dist.init_process_group("gloo")
            check()
            dist.new_group([0])

        @distributed(group=False)
        def test_file(ddp):
            assert not dist.is_initialized()
            url = f"file://{ddp.shared_path}/store"
            dist.init_process_group(ddp.backend, init_method=url, rank=ddp.rank, world_size=ddp.world_size)
            check()

        @distributed(group=False)
        def test_tcp_store(ddp):
            host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            store = dist.TCPStore(host, port, ddp.world_size, is_master=ddp.rank == 0)
            dist.init_process_group("gloo", store=store, rank=ddp.rank, world_size=ddp.world_size)
            check()

        @distributed(group=False)
        def test_store_of_the_test(ddp):
            assert not ddp.store.check([f"of {ddp.rank}"])
            ddp.store.set(f"of {ddp.rank}", "")
            dist.init_process_group("gloo", store=ddp.store, rank=ddp.rank, world_size=ddp.world_size)
            check()
            dist.destroy_process_group()

        test_store_of_another_test = test_store_of_the_test
    """,
        "-Werror",
    )
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines("executed: 5 (2 ranks, gloo, cpu, no group: 5)")


def test_every_test_has_the_variables_of_torchrun_and_a_port_of_its_own(run_suite):
    result = run_suite("""
        NAMES = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT".split()
        ports = set()

        @pytest.mark.parametrize("group", [pytest.param(g, marks=distributed(group=g)) for g in (True, False, True)])
        def test_variables(ddp, group):
            assert dist.is_initialized() == group
            found = {name: os.environ.pop(name) for name in NAMES}
            port = found.pop("MASTER_PORT")
            assert port not in ports
            ports.add(port)
            assert found == {
                "RANK": str(ddp.rank), "LOCAL_RANK": str(ddp.rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1",
            }
    """)
    result.assert_outcomes(passed=3)


def test_a_test_may_destroy_its_group_and_make_another_from_the_environment(run_suite):
    result = run_suite(
        """
        @distributed
        def test_again(ddp):
            dist.destroy_process_group()
            dist.init_process_group("gloo")
            assert dist.get_rank() == ddp.rank
    """,
        "-Wignore",
    )
    result.assert_outcomes(passed=1)


def test_tests_share_the_group_that_their_fixture_has_made(run_suite):
    result = run_suite(
        """
        @distributed(group=False)
        @pytest.fixture(scope="module")
        def group():
            dist.init_process_group("gloo")
            yield dist.group.WORLD
            dist.destroy_process_group()

        @distributed
        def test_one(group): assert group is dist.group.WORLD

        @distributed
        def test_two(group): assert group is dist.group.WORLD

        @distributed(group=True)
        def test_disagrees(group): ...

        @distributed
        def test_after(ddp): assert ddp.group.size() == 2
    """,
        "-Werror",
    )
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines("*the fixture 'group' needs group=False, but the test asks for group=True*")


def test_operations_of_such_a_group_are_observed(run_suite):
    result = run_suite("""
        @distributed(group=False, observe=True)
        def test_observed(ddp):
            dist.init_process_group("gloo")
            dist.all_reduce(torch.ones(3))
            assert [entry.op for entry in ddp.collectives] == ["all_reduce"]
    """)
    result.assert_outcomes(passed=1)


def test_a_deadlock_in_such_a_group_is_found(run_suite):
    result = run_suite("""
        @distributed(group=False)
        def test_hangs(ddp):
            dist.init_process_group("gloo")
            if ddp.rank:
                dist.barrier()
    """)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines("rank 1 of 2 (gloo, cpu) deadlocked: it waits in barrier #1, which rank 0 never*")


def test_without_a_group_there_is_none_to_ask_for(run_suite):
    result = run_suite("""
        @distributed(group=False)
        def test_group(ddp): ddp.group
    """)
    result.stdout.fnmatch_lines(
        "*raised RuntimeError: this rank has no default process group: the test has made none, or destroyed it"
    )
