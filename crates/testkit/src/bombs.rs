//! Code that takes all resources it can get, and small limits to run it under. Each bomb ends within seconds.

use windlass_client::protocol::api::CreateSession;
use windlass_client::protocol::policy::{Limits, PolicyRequest};

use crate::TestNode;

const MIB: u64 = 1 << 20;

/// Forks until a limit stops it.
pub const FORK: &str = "
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.01)
";

/// One process that allocates memory until a limit stops it.
pub const MEMORY: &str = "
held = []
while True:
    held.append(bytearray(8 << 20))
";

/// Forks many children that each take little memory, until a limit stops it.
pub const MEMORY_OF_MANY: &str = "
import os, time
while True:
    for _ in range(8):
        if os.fork() == 0:
            held = bytearray(os.urandom(1 << 20) * 24)
            time.sleep(60)
    os.wait()
";

/// Writes files until the workspace exceeds its limit.
pub const DISK: &str = "
block = b'x' * (1 << 20)
n = 0
while True:
    with open(f'filler-{n}', 'wb') as file:
        for _ in range(16):
            file.write(block)
    n += 1
";

pub const OUTPUT: &str = "
while True:
    print('x' * 1000)
";

/// The bombs of the contract. A neighbour session must hardly notice them.
pub const BESIDE_A_NEIGHBOUR: [&str; 3] = [FORK, MEMORY_OF_MANY, DISK];

/// The same plus a flood of output, which also keeps the node busy. The bench measures this.
pub const WITH_A_FLOOD: [&str; 4] = [FORK, MEMORY_OF_MANY, DISK, OUTPUT];

/// Limits that bombs reach quickly.
pub fn small_limits() -> Limits {
    Limits {
        memory_bytes: Some(128 * MIB),
        processes: Some(24),
        disk_bytes: Some(64 * MIB),
        file_bytes: Some(32 * MIB),
        ..Limits::default()
    }
}

/// A session request with `limits`, otherwise as [`TestNode::create`].
pub fn session_under(limits: Limits) -> CreateSession {
    let policy = PolicyRequest { limits, ..PolicyRequest::default() };
    CreateSession { policy: Some(policy), ..TestNode::create() }
}
