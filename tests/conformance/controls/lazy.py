"""Right wrappers with a `no_sync`, each with one of another kind."""

from contextlib import contextmanager, nullcontext

import torch
from averaging import DividesFirst
from overlapped import BucketsInAnyOrder, WaitsForFutures


class NothingToSkip(DividesFirst):
    """Averages after backward, which nobody asks for under `no_sync`."""

    def no_sync(self):
        return nullcontext()


class DecidesInForward(WaitsForFutures):
    """A backward pass is synchronised if its forward was not under `no_sync`, as with torch's own.

    What a backward pass that raised has sent is waited for, and dropped, before the next one.
    """

    lazy = sends = False

    @contextmanager
    def no_sync(self):
        before, self.lazy = self.lazy, True
        try:
            yield
        finally:
            self.lazy = before

    def forward(self, *args, **kwargs):
        if torch.is_grad_enabled():
            self.sends = not self.lazy
            for *_, work in self.launched:
                work.wait()
            self.launched.clear()
        return super().forward(*args, **kwargs)

    def launch(self, p):
        if self.sends:
            super().launch(p)


class TakesItsHooksOff(DecidesInForward):
    """Has hooks only where gradients are to be sent."""

    def __init__(self, module):
        super().__init__(module)
        self.handles = []

    def hook(self, p):
        self.handles.append(p.register_post_accumulate_grad_hook(self.launch))

    @contextmanager
    def no_sync(self):
        with super().no_sync():
            self.take_hooks_off()
            try:
                yield
            finally:
                self.take_hooks_off()

    def take_hooks_off(self):
        """Forget which are hooked, too: the next forward hooks them again."""
        while self.handles:
            self.handles.pop().remove()
        self.hooked.clear()


class CountsItsBlocks(BucketsInAnyOrder):
    """Is its own context manager, which may be entered again inside; only outside of all are buckets filled."""

    depth = 0

    def no_sync(self):
        return self

    def __enter__(self):
        self.depth += 1

    def __exit__(self, *_):
        self.depth -= 1

    def forward(self, *args, **kwargs):
        if torch.is_grad_enabled():
            for *_, work in self.sent:
                work.wait()
            self.sent.clear()
        return super().forward(*args, **kwargs)

    def on_gradient(self, p):
        if not self.depth:
            super().on_gradient(p)
