//! The contract line on twins: a process that starts after a fork cannot reach the other twin. A process from
//! before the fork cannot either, or is named in the fork's reply.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use windlass_client::protocol::api::{CreateSession, ForkSession, ForkedSession};
use windlass_client::protocol::confinement::Isolation;
use windlass_client::protocol::event::StartedBy;
use windlass_client::protocol::{ErrorCode, SessionId};
use windlass_client::{Client, ClientError};
use windlass_testkit::{PATIENCE, TestNode, python_with_matplotlib, run_ok, within};

const LEVELS: [Isolation; 2] = [Isolation::Full, Isolation::Landlock];

/// `attacks(pid)` is what one process tries on another; `by_thread` makes a thread from before the fork do
/// something. Each attack returns its result, or the name of an exception.
const TOOLS: &str = "
import ctypes, os, queue, resource, select, signal, subprocess, sys, threading, time
secret = bytearray(b'from before')
address = ctypes.addressof(ctypes.c_char.from_buffer(secret))
ATTACKS = '''
import os, resource, signal
def attempt(act):
    try:
        return act()
    except BaseException as error:
        return type(error).__name__
def attacks(pid, address, task=None):
    place = f'/proc/{pid}/task/{task}' if task else f'/proc/{pid}'
    return [attempt(act) for act in (
        lambda: os.pread(os.open(f'{place}/mem', os.O_RDONLY), 4, address),
        lambda: os.pwrite(os.open(f'{place}/mem', os.O_RDWR), b'evil', address),
        lambda: os.open(f'{place}/fd/1', os.O_WRONLY),
        lambda: os.readlink(f'{place}/fd/1'),
        lambda: open(f'{place}/environ', 'rb').read(1),
        lambda: os.kill(pid, 0),
        lambda: os.kill(pid, signal.SIGTERM),
        lambda: signal.pidfd_send_signal(os.pidfd_open(pid), 0),
        lambda: resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0)),
        lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
        lambda: os.sched_setaffinity(pid, {0}),
    )]
'''
exec(ATTACKS)
def verdict(found):
    return 'refused' if set(found) == {'PermissionError'} else found
def by_child(pid, address):
    code = ATTACKS + f'print(attacks({pid}, {address}))'
    ran = subprocess.run([sys.executable, '-Ic', code], capture_output=True, text=True)
    return eval(ran.stdout) if ran.stdout else ran.stderr
jobs, answers = queue.Queue(), queue.Queue()
def serve():
    while True:
        answers.put(attempt(jobs.get()))
def by_thread(act):
    jobs.put(act)
    return answers.get(timeout=60)
";

/// With new queues: a thread that the twin does not have waits on the copied ones.
const OLD_THREAD: &str = "
jobs, answers = queue.Queue(), queue.Queue()
old = threading.Thread(target=serve, name='old', daemon=True); old.start()
";

struct Stage {
    node: TestNode,
    client: Client,
    original: SessionId,
}

impl Stage {
    async fn at(isolation: Isolation) -> Self {
        Self::on(TestNode::start(env!("CARGO_BIN_EXE_windlass")).await.unwrap(), isolation).await
    }

    async fn on(node: TestNode, isolation: Isolation) -> Self {
        let stage = Self::with(node, isolation, TestNode::create()).await;
        let started_by = stage.client.session(&stage.original).await.unwrap().started_by.unwrap();
        let wanted = std::env::var("WINDLASS_TEST_START").unwrap_or_default();
        // The worker was started in the way that `WINDLASS_TEST_START` selects.
        assert_eq!(started_by == StartedBy::Exec, !["zygote", "pool"].contains(&&*wanted));
        stage
    }

    async fn with(node: TestNode, isolation: Isolation, mut create: CreateSession) -> Self {
        create.policy.get_or_insert_default().isolation = Some(isolation);
        let client = node.client().await.unwrap();
        let original = client.create_session(&create).await.unwrap().session.id;
        let stage = Self { node, client, original };
        stage.run(&stage.original, TOOLS).await;
        stage
    }

    async fn run(&self, session: &SessionId, code: &str) -> String {
        run_ok(&self.client, session, code).await
    }

    async fn number(&self, session: &SessionId, code: &str) -> u32 {
        self.run(session, code).await.trim().parse().unwrap()
    }

    async fn fork(&self, session: &SessionId) -> ForkedSession {
        self.try_fork(session).await.unwrap()
    }

    async fn try_fork(&self, session: &SessionId) -> Result<ForkedSession, ClientError> {
        within(PATIENCE, self.client.fork_session(session, &ForkSession::default())).await
    }

    /// The code tries something, and all of it is refused.
    async fn refused(&self, session: &SessionId, code: &str) {
        let found = self.run(session, &format!("verdict({code})")).await;
        assert_eq!(found, "'refused'\n", "{code}");
    }
}

/// The entries of `can_reach`, as `what name`.
fn can_reach(forked: &ForkedSession) -> Vec<String> {
    forked.can_reach.iter().map(|one| format!("{} {}", one.what, one.name)).collect()
}

#[tokio::test]
async fn contract_71_neither_twin_nor_a_thread_from_before_reaches_the_other() {
    for isolation in LEVELS {
        let stage = Stage::at(isolation).await;
        let original = &stage.original;
        stage.run(original, OLD_THREAD).await;
        let task = stage.number(original, "old.native_id").await;
        let forked = stage.fork(original).await;
        assert_eq!(can_reach(&forked), [""; 0], "{isolation}");
        let twin = &forked.session.id;
        stage.run(twin, OLD_THREAD).await;
        stage.run(twin, "secret[:] = b'of the twin'").await;
        let own = stage.number(original, "os.getpid()").await;
        let other = stage.number(twin, "os.getpid()").await;
        let child = "subprocess.Popen(['sleep', '1000']).pid";
        // The original, its thread from before, and new children of both, against the twin and its new
        // children.
        let others = [other, stage.number(twin, child).await];
        for target in others {
            stage.refused(original, &format!("attacks({target}, address)")).await;
            let by_thread = format!("by_thread(lambda: attacks({target}, address))");
            stage.refused(original, &by_thread).await;
            stage.refused(original, &format!("by_child({target}, address)")).await;
            let by_its_child = format!("by_thread(lambda: by_child({target}, address))");
            stage.refused(original, &by_its_child).await;
        }
        // The twin against the original, its thread and its new children.
        let by_old_thread = stage.number(original, &format!("by_thread(lambda: {child})")).await;
        for target in [own, stage.number(original, child).await, by_old_thread] {
            stage.refused(twin, &format!("attacks({target}, address)")).await;
            stage.refused(twin, &format!("by_thread(lambda: attacks({target}, address))")).await;
            stage.refused(twin, &format!("by_child({target}, address)")).await;
        }
        stage.refused(twin, &format!("attacks({own}, address, {task})")).await;
        let to_thread = "ctypes.CDLL(None, use_errno=True).tgkill";
        let code = format!("{to_thread}({own}, {task}, 0), ctypes.get_errno()");
        assert_eq!(stage.run(twin, &code).await, "(-1, 1)\n", "{isolation}");
        assert_eq!(stage.run(twin, "bytes(secret)").await, "b'of the twin'\n");
        assert_eq!(stage.run(original, "bytes(secret)").await, "b'from before'\n");
    }
}

#[tokio::test]
async fn contract_71_processes_from_before_a_fork_are_named() {
    for isolation in LEVELS {
        let stage = Stage::at(isolation).await;
        let original = &stage.original;
        let code = "child = subprocess.Popen(['sleep', '1000'])\n\
            parent = 'import subprocess as s; print(s.Popen([\"sleep\", \"1000\"], stdout=s.DEVNULL).pid)'\n\
            orphan = int(subprocess.run([sys.executable, '-c', parent], stdout=subprocess.PIPE).stdout)";
        stage.run(original, code).await;
        let child = stage.number(original, "child.pid").await;
        let orphan = stage.number(original, "orphan").await;
        let forked = stage.fork(original).await;
        let mut expected =
            vec![format!("process {child}: sleep"), format!("process {orphan}: sleep")];
        assert_eq!(can_reach(&forked), expected, "{isolation}");
        // They are also from before the next fork.
        stage.run(original, "later = subprocess.Popen(['sleep', '1000'])").await;
        let later = stage.number(original, "later.pid").await;
        expected.push(format!("process {later}: sleep"));
        assert_eq!(can_reach(&stage.fork(original).await), expected, "{isolation}");
        // The twin has none of them. It has started when it has run a turn.
        stage.run(&forked.session.id, "None").await;
        assert_eq!(can_reach(&stage.fork(&forked.session.id).await), [""; 0], "{isolation}");
    }
}

#[tokio::test]
async fn contract_71_a_thread_that_blocks_every_signal_is_named() {
    for isolation in LEVELS {
        let stage = Stage::at(isolation).await;
        let original = &stage.original;
        // libc excludes its own signals when it blocks all signals; the system call does not.
        let code = "
def mask(how):
    every = ctypes.c_uint64(2**64 - 1)
    call = 14 if os.uname().machine == 'x86_64' else 135
    return ctypes.CDLL(None).syscall(call, how, ctypes.byref(every), None, 8)
threading.Thread(target=serve, name='deaf', daemon=True).start()
by_thread(lambda: signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()))";
        stage.run(original, code).await;
        assert_eq!(can_reach(&stage.fork(original).await), [""; 0], "{isolation}");
        assert_eq!(stage.run(original, "by_thread(lambda: mask(0))").await, "0\n");
        let deaf = stage.number(original, "by_thread(threading.get_native_id)").await;
        let forked = stage.fork(original).await;
        let [named] = &can_reach(&forked)[..] else { panic!("{:?}", forked.can_reach) };
        assert!(named.starts_with(&format!("thread {deaf}: ")), "{named}");
        // A late signal changes nothing.
        assert_eq!(stage.run(original, "by_thread(lambda: mask(1))").await, "0\n");
        assert_eq!(stage.run(original, "by_thread(lambda: 1 + 1)").await, "2\n");
        // The thread answers at the next fork.
        assert_eq!(can_reach(&stage.fork(original).await), [""; 0], "{isolation}");
        assert_eq!(stage.client.session(original).await.unwrap().restarts, 0);
    }
}

/// Threads that wait in every way that Python and C have, and a wakeup descriptor.
const POOL: &str = "
lock = threading.Lock(); lock.acquire(); gate = threading.Event(); condition = threading.Condition()
ends = os.pipe(); quiet = os.pipe(); woken = os.pipe(); found = {}
for end in woken: os.set_blocking(end, False)
signal.set_wakeup_fd(woken[1])
handlers = [signal.getsignal(each) for each in sorted(signal.valid_signals())]
def wait_timed():
    with condition:
        return condition.wait(300)
def poll():
    poller = select.epoll(); poller.register(ends[0], select.EPOLLIN); return bool(poller.poll(300))
ways = dict(lock=lock.acquire, timed_lock=lambda: gate.wait(300), forever=gate.wait,
    timed=wait_timed, select=lambda: select.select([ends[0]], [], [], 300)[0] == [ends[0]],
    epoll=poll, read=lambda: os.read(quiet[0], 1) == b'x', sleep=lambda: time.sleep(3) is None)
def watch(name, way):
    try: found[name] = way()
    except BaseException as error: found[name] = repr(error)
threads = [threading.Thread(target=watch, args=way, daemon=True) for way in ways.items()]
for thread in threads: thread.start()
libc = ctypes.CDLL(None)
semaphore = ctypes.create_string_buffer(64); libc.sem_init(semaphore, 0, 0)
pool = [ctypes.c_ulong() for _ in range(8)]
for each in pool:
    assert libc.pthread_create(ctypes.byref(each), None, libc.sem_wait, semaphore) == 0
";

const END_POOL: &str = "
lock.release(); gate.set(); os.write(ends[1], b'x'); os.write(quiet[1], b'x')
with condition: condition.notify_all()
for _ in pool: libc.sem_post(semaphore)
for thread in threads: thread.join(60)
for each in pool: libc.pthread_join(each, None)
same = handlers == [signal.getsignal(each) for each in sorted(signal.valid_signals())]
found == dict.fromkeys(ways, True), attempt(lambda: os.read(woken[0], 9)), same
";

#[tokio::test]
async fn contract_71_idle_thread_pools_are_neither_named_nor_disturbed() {
    for isolation in LEVELS {
        let stage = Stage::at(isolation).await;
        let original = &stage.original;
        stage.run(original, POOL).await;
        let twin = stage.fork(original).await;
        assert_eq!(can_reach(&twin), [""; 0], "{isolation}");
        assert_eq!(can_reach(&stage.fork(original).await), [""; 0], "{isolation}");
        let ended = stage.run(original, END_POOL).await;
        assert_eq!(ended, "(True, 'BlockingIOError', True)\n", "{isolation}");
        // A twin with its own threads can be forked too, even if it may not read its own `/proc` files.
        let twin = &twin.session.id;
        stage.run(twin, POOL).await;
        assert_eq!(can_reach(&stage.fork(twin).await), [""; 0], "{isolation}");
        assert_eq!(stage.run(twin, END_POOL).await, "(True, 'BlockingIOError', True)\n");
    }
}

/// The threads that a linear algebra library keeps for its next call.
#[tokio::test]
async fn contract_71_threads_of_numpy_are_neither_named_nor_disturbed() {
    let python = python_with_matplotlib(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let create = CreateSession {
        interpreter: Some(python.to_string_lossy().into_owned()),
        ..TestNode::create()
    };
    let node = TestNode::start(env!("CARGO_BIN_EXE_windlass")).await.unwrap();
    let stage = Stage::with(node, Isolation::Full, create).await;
    let original = &stage.original;
    let code = "os.environ['OPENBLAS_NUM_THREADS'] = '8'\nimport numpy\n\
        def product(): return float((numpy.ones((400, 400)) @ numpy.ones((400, 400))).sum())\n\
        product(), len(os.listdir('/proc/self/task')) > 1";
    assert_eq!(stage.run(original, code).await, "(64000000.0, True)\n");
    for _ in 0..3 {
        let forked = stage.fork(original).await;
        assert_eq!(can_reach(&forked), [""; 0]);
        assert_eq!(stage.run(original, "product()").await, "64000000.0\n");
        assert_eq!(stage.run(&forked.session.id, "product()").await, "64000000.0\n");
    }
}

/// Code in the session that makes the worker skip the layers of `who`, which is an expression.
fn skipping(who: &str) -> String {
    format!(
        "import windlass_worker.twin as twin_module\n\
         honest, original_pid = twin_module._library, os.getpid()\n\
         def library():\n\
         \x20   call = honest()\n\
         \x20   def lying(name, *arguments):\n\
         \x20       is_twin = os.getpid() != original_pid\n\
         \x20       return 0 if name == 'windlass_separate' and ({who}) else call(name, *arguments)\n\
         \x20   return lying\n\
         twin_module._library = library"
    )
}

#[tokio::test]
async fn contract_71_a_worker_that_skips_a_layer_is_not_forked() {
    for isolation in LEVELS {
        let stage = Stage::at(isolation).await;
        let original = &stage.original;
        let before = stage.node.session_processes().await.unwrap();
        for who in ["True", "is_twin", "not is_twin"] {
            stage.run(original, &skipping(who)).await;
            let Err(ClientError::Api(error)) = stage.try_fork(original).await else {
                panic!("{isolation}: {who} was forked");
            };
            assert_eq!(error.code, ErrorCode::ForkRefused, "{who}");
            assert!(error.message.contains("has not added the layer"), "{}", error.message);
            stage.run(original, "twin_module._library = honest").await;
            let none_left = async {
                while stage.node.session_processes().await.unwrap() != before {
                    stage.client.node_status().await.unwrap();
                }
            };
            within(PATIENCE, none_left).await;
        }
        let twin = stage.fork(original).await.session.id;
        assert_eq!(stage.run(&twin, "1 + 1").await, "2\n");
    }
}
