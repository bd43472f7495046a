"""One rank host as the controller sees it, and the questions that it is asked."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_ddp.hosts.connection import Connection
from pytest_ddp.hosts.messages import Ask, Hello, HostMessage, Reply


@dataclass(eq=False)
class Host:
    """One rank host.

    Attributes:
        hello: what it says of itself.
        lost: that and why it is of no more use; empty while it serves.
    """

    connection: Connection
    hello: Hello
    lost: str = ""
    _why: str = ""
    _questions: "dict[int, Question]" = field(default_factory=dict)

    @property
    def node(self) -> str:
        """The name of its node."""
        return self.hello.node

    @property
    def last_words(self) -> str:
        """Why its ranks have ended, to follow "rank 2"."""
        return f"was on node {self.node}, which was lost: {self._why}"

    def send(self, *messages: HostMessage) -> None:
        """Send messages; if the host is gone, the receiving thread learns it too."""
        with contextlib.suppress(OSError):
            self.connection.send(*messages)

    def ask(self, number: int, what: str, processes: Sequence[int]) -> "Question":
        """Ask something of ranks of this host, without waiting for the answer."""
        self._questions[number] = question = Question(self)
        self.send(Ask(number, what, tuple(processes)))
        return question

    def take(self, reply: Reply) -> None:
        """Give a question its answer."""
        question = self._questions.pop(reply.number, None)
        if question is not None:
            question.answer, question.is_answered = reply.value, True

    def give_up(self, why: str) -> None:
        """End the connection, so that the receiving thread loses this host for that reason."""
        self._why = self._why or why
        self.connection.shut()

    def lose(self, why: str) -> None:
        """Note that it is gone."""
        self._why = self._why or why
        self.lost = f"node {self.node} was lost: {self._why}"


@dataclass(eq=False)
class Question:
    """A question to a host; `answer` is None as long as there is none."""

    host: Host
    answer: Any = None
    is_answered: bool = False

    @property
    def is_over(self) -> bool:
        """Whether it has its answer, or its host is lost."""
        return self.is_answered or bool(self.host.lost)
