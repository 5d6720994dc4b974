// Shows the calls of host tools as they happen: a line when a call begins and a line when it ends.

import type { ToolCall } from "./tool.js";

/** Longest shown argument list, result or error, in characters. */
const SHOWN_MAX = 400;

export class ShownCall {
  readonly #began = performance.now();

  constructor(
    private readonly call: ToolCall,
    private readonly show: (line: string) => void,
  ) {}

  began(args: readonly Buffer[]): void {
    this.#print(`-> ${this.call.name}(${cut(Buffer.concat(args).toString() || "{}")})`);
  }

  ended(ok: boolean, body: Buffer): void {
    const tookMs = Math.round(performance.now() - this.#began);
    const said = ok ? cut(body.toString()) : failure(body);
    this.#print(`${ok ? "<-" : "!!"} ${this.call.name}: ${said} (${tookMs} ms)`);
  }

  #print(line: string): void {
    const { session, turn, call } = this.call;
    this.show(`windlass: [${session} ${turn}.${call}] ${line}`);
  }
}

function failure(body: Buffer): string {
  const said = JSON.parse(body.toString()) as { message: string; type?: string; code?: string };
  return cut(`${said.type ?? said.code ?? "error"}: ${said.message}`);
}

function cut(text: string): string {
  const line = text.replaceAll("\n", "\\n");
  return line.length <= SHOWN_MAX ? line : `${line.slice(0, SHOWN_MAX)}...`;
}
