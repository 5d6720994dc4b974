"""Agents in sessions, for the two clients: `Agent` and `AsyncAgent`."""

from __future__ import annotations

import inspect
from typing import (
    TYPE_CHECKING,
    Any,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Optional,
    Union,
    cast,
)

from . import _agents as agents
from . import _api as api
from . import _calls as calls
from ._request_bodies import PathText, PolicyArgument, session_body

if TYPE_CHECKING:
    from ._async_client import AsyncSession, AsyncWindlass
    from ._client import Session, Windlass

#: Answers a permission: `True`, `False`, or a word or option's id.
OnPermission = Callable[[agents.Permission], Union[bool, str]]
AsyncOnPermission = Callable[
    [agents.Permission], Union[bool, str, Awaitable[Union[bool, str]]]
]


class _AgentSettings:
    """What an agent's session is created with."""

    def __init__(
        self,
        engine: str,
        *,
        resume: Optional[str] = None,
        model: Optional[str] = None,
        permissions: Optional[str] = None,
        permission_deadline: Optional[float] = None,
        stall: Optional[float] = None,
        arguments: tuple[str, ...] = (),
        workspace: Optional[PathText] = None,
        branch: Union[bool, str] = False,
        policy: Optional[PolicyArgument] = None,
        program: Optional[PathText] = None,
        env: Optional[Mapping[str, str]] = None,
        id: Optional[str] = None,
        owner: Optional[str] = None,
        idle: Optional[float] = None,
    ) -> None:
        body = session_body(
            id=id,
            workspace=workspace,
            policy=policy,
            interpreter=program,
            environment=None,
            allow_packages=False,
            env=env,
            owner=owner,
            worker=agents.worker_of(engine),
            interrupt_grace=None,
            output_quota_bytes=None,
            idle=idle,
            deadline=None,
        )
        if branch:
            body["copy_workspace"] = "all" if branch == "all" else "needed"
        self.body = agents.with_agent(
            body,
            resume=resume,
            model=model,
            permissions=permissions,
            permission_deadline=permission_deadline,
            stall=stall,
            arguments=arguments,
        )

    def fresh(self) -> api.CreateSession:
        """The request for a new session."""
        return cast(api.CreateSession, dict(self.body))


class Agent:
    """An agent. Its session is created by the first `run`, and ends with the `with` block or `close`."""

    def __init__(self, client: Windlass, engine: str, **settings: Any) -> None:
        self._client = client
        self._settings = _AgentSettings(engine, **settings)
        self.session: Optional[Session] = None
        #: The token of the conversation, once it is known.
        self.resume: Optional[str] = settings.get("resume")

    def run(
        self,
        prompt: str,
        *,
        deadline: Optional[float] = None,
        on_permission: Optional[OnPermission] = None,
    ) -> Iterator[agents.AgentEvent]:
        """Gives the agent a prompt and yields the events of its turn. The last one is `Completed`."""
        session = self._session()
        questions = agents.Questions()

        def answer(shown: str, secret: bool) -> Optional[str]:
            asked = questions.of_prompt(shown)
            if asked is None or on_permission is None:
                return None
            return agents.answer_of(asked, on_permission(asked))

        on_input = None if on_permission is None else answer
        for event in session.stream(prompt, deadline=deadline, on_input=on_input):
            made = agents.make(event)
            if made is not None:
                questions.note(made)
                self.resume = getattr(made, "resume", None) or self.resume
                yield made

    def close(self) -> None:
        """Ends the session with everything that the agent started. The conversation can be resumed."""
        if self.session is not None:
            self.session.close()
            self.session = None

    def _session(self) -> Session:
        if self.session is None:
            self.session = self._client._created(calls.create(self._settings.fresh()))
        return self.session

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncAgent:
    """An agent, for `asyncio`; see `Agent`."""

    def __init__(self, client: AsyncWindlass, engine: str, **settings: Any) -> None:
        self._client = client
        self._settings = _AgentSettings(engine, **settings)
        self.session: Optional[AsyncSession] = None
        self.resume: Optional[str] = settings.get("resume")

    async def run(
        self,
        prompt: str,
        *,
        deadline: Optional[float] = None,
        on_permission: Optional[AsyncOnPermission] = None,
    ) -> AsyncIterator[agents.AgentEvent]:
        """Gives the agent a prompt and yields the events of its turn; see `Agent.run`."""
        if self.session is None:
            self.session = await self._client._created(calls.create(self._settings.fresh()))
        questions = agents.Questions()

        async def answer(shown: str, secret: bool) -> Optional[str]:
            asked = questions.of_prompt(shown)
            if asked is None or on_permission is None:
                return None
            choice = on_permission(asked)
            if inspect.isawaitable(choice):
                choice = await choice
            return agents.answer_of(asked, choice)

        on_input = None if on_permission is None else answer
        async for event in self.session.stream(prompt, deadline=deadline, on_input=on_input):
            made = agents.make(event)
            if made is not None:
                questions.note(made)
                self.resume = getattr(made, "resume", None) or self.resume
                yield made

    async def close(self) -> None:
        """Ends the session with everything that the agent started."""
        if self.session is not None:
            await self.session.close()
            self.session = None

    async def __aenter__(self) -> AsyncAgent:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
