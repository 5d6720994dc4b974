'use strict';
// The Windlass worker for JavaScript and TypeScript: runs the turns of one session in this Node process.
//
// Owns the order of the start and the frames that are not part of a turn. Nothing here confines the code that it
// runs: the sandbox around it does.

const fs = require('node:fs');
const path = require('node:path');
const { Link } = require('../js-kit/link.js');
const { Cells } = require('./cell.js');
const { Display } = require('./display.js');
const { Guard } = require('./guard.js');
const { Input } = require('./input.js');
const { Owners } = require('./owners.js');
const { Pending } = require('./pending.js');
const { Program } = require('./program.js');
const { Tools } = require('./tools.js');
const { Turns } = require('./turns.js');
const { installLoader } = require('./imports.js');
const { installOutput } = require('./output.js');
const { runStartup } = require('./startup.js');
const { hideSocket, hookChildren, hookErrors, hookExit, hookSignals } = require('./process_hooks.js');

const CAPABILITIES = ['stdin', 'interrupt', 'display', 'tools', 'context'];

const VARIABLES = ['WINDLASS_FD', 'WINDLASS_LANGUAGE', 'WINDLASS_STARTUP'];

function main() {
  const [fdText, language, startup] = VARIABLES.map(takeVariable);
  const fd = Number(fdText);
  if (!Number.isInteger(fd) || fdText === undefined) {
    process.stderr.write('WINDLASS_FD does not name a descriptor: this program is started by a windlass keeper\n');
    process.exit(64);
  }
  const timers = { setImmediate, setTimeout };
  const output = installOutput();
  const streams = Object.values(output);
  for (const stream of streams) stream.hold();

  const turns = new Turns({ timers });
  const reallyExit = hookExit(turns);
  const link = new Link({
    fd,
    plugin: path.join(__dirname, 'interrupter.js'),
    onFrame: (header, body) => guard.protect(() => receive(header, body)),
  });
  const guard = new Guard(link.words);
  const pending = new Pending(guard);
  const cells = new Cells({ language });
  const parts = { turns, link, guard, pending, setImmediate: timers.setImmediate };
  const input = new Input(parts);
  const tools = new Tools(parts);
  const owners = new Owners();
  const program = new Program({
    link,
    setModuleFile: installLoader(globalThis),
    isWaiting: () => input.isAsked || tools.isCalled,
  });
  turns.attach({ ...parts, cells, input, owners, tools, streams, program });
  for (const [name, stream] of Object.entries(output)) owners.watch(stream, name, parts);

  const leave = (status) => {
    for (const stream of streams) stream.unhold();
    reallyExit(status);
  };
  const receive = (header, body) => {
    if (header === null) return leave(body === null ? 0 : 76);
    switch (header.kind) {
      case 'turn_start': return turns.start(header, body);
      case 'turn_input':
        program.received();
        return input.deliver(header, body);
      case 'tool_result':
        program.received();
        return tools.deliver(header, body);
      case 'interrupt': return turns.interrupt(header.turn, header.again === true && body === null);
      case 'shutdown':
        link.send({ kind: 'session_end', reason: 'shutdown' });
        return leave(0);
      // Any other kind is new to this worker.
      default: return undefined;
    }
  };

  hideSocket(fd);
  hookChildren(turns);
  hookErrors(turns);
  hookSignals(turns, guard, timers);
  pending.install();
  input.install();
  tools.install();
  new Display(parts).install();
  process.argv.length = 1;

  const ready = () => {
    link.send({
      kind: 'worker_ready',
      protocol: 1,
      worker: `node ${process.versions.node}`,
      capabilities: owners.isKnown ? [...CAPABILITIES, 'background_output'] : CAPABILITIES,
      // This clock began with the process.
      startup: { runtime_load_ms: Math.round(performance.now()) },
    });
    guard.open();
  };
  if (startup) runStartup({ file: startup, cells, timers, done: ready });
  else ready();
}

function takeVariable(name) {
  const value = process.env[name];
  delete process.env[name];
  return value;
}

try {
  main();
} catch (error) {
  // The streams of the process hold their output back, and the IO thread would keep the process alive.
  fs.writeSync(2, `the worker could not start: ${error && error.stack}\n`);
  process.kill(process.pid, 'SIGKILL');
}
