/// <reference types="node" preserve="true" />
// Persistent, confined code sessions for agents: the client of a Windlass node.

export type * as api from "./api.js";
export type { EndReason, Outcome, PolicyRefusal, PolicyRequest, Receipt, TurnError, Usage } from "./api.js";
export {
  type ActionKind,
  Agent,
  type AgentEvent,
  type AgentEventBody,
  type AgentPermission,
  type AgentRunOptions,
  type AgentSettings,
  type PermissionOption,
} from "./agent.js";
export { type AgentOptions, type SessionOptions, Windlass, type WindlassOptions } from "./client.js";
export { DirectoryFiles, type DirectoryFilesOptions } from "./directory-files.js";
export { WindlassError } from "./errors.js";
export type { OutputEvent, SessionEvent } from "./events.js";
export { workspaceFile } from "./file-arguments.js";
export {
  type Change,
  type Content,
  FileContent,
  type FileEntry,
  Files,
  type Listing,
  type Watched,
} from "./files.js";
export type { ToolHost } from "./host.js";
export { MemoryFiles } from "./memory-files.js";
export type { Tools } from "./offer.js";
export type {
  FileProvider,
  FileStat,
  HostProviders,
  HttpAnswer,
  HttpRequest,
  ProgramAnswer,
  ProgramRequest,
  WriteOptions,
} from "./providers.js";
export { Display, TurnFailed, TurnResult } from "./result.js";
export { type OutputOptions, type OutputRange, Session } from "./session.js";
export { type JsonSchema, tool, type Tool, type ToolCall } from "./tool.js";
export {
  type InputRequest,
  type OnInput,
  type RunOptions,
  type StreamOptions,
  Turn,
  type WaitOptions,
} from "./turn.js";
