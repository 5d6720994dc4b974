"""Windlass: persistent, confined sessions of code for agents.

    with Windlass() as w, w.session() as s:
        print(s.run("1 + 1").result)
"""

from . import _agents as agents
from . import _api as api
from ._agent_client import Agent, AsyncAgent
from ._async_client import (
    AsyncEventStream,
    AsyncSession,
    AsyncTurn,
    AsyncWindlass,
)
from ._client import EventStream, OnInput, Session, Turn, Windlass
from ._context import ToolCall, current_call
from ._errors import (
    BadRequest,
    ConnectionLost,
    FileConflict,
    FileMissing,
    InputNeeded,
    NodeUnreachable,
    NotEnforceable,
    Overloaded,
    PathRefused,
    SessionEnded,
    SessionExists,
    SessionNotFound,
    StartFailed,
    Timeout,
    TlsFailed,
    TurnFailed,
    TurnNotFound,
    TurnNotRunning,
    Unauthorized,
    VersionMismatch,
    WindlassError,
    WouldDeadlock,
)
from ._file_arguments import File
from ._file_calls import Delete, FileBytes, FileChange, FileEntry, FileInfo, FileList, Write
from ._host import ToolHost
from ._host_copies import FileTooLarge
from ._providers import DirectoryFiles, FileProvider, FileStat, MemoryFiles
from ._results import DisplayResult, OutputRange, TurnError, TurnResult
from ._schema import ArgumentError
from ._tool import Tool, tool
from . import _events as events

__all__ = [
    "Agent",
    "ArgumentError",
    "AsyncAgent",
    "AsyncEventStream",
    "AsyncSession",
    "AsyncTurn",
    "AsyncWindlass",
    "BadRequest",
    "ConnectionLost",
    "Delete",
    "DirectoryFiles",
    "DisplayResult",
    "EventStream",
    "File",
    "FileBytes",
    "FileChange",
    "FileConflict",
    "FileEntry",
    "FileInfo",
    "FileList",
    "FileMissing",
    "FileProvider",
    "FileStat",
    "FileTooLarge",
    "InputNeeded",
    "MemoryFiles",
    "NodeUnreachable",
    "NotEnforceable",
    "OnInput",
    "OutputRange",
    "Overloaded",
    "PathRefused",
    "Session",
    "SessionEnded",
    "SessionExists",
    "SessionNotFound",
    "StartFailed",
    "Timeout",
    "TlsFailed",
    "Tool",
    "ToolCall",
    "ToolHost",
    "Turn",
    "TurnError",
    "TurnFailed",
    "TurnNotFound",
    "TurnNotRunning",
    "TurnResult",
    "Unauthorized",
    "VersionMismatch",
    "Windlass",
    "WindlassError",
    "WouldDeadlock",
    "Write",
    "agents",
    "api",
    "current_call",
    "events",
    "tool",
]

__version__ = "0.1.0"
