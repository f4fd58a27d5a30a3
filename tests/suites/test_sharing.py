import multiprocessing
import threading
import time

from suites.sharing import Floor, Share, Solo


def test_progress_is_reported() -> None:
    seen: list[float] = []
    solo = Solo(seen.append)
    solo.step(1, 4)
    with solo.alone():
        solo.step(4, 4)
    assert seen == [0.25, 1.0]


def test_who_measures_has_the_machine_alone() -> None:
    floor = Floor(3, multiprocessing.get_context("spawn"))
    computing = [0, 0, 0]
    disturbed: list[int] = []
    measured: list[int] = []

    def work(worker: int) -> None:
        for _ in range(3):
            with Share(floor, worker) as share:
                for step in range(20):
                    computing[worker] = 1
                    time.sleep(0.001)
                    computing[worker] = 0
                    share.step(step, 20)
                with share.alone():
                    for _ in range(5):
                        time.sleep(0.002)
                        disturbed.append(sum(computing))
                    measured.append(worker)

    workers = [threading.Thread(target=work, args=(worker,)) for worker in range(3)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join(timeout=30)
    assert sorted(measured) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert set(disturbed) == {0}


def test_an_error_while_measuring_lets_the_others_go_on() -> None:
    floor = Floor(2, multiprocessing.get_context("spawn"))
    with Share(floor, 0) as share:
        try:
            with share.alone():
                raise RuntimeError("broken")
        except RuntimeError:
            pass
    assert not floor.wanted.is_set()
    with Share(floor, 1) as other, other.alone():
        pass
