"""A progress bar with a thread that watches it, as tqdm has one."""

import sys
import threading


class Bar:
    """Counts iterations; its monitor is started once per process and stays."""

    monitor = None

    def __init__(self, iterable):
        self.iterable = iterable
        if Bar.monitor is None:
            Bar.monitor = threading.Thread(target=threading.Event().wait, name="monitor", daemon=True)
            Bar.monitor.start()

    def __iter__(self):
        for number, item in enumerate(self.iterable):
            print(f"step {number}", file=sys.stderr)
            yield item
