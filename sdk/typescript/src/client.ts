// The client of one node: finds the node, starts it if none runs, creates sessions.

import { resolve } from "node:path";

import { type Environment, findAddress } from "./address.js";
import { Agent, agentRequest, type AgentSettings, workerOf } from "./agent.js";
import type {
  Created,
  CreateSession,
  Environment as WorkerEnvironment,
  EnvironmentList,
  NodeStatus,
  PolicyRequest,
  Session as SessionView,
  SessionList,
  StopSessions,
  WorkerInfo,
  WorkerList,
} from "./api.js";
import { Door, RETRY_FOR_MS_DEFAULT } from "./door.js";
import { hasCode } from "./errors.js";
import { openHost, type ToolHost } from "./host.js";
import type { Tools } from "./offer.js";
import { path } from "./paths.js";
import { findProgram } from "./program.js";
import { checkWorker, type HostProviders, providerEnvironment, providerTools } from "./providers.js";
import { absolutePolicy, absoluteProgram } from "./relative.js";
import { Session } from "./session.js";
import { freshId } from "./turn.js";

export interface WindlassOptions {
  /**
   * A node behind a TCP door, for example `http://127.0.0.1:8040` or `https://node.example:8040`. Default:
   * WINDLASS_URL, else the node of this machine.
   */
  url?: string;
  /** The token for that door. Default: WINDLASS_TOKEN, else the user's token file. */
  token?: string;
  /**
   * A PEM file: the only authorities that may sign the certificate of a node at an `https` URL. Default: WINDLASS_CA,
   * else those that Node.js trusts.
   */
  ca?: string;
  /** The directory of the node's socket. Default: from the environment. */
  runtimeDir?: string;
  /** The directory of the node's journal. Default: from the environment. */
  stateDir?: string;
  /** The program that starts a node. Default: WINDLASS_BIN, else the one that npm installed, else `windlass` on the PATH. */
  bin?: string;
  /** Whether to start a node if none runs. Default: true. */
  start?: boolean;
  /** How long requests are retried after a connection failed. Default: 10 seconds. */
  retryForMs?: number;
  /** Used instead of the process's environment. */
  env?: Environment;
  /**
   * Shows the calls of host tools as they happen: arguments, results and errors. `true` writes lines to standard
   * error; a function gets the lines. Default: false.
   */
  verbose?: boolean | ((line: string) => void);
}

export interface SessionOptions extends HostProviders {
  /** The session's id. Default: a new one. */
  id?: string | undefined;
  /** The directory that the code works in. Default: a new directory for the session. */
  workspace?: string | undefined;
  /** The policy: a preset's name, or the differences from a preset. */
  policy?: PolicyRequest | NonNullable<PolicyRequest["preset"]> | undefined;
  /** The interpreter, or the directory of a virtual environment. */
  interpreter?: string | undefined;
  /** The package environment to use instead of an interpreter; `windlass env create` makes one. */
  environment?: string | undefined;
  /** The code may install packages with pip, into an environment that ends with the session. */
  allowPackages?: boolean | undefined;
  /** Tool hosts of this owner serve the session. */
  owner?: string | undefined;
  /** Environment variables to add. */
  env?: Record<string, string> | undefined;
  worker?: string | undefined;
  /** How long an interrupted turn may take to stop before its worker is killed. */
  interruptGraceMs?: number | undefined;
  /** Most output bytes that are kept. */
  outputQuotaBytes?: number | undefined;
  /** Seconds without a client and a turn after which the session ends; 0: never. Default: the node's. */
  idleSeconds?: number | undefined;
  /** Default deadline of the session's turns. Default: the node's. */
  deadlineMs?: number | undefined;
}

/** Settings of an agent and of its session. */
export interface AgentOptions
  extends AgentSettings,
    Omit<
      SessionOptions,
      "worker" | "interpreter" | "environment" | "allowPackages" | keyof HostProviders
    > {
  /** The agent's program, if it is not on the PATH. */
  program?: string | undefined;
}

type NamedSession = CreateSession & { id: string };

/** What only the session of an agent has. */
type AgentSession = Pick<CreateSession, "agent" | "copy_workspace">;

export class Windlass {
  readonly #door: Door;

  constructor(options: WindlassOptions = {}) {
    const env = options.env ?? process.env;
    this.#door = new Door({
      address: findAddress(options, env),
      program: options.start === false ? undefined : options.bin ?? (env["WINDLASS_BIN"] || findProgram()),
      env,
      retryForMs: options.retryForMs ?? RETRY_FOR_MS_DEFAULT,
      showCall: options.verbose === true ? console.error : options.verbose || undefined,
    });
  }

  /** Creates a session. */
  session(options: SessionOptions = {}): Promise<Session> {
    return this.#session(options);
  }

  async #session(options: SessionOptions, agent?: AgentSession): Promise<Session> {
    const { files, http, lookup, run, ...plain } = options;
    const providers: HostProviders = { files, http, lookup, run };
    checkWorker(providers, options.worker);
    const { policy, allowPackages, interruptGraceMs, outputQuotaBytes, idleSeconds, deadlineMs, ...same } =
      plain;
    const create: NamedSession = withoutUndefined({
      ...same,
      // With a chosen id the request can be sent again and creates only one session.
      id: options.id ?? freshId("s"),
      env: providerEnvironment(providers, options.env),
      workspace: options.workspace === undefined ? undefined : resolve(options.workspace),
      interpreter:
        options.interpreter === undefined ? undefined : absoluteProgram(options.interpreter),
      allow_packages: allowPackages,
      policy: typeof policy === "string" ? { preset: policy } : policy && absolutePolicy(policy),
      interrupt_grace_ms: interruptGraceMs,
      output_quota_bytes: outputQuotaBytes,
      idle_s: idleSeconds === undefined ? undefined : Math.ceil(idleSeconds),
      deadline_ms: deadlineMs,
      ...agent,
    });
    const session = new Session(this.#door, await this.#create(create, options.id === undefined));
    const tools = providerTools(providers);
    if (tools === undefined) return session;
    try {
      await session.tools(tools);
    } catch (thrown) {
      await session.close();
      throw thrown;
    }
    return session;
  }

  /**
   * An agent: `codex`, `claude`, `opencode`, `gemini` or `acp:COMMAND`. Its session is created by the first run.
   */
  agent(engine: string, options: AgentOptions = {}): Agent {
    const { resume, model, permissions, permissionDeadlineMs, stallMs, branch, program, ...session } =
      options;
    const settings = { resume, model, permissions, permissionDeadlineMs, stallMs };
    const agent: AgentSession = {
      agent: agentRequest({ ...settings, arguments: options.arguments }),
      ...(branch ? { copy_workspace: branch === "all" ? "all" : "needed" } : {}),
    };
    const { arguments: _, ...plain } = session;
    const create = () =>
      this.#session({ ...plain, worker: workerOf(engine), interpreter: program }, agent);
    return new Agent(create, resume);
  }

  /** An existing session. */
  async attach(id: string): Promise<Session> {
    return new Session(this.#door, await this.#look(id));
  }

  /** The live sessions, or all that the node remembers. */
  async sessions(options: { all?: boolean } = {}): Promise<SessionView[]> {
    const place = path(["sessions"], { all: options.all ? true : undefined });
    const list = await this.#door.json<SessionList>({ method: "GET", path: place, repeat: "freely" });
    return list.sessions;
  }

  /** Offers functions to all sessions of an owner, present and future. */
  tools(offer: { owner: string; tools: Tools }): Promise<ToolHost> {
    return openHost(this.#door, { owner: offer.owner }, offer.tools);
  }

  /** The current state of the node. */
  status(): Promise<NodeStatus> {
    return this.#door.json<NodeStatus>({ method: "GET", path: path(["version"]), repeat: "freely" });
  }

  /**
   * The interpreters for which workers are kept ready. Waits up to `waitMs` until none of them is being prepared.
   */
  async environments(options: { waitMs?: number } = {}): Promise<WorkerEnvironment[]> {
    const { waitMs } = options;
    const place = path(["environments"], { wait_ms: waitMs });
    const call = { method: "GET", path: place, repeat: "freely", waitMs } as const;
    return (await this.#door.json<EnvironmentList>(call)).environments;
  }

  /** The kinds of worker that sessions can have, and what is missing for each on the node's machine. */
  async workers(): Promise<WorkerInfo[]> {
    const place = path(["workers"]);
    const list = await this.#door.json<WorkerList>({ method: "GET", path: place, repeat: "freely" });
    return list.workers;
  }

  /** Stops the node. */
  async stopNode(sessions: StopSessions): Promise<void> {
    await this.#door.call({
      method: "POST",
      path: path(["node", "stop"]),
      json: { sessions },
      repeat: "if_not_sent",
      start: false,
    });
  }

  /** Closes this client's connections and tool hosts. Sessions continue. */
  close(): void {
    this.#door.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.close();
    return Promise.resolve();
  }

  async #create(create: NamedSession, own: boolean): Promise<SessionView> {
    let repeated = false;
    try {
      const answer = await this.#door.call({
        method: "POST",
        path: path(["sessions"]),
        json: create,
        repeat: own ? "freely" : "if_not_sent",
        onRepeat: () => (repeated = true),
      });
      return (JSON.parse(answer.body.toString()) as Created).session;
    } catch (thrown) {
      // Only this client uses this id: an attempt whose answer was lost has created the session.
      if (own && repeated && hasCode(thrown, "session_exists")) return this.#look(create.id);
      throw thrown;
    }
  }

  #look(id: string): Promise<SessionView> {
    const place = path(["sessions", id]);
    return this.#door.json<SessionView>({ method: "GET", path: place, repeat: "freely" });
  }
}

/** A copy without undefined values. */
function withoutUndefined<T extends object>(values: T): Said<T> {
  const said = Object.entries(values).filter(([, value]) => value !== undefined);
  return Object.fromEntries(said) as Said<T>;
}

type Said<T> = { [Key in keyof T]: Exclude<T[Key], undefined> };
