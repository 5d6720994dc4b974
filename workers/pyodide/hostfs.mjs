// The file system at `/workspace` whose files the host serves: each operation is a synchronous host call.
//
// Owns the calls `files.*` and the mapping of their errors to error numbers. Keeps no content and no names: nodes are
// taken out of the name table as soon as they are made, so every look at a path asks the host again.

import { CallError, Interrupted } from './host.mjs';

/** Most bytes that one `files.read` or `files.write` carries. */
export const CALL_BYTES_MAX = 4 * 1024 * 1024;

const DIRECTORY_MODE = 0o040777;
const FILE_MODE = 0o100666;
const KIND_MASK = 0o170000;
const BLOCK_BYTES = 4096;
const [SEEK_SET, SEEK_CUR, SEEK_END] = [0, 1, 2];

const BY_PYTHON_CLASS = {
  FileNotFoundError: 'ENOENT',
  FileExistsError: 'EEXIST',
  NotADirectoryError: 'ENOTDIR',
  IsADirectoryError: 'EISDIR',
  PermissionError: 'EACCES',
  TimeoutError: 'ETIMEDOUT',
};
const KNOWN = ['ENOENT', 'EEXIST', 'ENOTDIR', 'EISDIR', 'ENOTEMPTY', 'EACCES', 'EINVAL', 'ENOSPC', 'EROFS', 'ETIMEDOUT'];

/** The text of the last failed operation, for Python's exception. */
export class Failure {
  #text = '';

  set(text) {
    this.#text = text;
  }

  take() {
    const text = this.#text;
    this.#text = '';
    return text;
  }
}

/** The error number's name for a failed call, and a text if the number alone does not say enough. */
export function failureOf(error, what, deadlineMs) {
  if (error.code === 'tool_deadline_passed') {
    return { name: 'ETIMEDOUT', text: `${what} was not answered within ${deadlineMs / 1000} s` };
  }
  if (error.code === 'tool_not_found') {
    return { name: 'EPERM', text: `${what} is refused: no client serves files for this session` };
  }
  if (error.code === 'tool_host_gone') {
    return { name: 'EPERM', text: `${what} is refused: the client that served files is gone` };
  }
  const prefix = /^(?:\[Errno \d+\] )?(E[A-Z]+)\b/.exec(error.message)?.[1];
  const name = [error.code, error.type, BY_PYTHON_CLASS[error.type], prefix].find((known) => KNOWN.includes(known));
  if (name !== undefined) return { name };
  return { name: 'EIO', text: `${what} failed: ${error.message}` };
}

const isName = (name) => typeof name === 'string' && name !== '' && !/[/\0]/.test(name) && !/^\.\.?$/.test(name);

/** A number that stays the same for a path: programs compare it to see whether two files are one (FNV-1a, 52 bits). */
function inodeOf(path) {
  let [high, low] = [0x811c9dc5, 0x01000193];
  for (let at = 0; at < path.length; at++) {
    high = Math.imul(high ^ path.charCodeAt(at), 0x01000193);
    low = Math.imul(low ^ path.charCodeAt(at), 0x85ebca6b);
  }
  return ((high >>> 12) * 2 ** 32 + (low >>> 0)) || 1;
}

/** Makes the file system for `FS.mount`. */
export function hostFileSystem({ FS, ERRNO_CODES }, host, failure, { mountPoint, deadlineMs }) {
  const failed = (name) => new FS.ErrnoError(ERRNO_CODES[name]);

  function ask(operation, path, values = {}) {
    const tool = `files.${operation}`;
    try {
      return host.call(tool, { path, ...values }, deadlineMs);
    } catch (error) {
      if (error instanceof Interrupted) throw failed('EINTR');
      if (!(error instanceof CallError)) throw error;
      const { name, text } = failureOf(error, `${tool} of ${mountPoint}/${path}`, deadlineMs);
      if (text !== undefined) failure.set(text);
      throw failed(name);
    }
  }

  // An answer that has another form than promised is the provider's mistake.
  function malformed(operation, path) {
    failure.set(`files.${operation} of ${mountPoint}/${path} failed: the answer of the client has an unknown form`);
    return failed('EIO');
  }

  function pathOf(node) {
    const parts = [];
    for (let at = node; at.parent !== at; at = at.parent) parts.unshift(at.name);
    return parts.join('/');
  }

  const below = (parent, name) => [pathOf(parent), name].filter(Boolean).join('/');

  const stat = (path) => factsOf(ask('stat', path), 'stat', path);

  function factsOf(found, operation, path) {
    const isDirectory = found?.kind === 'directory';
    if (!isDirectory && found?.kind !== 'file') throw malformed(operation, path);
    const size = isDirectory ? BLOCK_BYTES : Number(found.size);
    if (!Number.isSafeInteger(size) || size < 0) throw malformed(operation, path);
    const time = new Date(Number(found.mtime_ms ?? 0) || 0);
    return { mode: isDirectory ? DIRECTORY_MODE : FILE_MODE, size, time };
  }

  function makeNode(parent, name, mode, facts) {
    const node = FS.createNode(parent, name, mode, 0);
    node.node_ops = nodeOperations;
    node.stream_ops = streamOperations;
    // The next lookup asks the host again.
    if (parent !== null) FS.hashRemoveNode(node);
    // What `lookup` learned, for the `getattr` of the same system call.
    node.facts = facts;
    return node;
  }

  function attributesOf(node, { mode, size, time }) {
    node.mode = mode;
    const blocks = Math.ceil(size / 512);
    const times = { atime: time, mtime: time, ctime: time };
    return { dev: 1, ino: inodeOf(pathOf(node)), mode, nlink: 1, uid: 0, gid: 0, rdev: 0, size, blksize: BLOCK_BYTES, blocks, ...times };
  }

  const write = (path, offset, bytes, options = {}) =>
    ask('write', path, { offset, data: Buffer.from(bytes).toString('base64'), ...options });

  // The node of the last rename, which is still in the name table.
  let renamed = null;
  const nodeOperations = {
    getattr(node) {
      // The mount point exists without asking. Its time always changes, so importers list it again.
      if (node.parent === node) return attributesOf(node, { mode: DIRECTORY_MODE, size: BLOCK_BYTES, time: new Date() });
      const facts = node.facts ?? stat(pathOf(node));
      node.facts = undefined;
      return attributesOf(node, facts);
    },
    setattr(node, attributes) {
      node.facts = undefined;
      if (attributes.size === undefined) return;
      const path = pathOf(node);
      const { size } = stat(path);
      if (attributes.size < size) write(path, attributes.size, [], { truncate: true });
      else if (attributes.size > size) write(path, attributes.size - 1, [0]);
    },
    lookup(parent, name) {
      // Emscripten looks each name of a list up, to learn its kind.
      const facts = parent.listed?.get(name) ?? stat(below(parent, name));
      return makeNode(parent, name, facts.mode, facts);
    },
    mknod(parent, name, mode) {
      const path = below(parent, name);
      const kind = mode & KIND_MASK;
      if (kind === (DIRECTORY_MODE & KIND_MASK)) ask('mkdir', path);
      else if (kind === (FILE_MODE & KIND_MASK)) write(path, 0, [], { create: true });
      else throw failed('EPERM');
      return makeNode(parent, name, kind === (FILE_MODE & KIND_MASK) ? FILE_MODE : DIRECTORY_MODE);
    },
    rename(node, directory, name) {
      ask('rename', pathOf(node), { to: below(directory, name) });
      // Emscripten puts the node into the name table again. Under this name no lookup finds it.
      if (renamed !== null) FS.hashRemoveNode(renamed);
      node.name = '\0';
      renamed = node;
    },
    unlink: (parent, name) => void ask('remove', below(parent, name), { directory: false }),
    rmdir: (parent, name) => void ask('remove', below(parent, name), { directory: true }),
    readdir(node) {
      const path = pathOf(node);
      const { names, entries } = ask('list', path) ?? {};
      if (!Array.isArray(names ?? entries)) throw malformed('list', path);
      const found = names ?? entries.map((entry) => entry?.name);
      if (!found.every(isName)) throw malformed('list', path);
      if (names === undefined) node.listed = new Map(entries.map((entry) => [entry.name, factsOf(entry, 'list', path)]));
      return ['.', '..', ...found];
    },
    symlink() {
      throw failed('EPERM');
    },
    readlink() {
      throw failed('EINVAL');
    },
  };

  const streamOperations = {
    open(stream) {
      stream.node.facts = undefined;
    },
    close() {},
    fsync() {},
    read(stream, heap, offset, length, position) {
      const target = new Uint8Array(heap.buffer, heap.byteOffset + offset, length);
      const path = pathOf(stream.node);
      for (let filled = 0; ; ) {
        const wanted = Math.min(length - filled, CALL_BYTES_MAX);
        if (wanted === 0) return filled;
        const data = ask('read', path, { offset: position + filled, length: wanted })?.data;
        if (typeof data !== 'string') throw malformed('read', path);
        const bytes = Buffer.from(data, 'base64');
        if (bytes.length > wanted) throw malformed('read', path);
        target.set(bytes, filled);
        filled += bytes.length;
        if (bytes.length < wanted) return filled;
      }
    },
    write(stream, heap, offset, length, position) {
      const path = pathOf(stream.node);
      // A shorter write is an ordinary answer: Python writes the rest.
      const part = Math.min(length, CALL_BYTES_MAX);
      write(path, position, new Uint8Array(heap.buffer, heap.byteOffset + offset, part));
      return part;
    },
    llseek(stream, offset, whence) {
      let position = offset;
      if (whence === SEEK_CUR) position += stream.position;
      else if (whence === SEEK_END) position += stat(pathOf(stream.node)).size;
      else if (whence !== SEEK_SET) throw failed('EINVAL');
      if (position < 0) throw failed('EINVAL');
      return position;
    },
  };

  return {
    mount: (mount) => {
      const root = makeNode(null, '/', DIRECTORY_MODE);
      root.mount = mount;
      return root;
    },
  };
}
