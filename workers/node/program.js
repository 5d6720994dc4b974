'use strict';
// The surroundings of one turn: arguments, directory, variables, and what a program has that a cell has not.
//
// Owns what a turn's context changes in this process, and puts it back after the turn. A program ends when the event
// loop has nothing left to do: meanwhile the protocol socket does not keep the loop alive, and Node says `beforeExit`.

const path = require('node:path');
const Module = require('node:module');
const { Interrupted, ProcessExit, isA, traceback } = require('./errors.js');

// Node's exit status when the top level waits for a promise that nothing can settle.
const STATUS_UNSETTLED = 13;
// Events whose listeners end with the program that added them.
const PROGRAM_EVENTS = ['beforeExit', 'exit', 'uncaughtException', 'unhandledRejection'];

class Program {
  constructor({ link, setModuleFile, isWaiting }) {
    this._link = link;
    this._setModuleFile = setModuleFile;
    // Whether the code waits for the keeper: for input or for a tool.
    this._isWaiting = isWaiting;
    this._undo = [];
    this._onDrained = null;
    this._listener = () => this._drained();
    this._hasExited = false;
    this.isRunning = false;
    this.isSettled = false;
    // The absolute path of the running program, or null.
    this.file = null;
  }

  /** Apply a context. `onDrained` is called with the exit status when nothing is left to do. Throws if it cannot. */
  enter(context, onDrained) {
    this.isSettled = false;
    const { file, args = [], cwd, env = {}, program = false } = context;
    if (cwd !== undefined) {
      const left = process.cwd();
      process.chdir(cwd);
      this._undo.push(() => process.chdir(left));
    }
    for (const [name, value] of Object.entries(env)) {
      const before = process.env[name];
      process.env[name] = value;
      this._undo.push(() => {
        if (before === undefined) delete process.env[name];
        else process.env[name] = before;
      });
    }
    const argv = [...process.argv];
    const named = file !== undefined && (program || file === '-') ? [file] : [];
    process.argv.splice(0, Infinity, process.execPath, ...named, ...args);
    this._undo.push(() => process.argv.splice(0, Infinity, ...argv));
    if (!program) return;
    this.isRunning = true;
    this._hasExited = false;
    process.exitCode = undefined;
    this._undo.push(() => {
      process.exitCode = undefined;
    });
    this._endListeners();
    this._onDrained = onDrained;
    this._link.hold(false);
    process.on('beforeExit', this._listener);
    if (file !== undefined && path.isAbsolute(file)) this._nameFile(file);
  }

  /** The top level of the program is over. */
  settled() {
    this.isSettled = true;
    // Listeners of the program come first: they may give the loop more to do.
    process.removeListener('beforeExit', this._listener);
    process.on('beforeExit', this._listener);
  }

  /** A frame for the code has arrived. */
  received() {
    if (this.isRunning) this._link.hold(false);
  }

  /** Call the program's listeners of `exit`, once. Returns the status, which they may change. */
  exit(status) {
    if (this._hasExited) return status;
    this._hasExited = true;
    process.exitCode = status;
    try {
      process.emit('exit', status);
      status = process.exitCode ?? status;
    } catch (error) {
      if (isA(error, Interrupted)) throw error;
      if (isA(error, ProcessExit)) ({ status } = error);
      else {
        status = 1;
        process.stderr.write(`Uncaught ${traceback(error).replace(/^Uncaught /, '')}`);
      }
    } finally {
      process.exitCode = undefined;
    }
    return Number(status) | 0;
  }

  /** Put everything back. */
  leave() {
    if (this.isRunning) {
      this.isRunning = false;
      process.removeListener('beforeExit', this._listener);
      this._link.hold(true);
    }
    for (const undo of this._undo.splice(0).reverse()) {
      try {
        undo();
      } catch {
        // The directory is gone, or the code has changed the process in some other way.
      }
    }
  }

  _drained() {
    if (!this.isRunning || process.getActiveResourcesInfo().length > 0) return;
    // The socket keeps the loop alive until the answer has come, or until the turn has ended.
    this._link.hold(true);
    if (this._isWaiting()) return;
    this._onDrained(this.isSettled ? Number(process.exitCode ?? 0) | 0 : STATUS_UNSETTLED);
  }

  _nameFile(file) {
    this.file = file;
    this._undo.push(() => {
      this.file = null;
    });
    const main = new Module(file, null);
    main.filename = file;
    main.paths = Module._nodeModulePaths(path.dirname(file));
    const { mainModule } = process;
    process.mainModule = main;
    this._undo.push(() => {
      process.mainModule = mainModule;
    });
    this._setModuleFile(file);
    this._undo.push(() => this._setModuleFile(null));
    for (const [name, value] of Object.entries({ module: main, exports: main.exports, __filename: file })) {
      const before = Object.getOwnPropertyDescriptor(globalThis, name);
      Object.defineProperty(globalThis, name, { configurable: true, value, writable: true });
      this._undo.push(() => {
        if (before) Object.defineProperty(globalThis, name, before);
        else delete globalThis[name];
      });
    }
  }

  /** Remove after the program the listeners that it adds: they would act on later turns. */
  _endListeners() {
    for (const event of PROGRAM_EVENTS) {
      const before = process.listeners(event);
      this._undo.push(() => {
        for (const listener of process.listeners(event)) {
          if (!before.includes(listener)) process.removeListener(event, listener);
        }
      });
    }
  }
}

module.exports = { Program };
